"""Loops are told, shown, and previewed over stored runs; accelerating spend is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from guard.gateway.cli.main import gateway as command
from guard.gateway.domain import acceleration, repeats
from guard.gateway.domain.acceleration import STEP_MS, SpendOfRun
from guard.gateway.domain.notice_text import said
from guard.gateway.domain.records import Policy, PolicyDocument, RepeatCap
from guard.gateway.domain.repeats import RepeatCount
from guard.gateway.embedded import run_gateway
from guard.gateway.services import alert_watch, spend_watch
from guard.gateway.storage.sql.reports import SqlReports
from tests.gateway.conftest import Tenant, new_tenant
from tests.gateway.test_loops import SEARCH, flags, limited, metric, span
from tests.support import postgres
from tests.support.prometheus import METRICS_KEY
from tests.support.receivers import Receiver
from tests.support.waiting import until

NOW_MS = 1_750_000_000_000


class Clock:
    """The gateway's time."""

    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each look at what the runs of an organisation spend."""
    noted: list[str] = []
    look = SqlReports.spend_by_run

    def noting(self: SqlReports, organisation_id: str) -> Any:
        noted.append(organisation_id)
        return look(self, organisation_id)

    monkeypatch.setattr(SqlReports, "spend_by_run", noting)
    return noted


@pytest.fixture(params=["sqlite", "postgres"])
def team(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> Iterator[Tenant]:
    """A tenant of a gateway that looks often, with a clock of its own."""
    monkeypatch.setattr(alert_watch, "LOOK_S", 0.05)
    monkeypatch.setattr(spend_watch, "SPEND_S", 0.05)
    database = postgres.url_of(tmp_path) if request.param == "postgres" else None
    with run_gateway(
        database, sweep_interval_ms=50, private_webhooks=True, public_url="https://guard.example",
        clock_ms=clock, metrics_key=METRICS_KEY,
    ) as gateway:  # fmt: skip
        tenant = new_tenant(gateway)
        yield tenant
        tenant.http.close()
        tenant.admin.close()


def listening(team: Tenant, receiver: Receiver) -> None:
    team.admin.set_channel("ops", "webhook", url=receiver.url)
    team.admin.set_alert("loop", "loop")


def told(receiver: Receiver) -> list[dict[str, Any]]:
    return [got.json["data"] for got in list(receiver.got) if got.json["type"] == "run.loop"]


def test_a_loop_is_told_once_for_each_count(team: Tenant, receiver: Receiver) -> None:
    listening(team, receiver)
    limited(team, "pause")
    for _ in range(2):
        for _ in range(2):
            team.allowed(**SEARCH)
        team.refused(403, "GD-W003", **SEARCH)
        team.refused(403, "GD-W003", **SEARCH)
        team.admin.request("POST", "/control", {"action": "resume", "run_id": "r"})
    (notice, _) = until(lambda: told(receiver) if len(told(receiver)) == 2 else None)
    assert notice == {
        "run_id": "r", "workflow_id": "w", "kind": "tool", "subject": "search",
        "action": "pause", "policy": "loops", "limit": 2, "count": 2,
    }  # fmt: skip
    text = said("run.loop", notice)
    assert text.title == "search, 2 times with the same arguments: its run is paused"
    assert text.path == "/workflow?id=w&tab=spans&run=r"


def test_accelerating_spend_is_told_once(team: Tenant, receiver: Receiver, clock: Clock) -> None:
    listening(team, receiver)
    before = metric(team, "spend")
    for step in range(8):
        for run_id, dollars in (("steady", 2.0), ("faster", 2.0 if step < 7 else 20.0)):
            team.send(team.llm(round(dollars * 10**9), run_id=run_id, workflow_id="w"))
        if step < 7:
            clock.now_ms += STEP_MS
    (notice,) = until(lambda: told(receiver))
    assert notice == {
        "run_id": "faster", "workflow_id": "w", "kind": "spend", "subject": "", "action": "notice",
        "recent_nanousd": 20 * 10**9, "usual_nanousd": 2 * 10**9, "within_ms": STEP_MS,
    }  # fmt: skip
    assert said("run.loop", notice).title == "Spends faster and faster: w"
    assert flags(team, "faster") == [("spend", "", 0, "notice")]
    clock.now_ms += 1000
    team.send(team.llm(10**9, run_id="faster", workflow_id="w"))
    team.admin.set_alert("kill", "kill")
    team.admin.kill("other")
    until(lambda: len(receiver.got) == 2)
    assert flags(team, "steady") == []
    assert metric(team, "spend") == before + 1


def spend(team: Tenant, clock: Clock, *dollars: float, run_id: str = "r", **fields: Any) -> None:
    """Spend as much in each five minutes; the last of them are the newest."""
    for step, each in enumerate(dollars):
        if step:
            clock.now_ms += STEP_MS
        team.send(team.llm(round(each * 10**9), run_id=run_id, **{"workflow_id": "w", **fields}))


FASTER = (*[1.0] * 7, 20.0)


def rule(team: Tenant, action: str, name: str = "spend", **scope: Any) -> None:
    team.admin.set_policy(name, on_accelerating_spend=action, **scope)


def stops(team: Tenant) -> list[tuple[str, str, str]]:
    """Return which runs policies have stopped: by which, how, and which."""
    return [
        (each["actor"], each["action"], each["target"])
        for each in team.admin.audit()
        if each["action"].startswith("workflow.") and each["actor"].startswith("policy")
    ]


@pytest.mark.parametrize(("action", "code"), [("pause", "GD-W003"), ("kill", "GD-W002")])
def test_a_rule_stops_a_run_that_accelerates(
    team: Tenant, clock: Clock, receiver: Receiver, action: str, code: str
) -> None:
    listening(team, receiver)
    rule(team, action)
    spend(team, clock, *FASTER)
    (notice,) = until(lambda: told(receiver))
    assert (notice["action"], notice["policy"]) == (action, "spend")
    done = {"pause": "its run is paused", "kill": "its run is killed"}[action]
    assert said("run.loop", notice).title == f"Spends faster and faster: w: {done}"
    refusal = team.refused(403, code, workflow_id="w", run_id="r")
    assert refusal["reason"] == "the run spent $20 in 5 minutes, and $1 in as long before"
    team.allowed(workflow_id="w", run_id="another")
    assert stops(team) == [("policy spend", f"workflow.{action}", "r")]
    assert flags(team) == [("spend", "", 0, action)]


def test_a_resumed_run_is_stopped_again_if_it_is_faster_still(
    team: Tenant, clock: Clock, looks: list[str]
) -> None:
    rule(team, "pause")  # which needs no rule of alerts
    spend(team, clock, *FASTER)
    until(lambda: stops(team))
    team.admin.request("POST", "/control", {"action": "resume", "run_id": "r"})
    spend(team, clock, 1.0, 30.0)
    looked_at(looks)
    assert len(stops(team)) == 1, "less than twice the most before"
    clock.now_ms += STEP_MS
    spend(team, clock, 100.0)
    until(lambda: len(stops(team)) == 2)
    team.admin.request("POST", "/control", {"action": "resume", "run_id": "r"})
    looked_at(looks)
    assert len(stops(team)) == 2, "just resumed"


def looked_at(looks: list[str]) -> None:
    """Wait until the watch has looked once more, and done what follows from that."""
    seen = len(looks)
    until(lambda: len(looks) >= seen + 2)


@pytest.mark.parametrize(
    ("scope", "is_stopped"),
    [({"scope_kind": "workflow", "scope_id": "w*"}, True),
     ({"scope_kind": "workflow", "scope_id": "other"}, False),
     ({"scope_kind": "agent", "scope_id": "a1"}, True),
     ({"scope_kind": "agent", "scope_id": "a2"}, False),
     ({"enabled": False}, False)],
)  # fmt: skip
def test_a_rule_about_spend_is_for_its_scope(
    team: Tenant, clock: Clock, scope: dict[str, Any], is_stopped: bool
) -> None:
    rule(team, "pause", **scope)
    rule(team, "notice", "flag", scope_kind="agent", scope_id="a1")  # the strictest rule counts
    spend(team, clock, *FASTER, agent="a1")
    until(lambda: flags(team))
    assert flags(team) == [("spend", "", 0, "pause" if is_stopped else "notice")]
    assert bool(stops(team)) == is_stopped


def test_spend_under_the_name_of_a_foreign_run_stops_nothing(
    team: Tenant, clock: Clock, looks: list[str]
) -> None:
    rule(team, "kill")
    team.allowed(workflow_id="w", run_id="r")
    spend(team, clock, *FASTER, workflow_id="mine")
    looked_at(looks)
    team.allowed(workflow_id="w", run_id="r")
    team.allowed(workflow_id="mine", run_id="r")


def test_a_rule_about_spend_is_previewed(team: Tenant, clock: Clock) -> None:
    def preview(document: dict[str, Any], **scope: Any) -> Any:
        body = {"name": "x", "policy": {"document": document, **scope}}
        return team.admin.request("POST", "/policies/preview", body)["acceleration"]

    wanted = {"on_accelerating_spend": "pause"}
    assert preview({"tools_block": ["rm"]}) is None
    assert preview(wanted) == {
        "runs": 0, "since_ms": None, "accelerated": 0, "after_nanousd": 0, "worst": [],
    }  # fmt: skip
    began_ms = clock.now_ms
    spend(team, clock, *FASTER, run_id="faster")
    found_ms = clock.now_ms
    clock.now_ms += 60_000
    spend(team, clock, 7.0, run_id="faster")
    spend(team, clock, 9.0, run_id="short", workflow_id="other")
    clock.now_ms += 86_400_000
    found = preview(wanted)
    (worst,) = found.pop("worst")
    assert found == {
        "runs": 2, "since_ms": began_ms - began_ms % 60_000, "accelerated": 1,
        "after_nanousd": 7 * 10**9,
    }  # fmt: skip
    assert worst == {
        "run_id": "faster", "workflow_id": "w", "at_ms": found_ms - found_ms % 60_000 + 60_000,
        "recent_nanousd": 20 * 10**9, "usual_nanousd": 10**9, "after_nanousd": 7 * 10**9,
    }  # fmt: skip
    assert preview(wanted, scope_kind="workflow", scope_id="other")["accelerated"] == 0
    clock.now_ms += 7 * 86_400_000
    assert preview(wanted)["runs"] == 0


def test_counts_are_forgotten_in_time(team: Tenant, clock: Clock) -> None:
    limited(team, "notice", times=1)
    team.send(span("d1"), span("d1"), span("other"))

    def counted() -> list[Any]:
        body = {"name": "x", "policy": {"document": {"repeat_caps": [CAP]}}}
        found = team.admin.request("POST", "/policies/preview", body)
        return [found["repeats"]["calls"]]

    assert counted() == [3]
    clock.now_ms += 8 * 86_400_000
    until(lambda: counted() == [2])
    assert flags(team) == [("tool", "search", 2, "notice")]
    clock.now_ms += 90 * 86_400_000
    until(lambda: flags(team) == [])


CAP = {"times": 1, "tools": ["search"], "on_repeat": "refuse"}


def test_a_rule_is_previewed_over_stored_runs(team: Tenant) -> None:
    body = {"name": "x", "policy": {"document": {"repeat_caps": [CAP]}}}
    empty = team.admin.request("POST", "/policies/preview", body)["repeats"]
    assert (empty["since_ms"], empty["calls"]) == (None, 0)
    limited(team, "notice", times=100)
    for run_id, times in (("r1", 4), ("r2", 2), ("r3", 1)):
        for _ in range(times):
            team.send(span("d", run_id))
    found = team.admin.request("POST", "/policies/preview", body)["repeats"]
    assert (found["calls"], found["stopped_calls"], found["runs"]) == (7, 4, 2)
    assert [(each["run_id"], each["times"]) for each in found["worst"]] == [("r1", 4), ("r2", 2)]
    other = {"name": "x", "policy": {"document": {"tools_block": ["rm"]}}}
    assert team.admin.request("POST", "/policies/preview", other)["repeats"] is None


def test_the_command_sets_and_previews_rules(team: Tenant) -> None:
    def invoke(*arguments: str) -> Any:
        env = {"GUARD_API_URL": team.gateway.base_url, "GUARD_ADMIN_KEY": team.gateway.admin_key}
        words = ["policies", "set", "loops", *arguments, "--organisation", team.organisation_id]
        return CliRunner().invoke(command, words, env=env)

    assert (
        "--on-repeat notice begins to count" in invoke("--repeat", "search=1", "--preview").output
    )
    made = invoke("--repeat", "search=5", "--repeat", "find_*=5", "--repeat-model", "*=3")
    assert made.exit_code == 0, made.output
    (policy,) = team.admin.policies()
    assert policy["document"]["repeat_caps"] == [
        {"times": 5, "tools": ["search", "find_*"], "models": [], "on_repeat": "refuse"},
        {"times": 3, "tools": [], "models": ["*"], "on_repeat": "refuse"},
    ]
    invoke("--repeat", "search=5", "--on-repeat", "notice")
    for _ in range(3):
        team.send(span())
    text = invoke("--repeat", "search=1", "--on-repeat", "pause", "--preview").output
    assert "repeats: 2 of 3 calls since" in text
    assert "  search: 3 times the same in run r of w" in text
    for wrong in (("--repeat", "search"), ("--repeat", "=3"), ("--repeat", "a=0"),
                  ("--repeat", "a=x")):  # fmt: skip
        failed = invoke(*wrong)
        assert failed.exit_code == 2
        assert "write search=5" in failed.output
    assert invoke("--block-tool", "x", "--on-repeat", "pause").exit_code == 2
    assert json.dumps(team.admin.policies())


def test_the_command_sets_and_previews_acceleration(team: Tenant, clock: Clock) -> None:
    def invoke(*arguments: str) -> str:
        env = {"GUARD_API_URL": team.gateway.base_url, "GUARD_ADMIN_KEY": team.gateway.admin_key}
        words = ["policies", *arguments, "--organisation", team.organisation_id]
        done = CliRunner().invoke(command, words, env=env)
        assert done.exit_code == 0, done.output
        return done.output

    wanted = "set", "spend", "--on-accelerating-spend", "pause"
    assert "no run has spent anything in the last seven days" in invoke(*wanted, "--preview")
    spend(team, clock, *FASTER)
    clock.now_ms += 60_000
    spend(team, clock, 7.0)
    text = invoke(*wanted, "--preview")
    assert "1 of 1 runs since" in text
    assert "$7 was spent after that" in text
    assert "$20 in 5 minutes, usually $1; $7 after that" in text
    invoke(*wanted)
    assert "on_accelerating_spend: pause" in invoke("list")
    until(lambda: stops(team))


# -- the pure previews -----------------------------------------------------------------------------


def policy(*caps: RepeatCap) -> Policy:
    document = PolicyDocument(repeat_caps=list(caps))
    return Policy(policy_id="p", organisation_id="o", name="p", document=document)


counts = st.lists(
    st.builds(
        RepeatCount,
        run_id=st.sampled_from("ab"), workflow_id=st.just("w"), agent=st.none(),
        key_id=st.just("k"), kind=st.sampled_from(["tool", "model", "spend"]),
        subject=st.sampled_from(["search", "gpt-4o"]), allowed=st.integers(0, 9),
        seen=st.integers(0, 9), began_ms=st.integers(0, 99), last_ms=st.integers(0, 99),
    )
)  # fmt: skip


@given(counts, st.integers(1, 9))
def test_a_preview_stops_what_is_over_the_limit(found: list[RepeatCount], times: int) -> None:
    cap = RepeatCap(times=times, tools=["s*"], models=["gpt-4o"])
    preview = repeats.preview(policy(cap), found)
    over = [
        each.times - times
        for each in found
        if (each.kind, each.subject) in (("tool", "search"), ("model", "gpt-4o"))
    ]
    assert preview.stopped_calls == sum(max(0, each) for each in over)
    assert len(preview.worst) == min(repeats.WORST_MAX, sum(each > 0 for each in over))


@given(counts, st.integers(1, 9))
def test_a_larger_limit_never_stops_more(found: list[RepeatCount], times: int) -> None:
    smaller, larger = (
        repeats.preview(policy(RepeatCap(times=each, tools=["*"], models=["*"])), found)
        for each in (times, times + 1)
    )
    assert larger.stopped_calls <= smaller.stopped_calls
    assert larger.calls == smaller.calls


@given(
    st.dictionaries(st.integers(0, 120), st.sampled_from([1, 10**9, 5 * 10**9, 50 * 10**9])),
    st.integers(0, 120),
)
def test_a_preview_finds_a_run_when_the_watch_does(spent: dict[int, int], last: int) -> None:
    """The watch looks at the end of each minute, at what was spent until then."""
    minutes = {minute: cost for minute, cost in spent.items() if minute <= last}
    run = SpendOfRun(run_id="r", workflow_id="w", spent=minutes)
    document = PolicyDocument(on_accelerating_spend="pause")
    rule = Policy(policy_id="p", organisation_id="o", name="p", document=document)

    def steps(at: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for minute, cost in minutes.items():
            step = (at - minute) // 5
            if 0 <= step < acceleration.STEPS:
                found[step] = found.get(step, 0) + cost
        return found

    at = next((each for each in sorted(minutes) if acceleration.accelerates(steps(each))), None)
    found = acceleration.preview(rule, [run] if minutes else [])
    assert [each.at_ms for each in found.worst] == ([] if at is None else [(at + 1) * 60_000])
    later = 0 if at is None else sum(cost for minute, cost in minutes.items() if minute > at)
    assert found.after_nanousd == later
