"""Weeks of the same work: with a retention, no table that it covers grows for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from guard.core import wire
from guard.gateway.domain.commands import ReleaseCommand
from guard.gateway.ledger import asks, catalogue, directory
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.state import NO_ORGANISATION, within
from tests.support import postgres
from tests.support.store import ACTOR, DAY, Clock, Store, release
from tests.support.store_dump import dump

KEEP_DAYS: Final = 40
WEEKS: Final = 20
SETTLED: Final = 12
"""From this week on, as much leaves as comes."""

GROW: Final = {
    "control": "its newest 5000 messages stay",
    "usage": "an organisation's quarter hours and totals stay; those of workflows for 400 days",
}  # fmt: skip


async def _week(store: Store, number: int, standing: str) -> None:
    """A week's calls, charges, raises, and budgets that come and go."""
    for day in range(7):
        name = f"{number}-{day}"
        names = {"workflow_id": "w", "run_id": f"r{name}", "agent": "a"}
        held = wire.decode((await store.gate(10, key=f"g{name}", **names)).body, wire.GateReply)
        assert held.reservation_id is not None
        await store.charge(f"e{name}", 7, reservation_id=held.reservation_id, **names)
        request = store.request(f"g{name}-release")
        await release(
            store.storage, ReleaseCommand(request=request, reservation_id=held.reservation_id)
        )
        await store.storage.write(
            within(store.org), asks.raise_budget, ACTOR, store.org, standing,
            by=1, raise_key=f"k{name}",
        )  # fmt: skip
        store.clock.now += DAY
    passing = await store.budget(10**6, scope_kind="agent", scope_id="a", window="day")
    assert (await store.gate(1, key=f"p{number}", agent="a")).status == 200
    await store.storage.write(
        within(store.org), catalogue.delete_budget, ACTOR, store.org, passing.budget_id
    )
    for _ in range(60):
        await store.storage.sweep()


@pytest.mark.asyncio
@pytest.mark.generator("tables over simulated weeks")
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_weeks_of_the_same_work_leave_as_many_rows(
    engine: str, tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    clock = Clock()
    if engine == "sqlite":
        database = str(tmp_path / "gateway.sqlite3")
        storage = SqliteStorage(Path(database), clock_ms=clock, retention_days=KEEP_DAYS)
    else:
        database = postgres.url_of(tmp_path)
        storage = postgres.store(tmp_path, clock_ms=clock, retention_days=KEEP_DAYS)
    await storage.open(lambda _: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    store = Store(storage, clock, org, lambda: None, [])
    standing = await store.budget(10**9, window="day")
    await store.budget(10**9, scope_kind="workflow", scope_id="*", window="day")
    counts: list[dict[str, int]] = []
    for number in range(WEEKS):
        await _week(store, number, standing.budget_id)
        counts.append({name: len(rows) for name, rows in dump(database).items()})
    report = await storage.verify_ledger()
    await storage.close()
    assert report.problems == []
    after = counts[-1]
    grown = {
        name: [each[name] for each in counts]
        for name in after
        # A week's rows more or less: retention ends on days, and months begin on any.
        if after[name] > max(each[name] for each in counts[SETTLED - 4 : SETTLED]) + 8
    }
    assert set(grown) <= set(GROW), grown
    count_cases(len(after))
