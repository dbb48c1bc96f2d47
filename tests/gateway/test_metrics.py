"""Metrics: each documented one is served, and says what happened."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import guard
from guard.gateway.domain.records import BudgetRule, Webhook
from guard.gateway.domain.statistics import MoneySample, Spent, TimeByOrganisation
from guard.gateway.embedded import Gateway, run_gateway
from guard.gateway.ledger import catalogue, directory, webhooks
from guard.gateway.storage.postgres import engine as postgres_engine
from guard.gateway.storage.postgres.store import PostgresStorage
from guard.gateway.storage.sql import money_samples, samples
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.decision_counts import Tally
from guard.gateway.unit.state import NO_ORGANISATION, within
from tests.gateway.conftest import Tenant, new_tenant
from tests.support import postgres
from tests.support.asker import ask, asker, call
from tests.support.prometheus import METRICS_KEY, metrics_of
from tests.support.store import ACTOR, DAY, Clock, Store
from tests.support.waiting import until

Make = Callable[..., PostgresStorage | SqliteStorage]
PAGE = Path(__file__).parents[2] / "docs" / "gateway" / "metrics.md"
_ROW = re.compile(r"^\| `(guard_gateway_\w+)` \| (\w+)(?:: ([\w, ]+))? \| (.+) \|$", re.MULTILINE)


@pytest.fixture(params=["sqlite", "postgres"])
def make(request: pytest.FixtureRequest) -> Make:
    """Make a store of each engine in a folder."""
    if request.param == "postgres":
        return postgres.store
    return lambda folder, **options: SqliteStorage(folder / "g.sqlite3", **options)


def scraped(base_url: str) -> dict[str, float]:
    """Return every sample, by its name with its labels."""
    text = metrics_of(base_url)
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


@attrs.frozen
class Family:
    """One row of the page."""

    type: str
    labels: frozenset[str]
    text: str


def documented() -> dict[str, Family]:
    """Return the families of the page."""
    return {
        name: Family(kind, frozenset(filter(None, labels.strip().split(", "))), text)
        for name, kind, labels, text in _ROW.findall(PAGE.read_text())
    }


def served(database: str | Path) -> dict[str, Family]:
    """Return the families of a gateway on which everything has happened that is counted."""
    with run_gateway(database, sweep_interval_ms=50, metrics_key=METRICS_KEY) as gateway:
        tenant = new_tenant(gateway)
        happen(tenant)
        until(lambda: "guard_gateway_budget_limit{" in page_of(gateway))
        page = page_of(gateway)
        tenant.http.close()
        tenant.admin.close()
    families = {}
    for found in text_string_to_metric_families(page):
        if found.name.startswith("guard_gateway_"):
            name = found.name + "_total" * (found.type == "counter")
            labels = {label for sample in found.samples for label in sample.labels} - {"le"}
            families[name] = Family(found.type, frozenset(labels), found.documentation)
    return families


def page_of(gateway: Gateway) -> str:
    return metrics_of(gateway.base_url)


def happen(tenant: Tenant) -> str:
    """Have a call decided, a refusal, a kill, an approval, a raise, a loop; return the budget."""
    budget = tenant.admin.set_budget(limit_tokens=1000, on_exhausted="ask", wind_down_percent=20)
    tenant.admin.raise_budget(budget["budget_id"], 500, unit="tokens")
    tenant.allowed()
    tenant.admin.set_policy(tools_block=["rm"], approval_tools=["pay"])
    assert tenant.gate(tool_name="rm").status_code == 403
    assert tenant.gate(tool_name="pay").json()["decision"] == "pending"
    tenant.gate(kind="llm", model="m", max_input_tokens=100, max_output_tokens=500)
    tenant.admin.directive("kill", "other")
    tenant.admin.set_policy("loops", repeat_caps=[{"times": 1, "tools": ["again"]}])
    again = {"tool_name": "again", "run_id": "r", "digest": "d"}
    assert [tenant.gate(**again).status_code for _ in range(2)] == [200, 403]
    return str(budget["budget_id"])


@pytest.mark.parametrize(
    "given", [None, "Bearer", f"Bearer {METRICS_KEY}x", METRICS_KEY, f"Basic {METRICS_KEY}"]
)
def test_who_has_no_key_gets_none(gateway: Gateway, given: str | None) -> None:
    """They say what every organisation spends."""
    headers = {} if given is None else {"Authorization": given}
    reply = httpx.get(f"{gateway.base_url}/metrics", headers=headers)
    assert (reply.status_code, reply.json()["error_code"]) == (401, "GD-A003")
    assert reply.headers["www-authenticate"].startswith("Bearer")
    assert "guard_gateway" not in reply.text


def test_no_key_of_the_gateway_opens_them(tenant: Tenant) -> None:
    """Prometheus holds no key that may do anything else, and theirs see their organisation only."""
    for key in (tenant.gateway.admin_key, tenant.api_key):
        headers = {"Authorization": f"Bearer {key}", "X-API-Key": key}
        assert httpx.get(f"{tenant.gateway.base_url}/metrics", headers=headers).status_code == 401


def test_without_a_key_in_the_settings_nobody_gets_them(tmp_path: Path) -> None:
    with run_gateway(tmp_path / "g.sqlite3") as gateway:
        reply = httpx.get(f"{gateway.base_url}/metrics", headers={"Authorization": "Bearer"})
        assert reply.status_code == 401
        assert "metrics_key" in reply.json()["detail"]


@pytest.fixture
def brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Money is read soon again, also where a busy machine takes long to read it once."""
    monkeypatch.setattr(money_samples, "PAUSES", 1)


@pytest.mark.usefixtures("brief_pauses")
def test_the_page_lists_what_is_served(tmp_path: Path) -> None:
    assert served(tmp_path / "g.sqlite3") == documented()


@pytest.mark.usefixtures("brief_pauses")
def test_replicas_serve_the_same_but_for_the_log(tmp_path: Path) -> None:
    known = documented()
    del known["guard_gateway_log_bytes"]
    assert served(postgres.url_of(tmp_path)) == known


def test_every_name_in_the_page_is_a_metric() -> None:
    text = PAGE.read_text()
    known = {row[0] for row in _ROW.findall(text)}
    for name in re.findall(r"guard_gateway_\w+", text):
        assert re.sub(r"_(sum|count|bucket)$", "", name) in known or name in known


@pytest.mark.asyncio
async def test_leases_and_their_money(tmp_path: Path) -> None:
    clock = Clock()
    with run_gateway(
        tmp_path / "g.sqlite3", clock_ms=clock, sweep_interval_ms=20, metrics_key=METRICS_KEY
    ) as gateway:
        tenant = await asyncio.to_thread(new_tenant, gateway)
        body = call(1, lease={"demand_nanousd": 2_000_000_000, "demand_calls": 4})
        async with asker(gateway.base_url, tenant.api_key) as client:
            [(_, reply)] = await client.ask(ask("a", body))
            found = await asyncio.to_thread(scraped, gateway.base_url)
            assert found["guard_gateway_control_sockets"] == 1
            assert found["guard_gateway_leases"] == 1
            held = reply["lease"]["granted_nanousd"]
            assert found["guard_gateway_leased_usd"] == pytest.approx(held / 1e9)
            assert found["guard_gateway_leased_usd"] >= 2
            assert found["guard_gateway_expired_reservations_total"] == 0
        clock.now += DAY
        ended = {
            "guard_gateway_leases": 0,
            "guard_gateway_leased_usd": 0,
            "guard_gateway_expired_reservations_total": 1,
            "guard_gateway_control_sockets": 0,
        }
        await asyncio.to_thread(until, lambda: ended.items() <= scraped(gateway.base_url).items())
        tenant.http.close()
        tenant.admin.close()


def test_the_writers_figures_agree(gateway: Gateway, tenant: Tenant) -> None:
    tenant.allowed()
    size, name = "guard_gateway_group_commands", "guard_gateway_commit_seconds"

    def agreeing() -> dict[str, float] | None:
        found = scraped(gateway.base_url)  # maybe while the writer's thread counts a commit
        return found if found[f"{size}_count"] == found[f"{name}_count"] > 0 else None

    found = until(agreeing)
    assert found is not None
    assert found[f"{size}_sum"] >= found[f"{size}_count"]
    assert found["guard_gateway_lock_wait_seconds_sum"] > 0
    until(lambda: scraped(gateway.base_url)["guard_gateway_database_bytes"] > 0)
    assert found['guard_gateway_pool_connections_max{pool="reports"}'] == 2
    in_use = 'guard_gateway_pool_connections_in_use{pool="lookups"}'
    until(lambda: scraped(gateway.base_url)[in_use] == 0)
    assert found[f'guard_gateway_build_info{{version="{guard.__version__}"}}'] == 1


@pytest.mark.asyncio
async def test_what_a_socket_is_refused_is_counted_as_over_http(
    gateway: Gateway, tenant: Tenant
) -> None:
    def counted(route: str, status: int) -> float:
        name = f'guard_gateway_answers_total{{route="{route}",status="{status}"}}'
        return scraped(gateway.base_url).get(name, 0.0)

    asked = ("/gate", 400), ("/gate/release", 404), ("/gate/lease", 400)
    before = [await asyncio.to_thread(counted, *each) for each in asked]
    async with asker(gateway.base_url, tenant.api_key) as client:
        told = await client.ask(
            ask("a", {"kind": "call"}),
            ask("b", {"reservation_id": "unknown"}, "gate/release"),
            ask("c", {}, "gate/lease"),
        )
    assert [status for status, _ in told] == [status for _, status in asked]
    after = [await asyncio.to_thread(counted, *each) for each in asked]
    assert after == [count + 1 for count in before]


@pytest.mark.asyncio
async def test_a_slow_report_is_in_use_and_others_wait(make: Make, tmp_path: Path) -> None:
    storage = make(tmp_path)
    await storage.open(lambda _: None)
    go_on = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(_: Any) -> None:
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(60)

    reports = [asyncio.create_task(storage.report(slow)) for _ in range(3)]
    await asyncio.sleep(0)
    use = storage.statistics()["pools"]["reports"]
    assert (use.size, use.in_use, use.waiting) == (2, 2, 1)
    go_on.set()
    await asyncio.gather(*reports)
    assert storage.statistics()["pools"]["reports"].in_use == 0
    await storage.close()
    assert storage.statistics() == {}, "and a scrape of a closed store is no error"


@pytest.mark.asyncio
async def test_the_lag_of_retention_and_the_backlog(make: Make, tmp_path: Path) -> None:
    clock = Clock()
    storage = make(tmp_path, clock_ms=clock, retention_days=40)
    await storage.open(lambda _: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    store = Store(storage, clock, org, lambda: None, [])
    hook = Webhook(webhook_id="", organisation_id=org, url="https://hooks.example/")
    await storage.write(within(hook.organisation_id), webhooks.put, ACTOR, hook, "secret")
    for number in range(2):
        await store.charge(f"e{number}", 1)
        await storage.write(within(org), webhooks.enqueue, org, "budget.threshold", {})
    clock.now += 100 * DAY
    found = await storage.look_up(lambda reading: samples.read(reading, clock.now, 40 * DAY))
    assert found.retention_lag_s >= 60 * 86_400, "and never a day of the current month"
    assert found.webhook_backlog == 2
    never = await storage.look_up(lambda reading: samples.read(reading, clock.now, 0))
    assert never.retention_lag_s == 0
    await storage.sweep()  # samples, and deletes
    assert storage.statistics()["webhook_backlog"] == 2
    await storage.close()


@pytest.mark.asyncio
async def test_what_is_open_is_counted_less_often_where_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    storage = postgres.store(tmp_path, clock_ms=clock)
    await storage.open(lambda _: None)
    counted, pause_s, now_s = 0, 0.0, 1000.0
    sampled = []

    storage._next_money_ms = 2**62

    async def report(*_: Any) -> list[Any]:
        nonlocal counted, now_s
        counted += 1
        now_s += pause_s
        return [(counted, 0, 0, 0)]

    monkeypatch.setattr(storage, "report", report)
    # On a busy machine any count may take long.
    monkeypatch.setattr(postgres_engine, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(postgres_engine, "COUNT_PAUSES", 5)
    for pause_s in (0.0, 0.0, 0.2, 0.0):  # noqa: B007  # the report above reads it
        clock.now += samples.INTERVAL_MS
        await storage.sample()
        sampled.append(counted)
    assert sampled == [1, 2, 3, 3], "not right after one that took long"
    assert storage.statistics()["open_reservations"] == counted
    for passed_s in (0.9, 0.2):  # five times as long as the count took
        assert counted == 3
        now_s += passed_s
        clock.now += samples.INTERVAL_MS
        await storage.sample()
    assert storage.statistics()["open_reservations"] == counted == 4
    await storage.close()


def test_time_is_counted_by_organisation(gateway: Gateway, tenant: Tenant) -> None:
    name = f'guard_gateway_organisation_commands_total{{organisation="{tenant.organisation_id}"}}'
    other = 'guard_gateway_organisation_commands_total{organisation="other"}'

    def commands() -> float:
        found = scraped(gateway.base_url)
        return found.get(name, 0.0) + found[other]

    before = commands()
    for _ in range(5):
        tenant.allowed()
    assert commands() >= before + 5


def test_only_some_organisations_have_a_name_and_no_sum_falls() -> None:
    times = TimeByOrganisation(named=3, known=10)
    last: dict[str, Spent] = {}
    total = commands = 0
    for number in range(3000):
        own = f"o{number % 50}" if number % 3 else f"dear{number // 1000}"
        seconds = 100 if own.startswith("dear") else 1
        times.add(own, seconds)
        total, commands = total + seconds, commands + 1
        now = times.read()
        assert len(now) <= 4
        assert sum(each.seconds for each in now.values()) == total
        assert sum(each.commands for each in now.values()) == commands
        assert all(now[own].seconds >= last[own].seconds for own in now.keys() & last.keys())
        last = now
    assert {"dear0", "dear1", "dear2"} <= last.keys()


@pytest.mark.usefixtures("brief_pauses")
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_money_and_decisions(engine: str, tmp_path: Path) -> None:
    database = tmp_path / "g.sqlite3" if engine == "sqlite" else postgres.url_of(tmp_path)
    with run_gateway(database, sweep_interval_ms=50, metrics_key=METRICS_KEY) as gateway:
        tenant = new_tenant(gateway)
        budget_id = happen(tenant)
        tenant.admin.set_budget(50, scope_kind="user", scope_id="*", window="day")
        for user, cents in (("secret-ada", 20), ("secret-bob", 45)):
            assert tenant.send(tenant.llm(cents * 10**7, user=user)).status_code == 202
        own = tenant.organisation_id

        def of(name: str, budget: str) -> float | None:
            values = [
                value for key, value in found.items()
                if key.startswith(f"guard_gateway_budget_{name}{{") and budget in key
            ]  # fmt: skip
            return values[0] if len(values) == 1 else None

        found: dict[str, float] = {}

        def is_read() -> bool:
            found.clear()
            found.update(scraped(gateway.base_url))
            spent = f'guard_gateway_spent_usd_total{{organisation="{own}"}}'
            # Balances are read a moment before the sums: the last charge may come between them.
            return round(found.get(spent, 0), 6) == 0.65 and of("spent", 'unit="usd"') == 0.45

        until(is_read)
        page = page_of(gateway)
        tenant.http.close()
        tenant.admin.close()
    assert (of("limit", budget_id), of("kept", budget_id)) == (1500.0, 300.0)
    assert (of("set_aside", budget_id), of("spent", budget_id)) == (600.0, 0.0)
    assert (of("spent", 'unit="usd"'), of("limit", 'unit="usd"')) == (0.45, 0.5), "the fullest"
    assert found["guard_gateway_budgets"] == 2
    assert found[f'guard_gateway_llm_requests_total{{organisation="{own}"}}'] == 2
    assert found['guard_gateway_refusals_total{code="GD-T001"}'] == 2
    assert found['guard_gateway_loops_total{kind="tool"}'] == 1
    assert found['guard_gateway_directives_total{action="kill"}'] == 1
    assert found['guard_gateway_approvals_total{status="requested"}'] == 1
    assert found['guard_gateway_budget_raises_total{unit="tokens"}'] == 1
    assert found["guard_gateway_approvals_pending"] == 1
    assert "secret" not in page, "no names, since the page takes no key"


@pytest.mark.asyncio
async def test_only_so_many_budgets_and_organisations_are_shown(make: Make, tmp_path: Path) -> None:
    storage = make(tmp_path)
    await storage.open(lambda _: None)
    for number in range(money_samples.ORGANISATIONS_MAX + 3):
        made = await storage.write(
            NO_ORGANISATION, directory.create_organisation, ACTOR, f"organisation {number}"
        )
        own = made.organisation_id
        for limit in range(6):
            budget = BudgetRule(
                budget_id="", organisation_id=own, scope_kind="user", scope_id=f"u{limit}",
                window="total", limit=100 + limit,
            )  # fmt: skip
            await storage.write(within(own), catalogue.put_budget, ACTOR, budget)
            store = Store(storage, Clock(), own, lambda: None, [])
            await store.charge(f"e{limit}", number, user=f"u{limit}")
    found = await storage.look_up(lambda reading: money_samples.read(reading, 0))
    assert len(found.spent) == money_samples.ORGANISATIONS_MAX + 1
    assert sum(each.nanousd for each in found.spent.values()) == 6 * sum(range(23))
    assert found.spent[""].nanousd == 6 * (20 + 21 + 22), "those that were made last"
    assert found.budget_count == 23 * 6
    assert len(found.budgets) == money_samples.BUDGETS_MAX
    shares = [view.committed / view.limit for _, view in found.budgets]
    assert shares == sorted(shares, reverse=True)
    assert len({view.budget_id for _, view in found.budgets}) == money_samples.BUDGETS_MAX
    await storage.close()


def test_what_is_undone_is_not_counted() -> None:
    undo: list[Any] = []
    tally = Tally(undo.append)
    tally.add("refusal", "GD-B004")
    tally.add("refusal", "GD-T001")
    undo.pop()()
    assert not tally.counts
    tally.committed()
    tally.add("refusal", "GD-T001")
    tally.forget()
    tally.committed()
    assert tally.counts == {("refusal", "GD-B004"): 1}


@pytest.mark.asyncio
async def test_money_is_read_less_often_where_that_takes_long(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    storage = make(tmp_path, clock_ms=clock)
    await storage.open(lambda _: None)
    took_ms, read = 200, []
    really = money_samples.read

    def slow(reading: Any, now_ms: int) -> MoneySample:
        if now_ms != clock.now:
            return really(reading, now_ms)  # the gateway of other tests, which goes on
        read.append(now_ms)
        clock.now += took_ms
        return MoneySample(asks=len(read))

    monkeypatch.setattr(money_samples, "read", slow)
    seen = []
    for _ in range(5):
        clock.now += samples.INTERVAL_MS
        await storage.sample()
        seen.append(storage.statistics()["money"].asks)
    assert seen == [1, 1, 2, 2, 3], "fifty times as long as it took is two intervals"
    await storage.close()
