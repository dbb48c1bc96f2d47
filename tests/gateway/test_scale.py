"""A million events and 100,000 workflows: work does not grow with what is stored."""

from __future__ import annotations

import itertools
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from guard.core import wire
from guard.gateway.domain.commands import GateCommand, IngestCommand, PricedEvent, RequestOrigin
from guard.gateway.domain.records import BudgetRule, EventSearch
from guard.gateway.ledger import catalogue
from guard.gateway.storage.sql import finding, latency
from guard.gateway.storage.sqlite.migrations import convert_0_7
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.state import within
from tests.support import large_store
from tests.support.made_once import made_once
from tests.support.store import ACTOR, decide, ingest

NOW = 1_800_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR
STEPS_MAX = 10_000
"""Steps of the database's machine for one command; a scan of any large table takes far more."""

OPENING_STEPS_MAX = 4_000_000
"""The same for the first call under budgets that are set in the middle of their periods."""

PAGE_STEPS_MAX = 12_500_000
DAYS_STEPS_MAX = 70_000_000
"""For 100,000 workflows of which nearly none comes twice a day: a million rows, 1 s."""

OF_QUARTERS = ("month", "models", "spend")
"""How the names of pages begin that read sums of quarter hours, and no events."""

NEWEST_STEPS_MAX = 50_000
"""For 200 events; for all of the small store it takes four times as many, and more."""

_numbers = itertools.count()


@pytest.fixture(scope="module", params=[
    pytest.param((20_000, 2_000), id="small"),
    pytest.param((1_000_000, 100_000), id="full", marks=pytest.mark.long),
])  # fmt: skip
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    events, workflows = request.param

    def make(folder: Path) -> None:
        path = folder / "g.sqlite3"
        large_store.make(path, events=events, workflows=workflows, now_ms=NOW, days=30)
        convert_0_7(path)

    return made_once(tmp_path_factory, f"scale{events}", make) / "g.sqlite3"


@pytest.fixture
def database(made: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy: what one test charges, sums and sweeps, another one would find."""
    path = tmp_path / "g.sqlite3"
    shutil.copyfile(made, path)
    yield path
    for each in tmp_path.glob(f"{path.stem}.*"):
        each.unlink()


@pytest_asyncio.fixture
async def storage(database: Path) -> AsyncIterator[SqliteStorage]:
    opened = SqliteStorage(database, clock_ms=lambda: NOW)
    await opened.open(lambda _: None)
    yield opened
    await opened.close()


@pytest.fixture
def readable(database: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(database)
    yield connection
    connection.close()


pytestmark = pytest.mark.timeout(600)


def request() -> RequestOrigin:
    return RequestOrigin(organisation_id="o", key_id="k1")


async def steps_of_writer(storage: SqliteStorage, work: Any) -> int:
    """Run commands; return the steps that the writer's connection has taken for them."""
    count = [0]
    unit = storage._unit
    assert unit is not None
    large_store.steps_of(unit.connection, count)
    try:
        await work
    finally:
        unit.connection.set_progress_handler(None, 0)
    return count[0]


@pytest.mark.asyncio
async def test_the_gate_and_the_charge_are_flat(storage: SqliteStorage) -> None:
    for kind in ("organisation", "workflow", "agent", "chain", "key", "model"):
        for window in ("hour", "day", "month", "total"):
            wanted = BudgetRule(budget_id="", organisation_id="o", scope_kind=kind,  # type: ignore[arg-type]
                                scope_id="" if kind == "organisation" else "*", window=window,  # type: ignore[arg-type]
                                limit=10**15)  # fmt: skip
            await storage.write(within(wanted.organisation_id), catalogue.put_budget, ACTOR, wanted)
    names: list[dict[str, str]] = [
        {"workflow_id": f"new{next(_numbers)}", "agent": f"new{next(_numbers)}"},
        {"workflow_id": "w5", "agent": "a5"},
        {"workflow_id": "w6", "agent": "a6", "chain_id": "c1"},
    ]
    for fields, most in itertools.product(names, (OPENING_STEPS_MAX, STEPS_MAX)):
        call = {name: value for name, value in fields.items() if name != "chain_id"}
        gate = GateCommand(
            request=request(),
            call=wire.GateRequest(call_id=f"c{next(_numbers)}", kind="call", function="f", **call),  # type: ignore[arg-type]
            declared_nanousd=5,
        )
        assert await steps_of_writer(storage, decide(storage, gate)) < most
        for model in ("m5", "new"):
            event = wire.Event(event_id=f"x{next(_numbers)}", type="llm", at_ms=1, **fields)  # type: ignore[arg-type]
            priced = PricedEvent(event, b"{}", cost=5, model=model)
            charge = IngestCommand(request=request(), events=[priced])
            assert await steps_of_writer(storage, ingest(storage, charge)) < most
    assert (await storage.verify_ledger()).problems == []


@pytest.mark.asyncio
async def test_the_old_file_upgrades_with_right_totals(
    storage: SqliteStorage, readable: sqlite3.Connection
) -> None:
    own = "FROM events WHERE organisation_id = 'o' AND"
    sums = (
        "SELECT count(*), sum(type = 'llm'), sum(type = 'tool'), sum(input_tokens),"
        f" sum(output_tokens), sum(cost_nanousd), sum(flags LIKE '%unpriced%') {own} "
    )
    for group, column, name in (("model", "model", "m5"), ("agent", "agent", "a7"),
                                ("chain", "chain_id", None), ("workflow", "workflow_id", "w11"),
                                ("run", "run_id", "r3"), ("key", "key_id", "k2")):  # fmt: skip
        expected = readable.execute(f"{sums} {column} IS ?", (name,)).fetchone()
        rows = await storage.usage("o", group, 0, 2**53, 1_000_000)
        (row,) = [row for row in rows if row.group == name]
        assert expected == (row.events, row.llm_calls, row.tool_calls, row.input_tokens,
                            row.output_tokens, row.cost_nanousd, row.unpriced)  # fmt: skip
    for since, until in ((0, 2**53), (NOW - 7 * DAY - 12_345, NOW - HOUR - 77), (NOW - 5, NOW)):
        expected = readable.execute(
            f"SELECT count(*), coalesce(sum(cost_nanousd), 0) {own} charged_at_ms >= ?"
            " AND charged_at_ms < ?",
            (since, until),
        ).fetchone()
        for group in ("total", "type", "model", "provider", "day", "hour"):
            rows = await storage.usage("o", group, since, until, 1000)
            assert expected == (sum(r.events for r in rows), sum(r.cost_nanousd for r in rows))


@pytest.mark.asyncio
async def test_scopes_between_two_times_agree_with_their_events(
    storage: SqliteStorage, readable: sqlite3.Connection
) -> None:
    names = {"workflow": "workflow_id", "run": "run_id", "agent": "agent", "chain": "chain_id",
             "key": "key_id"}  # fmt: skip
    times = ((NOW - 7 * DAY - 12_345, NOW - HOUR - 77), (NOW - 20 * DAY, NOW - 17 * DAY),
             (NOW - 9 * HOUR, NOW - 8 * HOUR), (NOW, NOW - DAY), (5, NOW + DAY))  # fmt: skip
    expected = {
        (group, since, until): readable.execute(
            f"SELECT {column} AS grp, count(*), sum(type = 'llm'), sum(type = 'tool'),"
            " sum(input_tokens), sum(output_tokens), sum(cost_nanousd) AS cost,"
            " sum(flags LIKE '%unpriced%') FROM events WHERE organisation_id = 'o'"
            " AND charged_at_ms >= ? AND charged_at_ms < ? GROUP BY grp"
            " ORDER BY cost DESC, count(*) DESC, grp LIMIT 50",
            (since, until),
        ).fetchall()
        for group, column in names.items()
        for since, until in times
    }
    for (group, since, until), rows in expected.items():
        found = await storage.usage("o", group, since, until, 50)
        assert rows == [
            (r.group, r.events, r.llm_calls, r.tool_calls, r.input_tokens, r.output_tokens,
             r.cost_nanousd, r.unpriced) for r in found
        ], (group, since, until)  # fmt: skip


_WEEK = (NOW - 7 * DAY, NOW)


def _pages(storage: SqliteStorage) -> dict[str, Any]:
    return {
        **{f"usage by {group}": storage.usage("o", group, 0, 2**53, 100)
           for group in ("workflow", "run", "agent", "chain", "key", "model", "provider", "type",
                         "hour", "day", "total")},
        **{f"usage of 30 days by {group}": storage.usage("o", group, NOW - 30 * DAY + 1, NOW, 100)
           for group in ("workflow", "run", "agent", "chain", "key")},
        "usage of 30 days by model": storage.usage("o", "model", NOW - 30 * DAY + 1, NOW, 100),
        "ledger": storage.balances("o", current_only=False, limit=1000),
        "fullest": storage.fullest_balances("o", 200),
        "month": storage.spend_over_time("o", HOUR, NOW - 30 * DAY, NOW + 1, DAY, None),
        "month of one": storage.spend_over_time("o", HOUR, NOW - 30 * DAY, NOW + 1, DAY, "w5"),
        "models": storage.usage_by_model("o", NOW - 30 * DAY, NOW, None, 6),
        "models of one": storage.usage_by_model("o", NOW - 30 * DAY, NOW, "w5", 6),
        "workflows": storage.workflow_page("o", "", "seen", 0, 100),
        "search": storage.workflow_page("o", "nothing", "seen", 0, 100),
        "workflows of a week": storage.workflow_page("o", "", "spend", 0, 100, _WEEK),
        "refusals of a week": storage.refusals("o", None, 2**62, 100, within=_WEEK),
        "audit of a week": storage.newest_audit("o", 2**62, 100, with_gateway=True, within=_WEEK),
        "latency of a week": storage.latency("o", *_WEEK),
        "events": storage.newest_events("o", 2**62, 51),
        "events of a type": storage.events("o", 0, 100, None, "none"),
        "events of a run": storage.newest_events(
            "o", 2**62, 51, EventSearch(workflow_id="w5", run_id="none")
        ),
        "events that are sought": storage.newest_events(
            "o", 2**62, 51, EventSearch(
                user="u5", tag=("team", "none"), model="none", cost_nanousd=1,
                since_ms=NOW - 30 * DAY, until_ms=NOW - 20 * DAY,
            )
        ),
        "runs": storage.runs("o", None, "", 100),
        "runs of one": storage.runs("o", "w5", "", 100),
        "known": storage.target_exists("o", "w*", None),
        "known one": storage.target_exists("o", "w5", None),
        "named": storage.count_targets("o", "w*"),
        "named one": storage.count_targets("o", "w5"),
        "approvals": storage.approvals("o", None, 100),
        "deliveries": storage.deliveries("o", 100),
        "charges": storage.newest_charges("o", "model", 1000),
        "find": storage.find("o", "r1", 11),
        "latency": storage.latency("o", 0, 2**53),
        "tags": storage.tag_names("o", 50),
        "balances of one": storage.balances_of("o", [("workflow", "w5")], 8),
    } | {
        f"{what} {group}": read
        for group in ("model", "workflow", "agent", "user", "tag:team")
        for what, read in (
            ("spend by", storage.spend_by("o", group, _NEW_YORK_DAYS, 7)),
            ("spend of one", storage.spend_of("o", group, "w5", _NEW_YORK_DAYS)),
            ("events of one", storage.events_of_scope("o", group, "w5", 50)),
        )
    }  # fmt: skip


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps of the database's machine reports have taken, in one number."""
    found, seen = [0], set[int]()
    report = SqliteStorage.report

    async def counted(self: SqliteStorage, work: Any) -> Any:
        def on(reading: Any) -> Any:
            if id(reading) not in seen:
                seen.add(id(reading))
                large_store.steps_of(reading.sqlite, found)
            return work(reading)

        return await report(self, on)

    monkeypatch.setattr(SqliteStorage, "report", counted)
    return found


_NEW_YORK_DAYS = [NOW - NOW % DAY + 5 * HOUR + at * DAY for at in range(-90, 2)]


@pytest.mark.asyncio
async def test_pages_do_not_go_through_the_events(
    storage: SqliteStorage, count: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No page scans a large table, and none takes the steps that a walk over all events takes."""
    plans: list[tuple[str, str]] = []
    report = SqliteStorage.report

    async def explained(self: SqliteStorage, work: Any) -> Any:
        def planned(reading: Any) -> Any:
            rows = reading.rows

            def explain(sql: str, *arguments: Any) -> Any:
                steps = rows(f"EXPLAIN QUERY PLAN {sql}", *arguments)
                plans.extend((sql, step[3]) for step in steps)
                return rows(sql, *arguments)

            reading.rows = explain
            try:
                return work(reading)
            finally:
                del reading.rows

        return await report(self, planned)

    monkeypatch.setattr(SqliteStorage, "report", explained)
    steps = {}
    for name, page in _pages(storage).items():
        before, first = count[0], len(plans)
        await page
        steps[name] = count[0] - before
        if name.startswith(OF_QUARTERS):
            assert not any("FROM events" in sql for sql, _ in plans[first:]), name
    allowed = dict.fromkeys(steps, PAGE_STEPS_MAX)
    for group in ("workflow", "run", "chain", "agent"):
        allowed[f"usage of 30 days by {group}"] = DAYS_STEPS_MAX
    allowed["spend by workflow"] = DAYS_STEPS_MAX
    assert {name: number for name, number in steps.items() if number > allowed[name]} == {}
    assert plans
    large = re.compile(r"SCAN (e|events|usage)\b")
    assert [(sql, step) for sql, step in plans if large.match(step)] == []


@pytest.mark.asyncio
async def test_a_page_of_the_newest_events_reads_no_others(
    storage: SqliteStorage, count: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latencies, and a page of what no index of the events knows: 3 s at 200,000 a week."""
    monkeypatch.setattr(latency, "LOOKED_AT_MAX", 200)
    monkeypatch.setattr(finding, "SCAN_MAX", 200)
    report = await storage.latency("o", 0, 2**53)
    assert (report.looked_at, report.is_cut) == (200, True)
    assert 0 < count[0] < NEWEST_STEPS_MAX
    for group, name in (("model", "m5"), ("agent", "a5"), ("workflow", "w5"), ("tag:team", "t3")):
        before = count[0]
        found = await storage.events_of_scope("o", group, name, 50)
        assert found.is_cut
        assert count[0] - before < NEWEST_STEPS_MAX, group
