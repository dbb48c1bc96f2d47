"""Beside the traffic: backup, the write-ahead log, retention."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from guard.core import wire
from guard.gateway.domain.commands import IngestCommand, PricedEvent, RequestOrigin
from guard.gateway.ledger import expiring
from guard.gateway.storage.group_writer import HEAVY_WEIGHT_MAX
from guard.gateway.storage.port import Storage
from guard.gateway.storage.sql import engine as sql_engine
from guard.gateway.storage.sql.retention import STEP_ROWS, STEPS_MAX
from guard.gateway.storage.sqlite import engine
from guard.gateway.storage.sqlite.backup import backup
from guard.gateway.storage.sqlite.connection import SqliteReadConnection
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.state import Touches
from guard.gateway.unit.unit_of_work import UnitOfWork
from tests.support import large_store
from tests.support.store import DAY, Clock, ingest, opened_store
from tests.support.waiting import WAIT_S, until_async

NOW = 1_800_000_000_000
_numbers = itertools.count()


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with many events, converted once."""
    path = tmp_path_factory.mktemp("large") / "g.sqlite3"
    large_store.make(path, events=20_000, workflows=500, now_ms=NOW, days=10)

    async def convert() -> None:
        made = SqliteStorage(path, clock_ms=Clock(NOW), retention_days=40)
        await made.open(lambda _: None)
        await made.close()

    asyncio.run(convert())
    return path


@pytest_asyncio.fixture
async def storage(tmp_path: Path, large: Path, clock: Clock) -> AsyncIterator[SqliteStorage]:
    path = shutil.copy(large, tmp_path / "g.sqlite3")
    made = SqliteStorage(path, clock_ms=clock, retention_days=40)
    await made.open(lambda _: None)
    yield made
    assert (await made.verify_ledger()).problems == []
    await made.close()


async def charge(storage: SqliteStorage, count: int = 1) -> None:
    """Charge a batch of events with some data."""
    events = [
        PricedEvent(
            wire.Event(event_id=f"x{next(_numbers)}", type="llm", at_ms=1, workflow_id="w1"),
            b'{"text":"%s"}' % (b"x" * 1000),
            cost=1,
        )
        for _ in range(count)
    ]
    request = RequestOrigin(organisation_id="o", key_id="k1")
    answer = await ingest(storage, IngestCommand(request=request, events=events))
    assert answer.status == 202


@pytest.mark.asyncio
async def test_a_backup_ends_beside_constant_writes(storage: SqliteStorage, tmp_path: Path) -> None:
    target = tmp_path / "copy.sqlite3"
    filling = sqlite3.connect(storage.path)
    filling.execute("CREATE TABLE filler (data BLOB)")
    filling.execute("INSERT INTO filler VALUES (zeroblob(?))", (64 * 1024 * 1024,))
    filling.commit()
    filling.close()
    copying = asyncio.create_task(asyncio.to_thread(backup, storage.path, target))
    ends_s = time.monotonic() + WAIT_S
    while not copying.done():
        assert time.monotonic() < ends_s, "the copy has begun anew with each commit"
        await charge(storage)
    assert await copying > 64 * 1024 * 1024
    copy = SqliteStorage(target, clock_ms=storage.clock_ms)
    await copy.open(lambda _: None)
    assert (await copy.verify_ledger()).problems == []
    await copy.close()


def test_a_backup_that_was_killed_is_in_no_later_ones_way(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "copy.sqlite3"

    def killed(*_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", killed)
        patched.setattr(Path, "unlink", lambda _: None)  # a killed process tidies nothing
        with pytest.raises(KeyboardInterrupt):
            backup(large, target)
    (left,) = tmp_path.iterdir()
    assert stat.S_IMODE(left.stat().st_mode) == 0o600
    assert backup(large, target) == target.stat().st_size
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert set(tmp_path.iterdir()) == {left, target}


@pytest.mark.asyncio
@pytest.mark.parametrize("batches", [12, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
async def test_the_log_is_bounded_in_bytes(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    monkeypatch.setattr(engine, "CHECKPOINT_BYTES", 2**18)
    monkeypatch.setattr(engine, "LOG_BYTES_MAX", 2**21)
    sizes = []
    for _ in range(batches):
        await asyncio.gather(storage.checkpoint(), charge(storage, 1000))
        sizes.append(storage._log_bytes())
    assert max(sizes) < 2**23, "far less than was written"


@pytest.mark.asyncio
async def test_a_report_that_goes_on_does_not_hold_the_writer(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log cannot start afresh then; nobody waits for that."""
    monkeypatch.setattr(engine, "CHECKPOINT_BYTES", 1)
    monkeypatch.setattr(engine, "LOG_BYTES_MAX", 1)
    reading = SqliteReadConnection(storage.path)
    reading.sqlite.execute("BEGIN")
    reading.rows("SELECT count(*) FROM events")
    try:
        await charge(storage)
        writing = storage._connection
        assert writing is not None
        told: list[str] = []
        writing.set_trace_callback(told.append)
        await storage.checkpoint()
        writing.set_trace_callback(None)
        assert "PRAGMA wal_checkpoint(TRUNCATE)" in told
        assert writing.execute("PRAGMA busy_timeout").fetchone()[0] == 0
        assert storage._log_bytes() > 0
    finally:
        reading.sqlite.close()
    await storage.checkpoint()
    assert storage._log_bytes() == 0


@pytest.mark.asyncio
async def test_expiry_goes_on_while_other_upkeep_takes_long(
    storage_factory: Callable[..., Storage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An approval of three seconds ended after 23: its end waited for old rows to be deleted."""
    monkeypatch.setattr(sql_engine, "EXPIRE_EVERY_S", 0.01)
    may_end, swept = asyncio.Event(), list[bool]()
    expire = expiring.sweep

    def counted(unit: UnitOfWork) -> int:
        # Of this store alone: a gateway of other tests in this process is swept too.
        if unit is cast("sql_engine.SqlEngine[Any]", store.storage)._unit:
            swept.append(may_end.is_set())
        return expire(unit)

    async def takes_long() -> None:
        await may_end.wait()

    async with opened_store(storage_factory, tmp_path) as store:
        monkeypatch.setattr(expiring, "sweep", counted)
        monkeypatch.setattr(store.storage, "retain", takes_long)
        sweeping = asyncio.create_task(store.storage.sweep())
        await until_async(lambda: len(swept) >= 3)
        assert not sweeping.done()
        may_end.set()
        async with asyncio.timeout(WAIT_S):
            await sweeping
        # One that is cancelled leaves nothing running behind.
        may_end.clear()
        sweeping = asyncio.create_task(store.storage.sweep())
        await until_async(lambda: not swept[-1])
        sweeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sweeping
        assert [task for task in asyncio.all_tasks() if "_tend" in str(task.get_coro())] == []


@pytest.mark.asyncio
async def test_expiry_goes_ahead_of_what_clients_ask_for(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sweep = expiring.sweep

    def swept(unit: UnitOfWork) -> int:
        if unit is storage._unit:
            order.append("own")
        return sweep(unit)

    monkeypatch.setattr(expiring, "sweep", swept)
    heavy = Touches(weight=HEAVY_WEIGHT_MAX)
    asked = [
        asyncio.ensure_future(storage.write(heavy, lambda unit: order.append("asked")))
        for _ in range(9)
    ]
    await asyncio.sleep(0)  # they are in line
    async with asyncio.timeout(WAIT_S):
        await storage._expire()
        await asyncio.gather(*asked)
    assert order.index("own") <= 1


@pytest.mark.asyncio
async def test_retention_is_quick_and_lets_requests_in_between(
    storage: SqliteStorage, clock: Clock
) -> None:
    async def left() -> int:
        return (await storage.verify_ledger()).events

    before = await left()
    clock.now += 100 * DAY
    sweeping = asyncio.create_task(storage.sweep())
    served = 0
    while not sweeping.done():
        await charge(storage)
        served += 1
    gone = before + served - await left()
    # 317 a second were removed once, with two sweeps in a second.
    assert gone > 20 * 317 / 2
    assert gone <= STEP_ROWS * STEPS_MAX
    assert served >= STEPS_MAX / 2
    for _ in range(10):
        await storage.sweep()
    assert await left() <= served + 1
