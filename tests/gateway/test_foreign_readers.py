"""A backup is read over each boundary of time, and nobody waits for it."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from guard.core import wire
from guard.gateway.domain.windows import HOUR_MS
from guard.gateway.ledger import directory
from guard.gateway.storage.port import Storage
from guard.gateway.unit.state import NO_ORGANISATION
from tests.support import postgres
from tests.support.foreign_reader import reading
from tests.support.store import ACTOR, DAY, Clock, Store

PERIOD_MS = 12 * HOUR_MS
KEPT_DAYS = 40


def _at(year: int, month: int, day: int, hour: int = 0) -> int:
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp()) * 1000


BOUNDARIES = {
    "an hour": _at(2027, 3, 9, 15),
    "noon": _at(2027, 3, 9, 12),
    "midnight": _at(2027, 3, 10),
    "a week": _at(2027, 3, 15),
    "a month": _at(2027, 4, 1),
    "a year": _at(2028, 1, 1),
    "a leap day": _at(2028, 2, 29),
}
"""Where replays turn, windows of budgets end, and rollups and retention have a day's work."""


@pytest_asyncio.fixture
async def store(storage_factory: Callable[..., Storage], tmp_path: Path) -> AsyncIterator[Store]:
    clock = Clock(_at(2026, 9, 1))

    def make() -> Storage:
        return storage_factory(
            tmp_path, clock_ms=clock, retention_days=KEPT_DAYS, audit_retention_days=KEPT_DAYS
        )

    made = make()
    await made.open(lambda _: None)
    org = (
        await made.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id

    async def reopen() -> None:
        await store.storage.close()
        store.storage = make()
        await store.storage.open(lambda _: None)

    store = Store(made, clock, org, reopen, [])
    yield store
    assert (await store.storage.verify_ledger()).problems == []
    await store.storage.close()


async def _work(store: Store, name: str) -> int:
    """Do all that calls do, and sweep; return how many were answered with success."""
    done = 0
    for number in range(3):
        label = f"{name}-{number}"
        reply = await store.gate(5, key=label, workflow_id=label, run_id=label)
        done += reply.status == 200
        repeated = await store.gate(5, key=label, workflow_id=label, run_id=label)
        done += (repeated.status, repeated.replay) == (200, True)
        held = wire.decode(reply.body, wire.GateReply).reservation_id
        charged = await store.charge(label, 5, key=f"e-{label}", reservation_id=held)
        done += charged.status == 202
        # Left open: the sweep after the boundary has something to close.
        done += (await store.gate(1, key=f"open-{label}")).status == 200
        await store.storage.sweep()
    return done


@pytest.mark.asyncio
@pytest.mark.generator("boundaries of time beside a foreign reader")
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("since", ["before", pytest.param("long before", marks=pytest.mark.long)])
async def test_calls_go_on_while_a_backup_is_read(
    store: Store, tmp_path: Path, boundary: str, since: str
) -> None:
    for window in ("hour", "day", "month", "total"):
        await store.budget(1_000_000, window=window)
    at_ms = BOUNDARIES[boundary]
    # What retention and the sweep have to take away at the boundary.
    store.clock.now = at_ms - (PERIOD_MS if since == "before" else (KEPT_DAYS + 40) * DAY) - 5000
    assert await _work(store, "old") == 12
    store.clock.now = at_ms - 1000
    assert await _work(store, "before") == 12
    with reading(store.storage, tmp_path):
        assert await _work(store, "beside") == 12
        for step in (1000, 1000, HOUR_MS, PERIOD_MS, PERIOD_MS):
            store.clock.now += step
            assert await _work(store, f"after-{store.clock.now}") == 12
    assert await _work(store, "afterwards") == 12


@pytest.mark.asyncio
async def test_answers_live_for_half_a_day_whenever_the_tables_turn(
    store: Store, tmp_path: Path
) -> None:
    """A backup delays the turn; the next one comes as long after it as an answer has to live."""
    store.clock.now = BOUNDARIES["noon"] - 1000
    await store.storage.sweep()
    with reading(store.storage, tmp_path):
        store.clock.now += 5 * HOUR_MS
        await store.storage.sweep()
    store.clock.now += 120_000
    first = await store.gate(7, key="just before a turn")
    await store.storage.sweep()
    for _ in range(11):
        store.clock.now += HOUR_MS
        await store.storage.sweep()
        assert (await store.gate(7, key="just before a turn")).body == first.body
    for _ in range(26):
        store.clock.now += HOUR_MS
        await store.storage.sweep()
    assert not (await store.gate(7, key="just before a turn")).replay


@pytest.mark.asyncio
async def test_replicas_turn_together(tmp_path: Path) -> None:
    """Whichever of them empties the older table, the other stops writing to it."""
    clock = Clock(BOUNDARIES["noon"] - 1000)
    pair = [postgres.store(tmp_path, clock_ms=clock) for _ in range(2)]
    for each in pair:
        await each.open(lambda _: None)
    first = pair[0]
    org = (
        await first.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    stores = [Store(each, clock, org, lambda: None, []) for each in pair]
    for _ in range(4):
        for each in (*pair, *pair):
            await each.sweep()
        bodies = [
            (await each.gate(7, key=f"{clock.now}-{n}")).body for n, each in enumerate(stores)
        ]
        clock.now += PERIOD_MS - 2000
        for each in pair:
            await each.sweep()
        again = [
            (await each.gate(7, key=f"{clock.now - PERIOD_MS + 2000}-{n}")).body
            for n, each in enumerate(stores)
        ]
        assert again == bodies
        clock.now += 2000
    for each in pair:
        await each.close()


@pytest.mark.asyncio
async def test_calls_go_on_beside_pg_dump(tmp_path: Path) -> None:
    clock = Clock(BOUNDARIES["midnight"] - 1000)
    made = postgres.store(tmp_path, clock_ms=clock)
    await made.open(lambda _: None)
    org = (
        await made.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    store = Store(made, clock, org, lambda: None, [])
    assert await _work(store, "before") == 12
    for number in range(200):  # more than the pipe takes
        await store.gate(1, key=f"k{number}", workflow_id="w" * 100)
    # Nobody reads what it writes, so it does not end.
    schema = await made.report(lambda each: each.rows("SELECT current_schema()")[0][0])
    command = ["pg_dump", "--schema", schema, postgres.dsn_of(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as dump:  # noqa: ASYNC220 (left running)
        try:
            assert dump.stdout is not None
            dump.stdout.read(1)
            for step in (2000, DAY, DAY):
                clock.now += step
                assert await _work(store, f"{clock.now}") == 12
            assert dump.poll() is None
        finally:
            dump.kill()
    await made.close()
