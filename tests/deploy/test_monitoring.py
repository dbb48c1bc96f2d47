"""The dashboard and the alerts: each name in them is served, and each alert is in the runbook."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from guard.gateway.embedded import run_gateway
from tests.gateway.conftest import new_tenant
from tests.gateway.test_metrics import documented, happen, page_of
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.named_commands import flaw_of
from tests.support.prometheus import METRICS_KEY, RULES, SCRAPES, metrics_of, prometheus
from tests.support.run_proxy import run_proxy
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "guard.json"
RUNBOOK = ROOT / "docs" / "gateway" / "runbook.md"

ADDED: Final = frozenset({"job", "instance"})
"""Labels that Prometheus adds to what it scrapes."""

OWN: Final = {"up": ADDED, "ALERTS": frozenset({"alertname", "alertstate", "severity"})}
"""Metrics of Prometheus itself."""

_CHAT = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}


def rules() -> dict[str, dict[str, Any]]:
    """Return the alerts by their names."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in found}) == len(found)
    return {rule["alert"]: rule for rule in found}


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard that show something."""
    found = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def queries() -> dict[str, tuple[str, str]]:
    """Return the expressions of the dashboard with their legends, by panel and letter."""
    return {
        f"{panel['title']}/{target['refId']}": (target["expr"], target["legendFormat"])
        for panel in panels() for target in panel["targets"]
    }  # fmt: skip


# -- what an expression names ----------------------------------------------------------------------

_SELECTOR = re.compile(r"\b([A-Za-z_:]\w*)\s*\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_NAME = re.compile(r"\b(?!\d)\w+\b(?!\s*\()")
_WORDS: Final = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring"}


@attrs.frozen
class Named:
    """What an expression names.

    Attributes:
        labels: that its selectors match, by metric; none where it has no matcher.
        grouped: labels that it groups by or joins on.
    """

    labels: dict[str, frozenset[str]]
    grouped: frozenset[str]


def named(expression: str) -> Named:
    """Return what an expression of PromQL names."""
    text = re.sub(r'"[^"]*"', '""', expression)
    labels: dict[str, frozenset[str]] = {}
    for name, matchers in _SELECTOR.findall(text):
        found = frozenset(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        labels[name] = labels.get(name, frozenset()) | found
    grouped = frozenset(
        label.strip() for names in _GROUPING.findall(text) for label in names.split(",")
    )
    left = _GROUPING.sub(" ", re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text))
    for name in _NAME.findall(left):
        if name not in _WORDS:
            labels.setdefault(name, frozenset())
    return Named(labels, grouped)


def test_what_an_expression_names_is_found() -> None:
    found = named(
        'sum by (le, job) (rate(a_total{b="x{y}",c=~"z"}[5m])) / 2 > 1e3 * d or e{f!="g"}'
    )
    assert found == Named(
        {"a_total": frozenset("bc"), "d": frozenset(), "e": frozenset("f")},
        frozenset({"le", "job"}),
    )


# -- what is served --------------------------------------------------------------------------------


@attrs.frozen
class Served:
    """Addresses of a gateway and a proxy on which everything has happened that is counted."""

    gateway: str
    proxy: str

    def labels(self) -> dict[str, frozenset[str]]:
        """Return the labels of each sample that is served, by its name."""
        found: dict[str, frozenset[str]] = dict(OWN)
        for url in (self.gateway, self.proxy):
            for family in text_string_to_metric_families(metrics_of(url)):
                for sample in family.samples:
                    known = found.get(sample.name, ADDED)
                    found[sample.name] = known | frozenset(sample.labels)
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("monitored")
    with (
        contextlib.closing(StandIn()) as vendor,
        run_gateway(
            folder / "g.sqlite3", sweep_interval_ms=50,
            metrics_key=METRICS_KEY,
        ) as gateway,
        run_proxy(
            gateway, folder, {"openai": vendor.url, "ollama": "http://127.0.0.1:1"},
            limit_nanousd=800_000,
        ) as proxy,
    ):  # fmt: skip
        tenant = new_tenant(gateway)
        happen(tenant)
        tenant.admin.set_budget(50, scope_kind="user", scope_id="*", window="day")
        assert tenant.send(tenant.llm(480_000_000, user="u")).status_code == 202
        tenant.refused(402, "GD-B004", user="u", model="gpt-4o", kind="llm",
                       max_input_tokens=10, max_output_tokens=10**6)  # fmt: skip
        for vendor_name, path in (("openai", "v1/chat/completions"), ("ollama", "api/chat")):
            httpx.post(f"{proxy.url}/{vendor_name}/{path}", json=_CHAT)
        url = f"{proxy.url}/openai/v1/chat/completions"
        assert httpx.post(url, json=_CHAT | {"max_tokens": 10**6}).status_code == 400
        until(lambda: "guard_gateway_budget_limit{" in page_of(gateway))
        yield Served(gateway.base_url, proxy.url)
        tenant.http.close()
        tenant.admin.close()


def test_every_name_and_label_is_served(served: Served) -> None:
    known = served.labels()
    legends = queries()
    texts = {name: rule["expr"] for name, rule in rules().items()}
    for what, text in texts.items() | {(name, expr) for name, (expr, _) in legends.items()}:
        of = named(text)
        assert of.labels, what
        for name, labels in of.labels.items():
            assert name in known, f"{what}: no metric {name}"
            assert labels <= known[name], f"{what}: no label {labels - known[name]} of {name}"
        all_labels = frozenset().union(*(known[name] for name in of.labels))
        assert of.grouped <= all_labels, f"{what}: no label {of.grouped - all_labels}"
    for what, (text, legend) in legends.items():
        of = named(text)
        shown = frozenset(re.findall(r"\{\{(\w+)\}\}", legend))
        aggregates = re.match(r"\w+(?:\(\d+, )?.*?\bby\b|(?:sum|max|min|count)\(", text) is not None
        kept = of.grouped if aggregates else frozenset().union(*(known[name] for name in of.labels))
        assert shown <= kept, f"{what}: the legend shows {shown - kept}"


def test_values_of_labels_that_are_matched_are_served(served: Served) -> None:
    text = "".join(metrics_of(url) for url in (served.gateway, served.proxy))
    texts = [rule["expr"] for rule in rules().values()] + [expr for expr, _ in queries().values()]
    matched = set(re.findall(r'\b(\w+)="([^"$]+)"', " ".join(texts)))
    of_prometheus = {("alertstate", "firing")}
    for label, value in matched - of_prometheus:
        if label != "job":
            assert f'{label}="{value}"' in text or (label, value) == ("outcome", "failed"), value
    jobs = {each["job_name"] for each in yaml.safe_load(SCRAPES.read_text())["scrape_configs"]}
    assert {value for label, value in matched if label == "job"} == jobs


def test_the_dashboard_shows_every_metric() -> None:
    shown = {
        re.sub(r"_(sum|count|bucket)$", "", name)
        for expr, _ in queries().values() for name in named(expr).labels
    }  # fmt: skip
    assert documented().keys() <= shown


def test_panels_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    board = json.loads(DASHBOARD.read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    variables = {each["name"] for each in board["templating"]["list"]} | {"__rate_interval"}
    for what, (expr, _) in queries().items():
        assert set(re.findall(r"\$(\w+)", expr)) <= variables, what
    for panel in panels():
        sources = [panel["datasource"], *(each["datasource"] for each in panel["targets"])]
        assert all(each["uid"] == "${datasource}" for each in sources), panel["title"]


# -- the runbook -----------------------------------------------------------------------------------


def test_each_alert_has_its_section_and_each_section_its_alert() -> None:
    sections = re.findall(r"^### (Guard\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(rules())
    for name, rule in rules().items():
        assert rule["annotations"]["runbook"] == f"docs/gateway/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]


def test_what_the_runbook_names_exists() -> None:
    text = RUNBOOK.read_text()
    known = documented().keys()
    for name in re.findall(r"guard_gateway_\w+", text):
        assert re.sub(r"_(sum|count|bucket)$", "", name) in known, name
    for name in re.findall(r"`(Guard[A-Z]\w+)`", text):
        assert name in rules(), name
    titles = {panel["title"] for panel in panels()}
    messages = {"newer than this gateway knows"}
    prose = re.sub(r"^```.*?^```|`[^`]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    quoted = {" ".join(found.split()) for found in re.findall(r'"([^"]+)"', prose)}
    assert quoted - titles == messages, "panels of the dashboard that the runbook looks at"


def commands() -> list[str]:
    """Return the commands of guard in the runbook's lines."""
    text = re.sub(r"^```.*?^```", "", RUNBOOK.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(found.split()) for found in re.findall(r"`(guard [^`]+)`", text)]


def test_what_does_not_exist_is_seen() -> None:
    assert flaw_of("guard gateway workflows --limit 5") is None
    assert flaw_of("guard gateway workflow") is not None
    assert flaw_of("guard gateway workflows --many") is not None
    assert flaw_of("guard gateway budgets raise --by 5") is not None


def test_every_command_of_the_runbook_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = commands()
    monkeypatch.chdir(tmp_path)
    for file_of_the_readers in ("FILE", "BACKUP", "costs.csv"):
        Path(file_of_the_readers).touch()
    assert len(found) > 20
    flaws = {command: flaw for command in found if (flaw := flaw_of(command)) is not None}
    assert not flaws


# -- Prometheus itself -----------------------------------------------------------------------------

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: install prometheus"
)


def promtool(*words: str | Path, cwd: Path) -> None:
    done = subprocess.run(
        ["promtool", *words], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_files(tmp_path: Path) -> None:
    for each in (RULES, SCRAPES):
        shutil.copy(each, tmp_path)
    (tmp_path / "metrics-key").write_text(METRICS_KEY)
    promtool("check", "rules", RULES.name, cwd=tmp_path)
    promtool("check", "config", SCRAPES.name, cwd=tmp_path)


JUST_BELOW: Final[Mapping[str, str]] = {
    'guard_gateway_answers_total{route="/gate",status="200"}': "0+10000x120",
    'guard_gateway_answers_total{route="/gate",status="503"}': "0+59x120",
    'guard_gateway_gate_seconds_bucket{le="0.1"}': "0+991x120",
    "guard_gateway_gate_seconds_count": "0+1000x120",
    'up{job="guard-gateway",instance="g"}': "1+0x120",
    'up{job="guard-proxy",instance="p"}': "1+0x120",
    'process_start_time_seconds{job="guard-gateway"}': "5+0x90 6+0x30",
    'guard_gateway_build_info{version="1"}': "1+0x120",
    'process_open_fds{job="guard-gateway"}': "89+0x120",
    'process_max_fds{job="guard-gateway"}': "100+0x120",
    "guard_gateway_overload_refusals_total": "7+0x120",
    "guard_gateway_store_healthy": "1+0x120",
    "guard_gateway_commit_seconds_sum": "0+45x120",
    'guard_gateway_organisation_command_seconds_total{organisation="a"}': "0+29x120",
    'guard_gateway_organisation_command_seconds_total{organisation="other"}': "0+40x120",
    'guard_gateway_pool_waiting{pool="reports"}': "0 3 0 3 " * 30,
    "guard_gateway_retention_lag_seconds": "86400+0x120",
    "guard_gateway_log_bytes": "268435456+0x120",
    "guard_gateway_expired_reservations_total": "0+59x120",
    "guard_gateway_webhook_backlog": "100+0x120",
    'guard_gateway_budget_spent{organisation="a",budget="b",unit="usd"}': "90+0x120",
    'guard_gateway_budget_limit{organisation="a",budget="b",unit="usd"}': "100+0x120",
    'guard_gateway_budget_uncertain{organisation="a",budget="b",unit="usd"}': "18+0x120",
    "guard_gateway_budget_asks": "0+0x120",
    "guard_gateway_approvals_pending": "0+0x120",
    'guard_gateway_refusals_total{code="GD-B004"}': "4+0x120",
    'guard_gateway_refusals_total{code="GD-T001"}': "0+9x120",
    'guard_gateway_loops_total{kind="tool"}': "3+0x120",
    "guard_gateway_waiting_calls": "100+0x120",
    'guard_proxy_refusals_total{vendor="openai",code="GD-B004",instance="p"}': "0+5x120",
    'guard_proxy_refusals_total{vendor="openai",code="GD-B001",instance="p"}': "3+0x120",
    'guard_proxy_requests_total{vendor="openai",outcome="answered"}': "0+96x120",
    'guard_proxy_requests_total{vendor="openai",outcome="failed"}': "0+4x120",
}
"""A gateway just below every threshold: each series, and its values minute by minute."""

ILL: Final[Mapping[str, Mapping[str, str]]] = {
    "GuardDecisionsFail": {'guard_gateway_answers_total{route="/gate",status="503"}': "0+150x120"},
    "GuardDecisionsFailSlowly": {
        'guard_gateway_answers_total{route="/gate",status="503"}': "0+140x120"
    },
    "GuardDecisionsSlow": {'guard_gateway_gate_seconds_bucket{le="0.1"}': "0+980x120"},
    "GuardGatewayDown": {'up{job="guard-gateway",instance="g"}': "0+0x120"},
    "GuardGatewayRestarts": {
        'process_start_time_seconds{job="guard-gateway"}': "5+60x120",
    },
    "GuardVersionsMixed": {'guard_gateway_build_info{version="2"}': "1+0x120"},
    "GuardOpenFilesShort": {'process_open_fds{job="guard-gateway"}': "91+0x120"},
    "GuardOverloaded": {"guard_gateway_overload_refusals_total": "0+1x120"},
    "GuardStoreFails": {"guard_gateway_store_healthy": "0+0x120"},
    "GuardWriterBusy": {"guard_gateway_commit_seconds_sum": "0+50x120"},
    "GuardOneOrganisationTakesTheWriter": {
        'guard_gateway_organisation_command_seconds_total{organisation="a"}': "0+31x120"
    },
    "GuardQueriesWait": {'guard_gateway_pool_waiting{pool="reports"}': "1+0x120"},
    "GuardRetentionBehind": {"guard_gateway_retention_lag_seconds": "86401+0x120"},
    "GuardLogLarge": {"guard_gateway_log_bytes": "268435457+0x120"},
    "GuardHoldsExpire": {"guard_gateway_expired_reservations_total": "0+61x120"},
    "GuardMessagesWait": {"guard_gateway_webhook_backlog": "101+0x120"},
    "GuardBudgetNearlySpent": {
        'guard_gateway_budget_spent{organisation="a",budget="b",unit="usd"}': "91+0x120"
    },
    "GuardBudgetAsks": {"guard_gateway_budget_asks": "1+0x120"},
    "GuardApprovalsWait": {"guard_gateway_approvals_pending": "1+0x120"},
    "GuardCallsRefused": {'guard_gateway_refusals_total{code="GD-B004"}': "0+1x120"},
    "GuardRunsLoop": {'guard_gateway_loops_total{kind="tool"}': "0+1x120"},
    "GuardCallsWaitInLine": {"guard_gateway_waiting_calls": "101+0x120"},
    "GuardChargedInDoubt": {
        'guard_gateway_budget_uncertain{organisation="a",budget="b",unit="usd"}': "19+0x120"
    },
    "GuardProxyDown": {'up{job="guard-proxy",instance="p"}': "0+0x120"},
    "GuardProxyUndecided": {
        'guard_proxy_refusals_total{vendor="openai",code="GD-B001",instance="p"}': "0+1x120"
    },
    "GuardProxyFails": {'guard_proxy_requests_total{vendor="openai",outcome="failed"}': "0+6x120"},
}
"""What makes each alert fire, in place of what is just below."""

TOGETHER: Final = {"GuardDecisionsFail": {"GuardDecisionsFailSlowly"}}
"""Alerts that fire beside one."""


@pytest.mark.long
@needs_promtool
def test_each_alert_fires_when_it_has_to_and_no_other(tmp_path: Path) -> None:
    assert ILL.keys() == rules().keys()

    def case(name: str, series: Mapping[str, str], firing: set[str]) -> dict[str, Any]:
        samples = [{"labels": f'{{alertname="{each}"}}', "value": 1} for each in sorted(firing)]
        expr = 'sum by (alertname) (ALERTS{alertstate="firing"})'
        return {
            "name": name, "interval": "1m",
            "input_series": [{"series": each, "values": told} for each, told in series.items()],
            "promql_expr_test": [{"expr": expr, "eval_time": "100m", "exp_samples": samples}],
        }  # fmt: skip

    cases = [case("just below", JUST_BELOW, set())]
    for name, series in ILL.items():
        cases.append(case(name, {**JUST_BELOW, **series}, {name} | TOGETHER.get(name, set())))
    gone = {name: told for name, told in JUST_BELOW.items() if "guard-gateway" not in name}
    cases.append(case("no gateway is scraped", gone, {"GuardGatewayDown"}))
    tests = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    promtool("test", "rules", "tests.yaml", cwd=tmp_path)


@pytest.mark.long
def test_a_prometheus_answers_each_query_of_the_dashboard(served: Served, tmp_path: Path) -> None:
    with prometheus(tmp_path, [served.gateway], [served.proxy]) as client:

        def empty() -> list[str]:
            found = []
            for what, (expr, _) in queries().items():
                text = expr.replace("$__rate_interval", "5m").replace("$organisation", ".*")
                with contextlib.suppress(httpx.TransportError):  # it starts
                    reply = client.get("/query", params={"query": text})
                    if reply.status_code == 503:
                        return ["it is not ready"]
                    assert reply.status_code == 200, f"{what}: {reply.text}"
                    if reply.json()["data"]["result"]:
                        continue
                found.append(what)
            return found

        try:
            until(lambda: not empty())
        except AssertionError:
            raise AssertionError(f"no series for {empty()}") from None

        def shown() -> dict[str, Any]:
            groups = client.get("/rules").json()["data"]["groups"]
            return {rule["name"]: rule for group in groups for rule in group["rules"]}

        assert shown().keys() == rules().keys()
        until(lambda: {rule["health"] for rule in shown().values()} == {"ok"})
        until(lambda: shown()["GuardBudgetNearlySpent"]["state"] == "firing")
        states = shown()
        assert states["GuardStoreFails"]["state"] == "inactive"
