"""A gateway that stood still, or could not write: nobody could renew, so nothing has expired."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from guard.core import wire
from guard.gateway.domain.commands import GateCommand
from guard.gateway.domain.errors import StoreError
from guard.gateway.storage.sqlite import engine
from guard.gateway.storage.sqlite.store import SqliteStorage
from tests.support.store import Clock, Store, decide, opened_store

LIFE = 40_000

pytestmark = pytest.mark.asyncio


async def reserved(store: Store) -> int:
    (balance,) = await store.storage.balances(store.org, current_only=True)
    return balance.reserved


async def hold(store: Store) -> None:
    call = wire.GateRequest(call_id="c", kind="call", function="f", renewed=True)
    command = GateCommand(request=store.request(), call=call, declared_nanousd=60)
    assert (await decide(store.storage, command)).status == 200


@pytest.mark.parametrize("first", ["a sweep", "a call that needs the money"])
async def test_what_nobody_could_renew_has_not_expired(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(engine, "wall_clock_ms", clock)

    def make(folder: Path, clock_ms: Callable[[], int]) -> SqliteStorage:
        return SqliteStorage(folder / "g.db", clock_ms=clock_ms, monotonic_ms=clock_ms)

    async with opened_store(make, tmp_path, clock) as store:
        await store.budget(100)
        await hold(store)
        clock.now += 10 * LIFE
        if first == "a sweep":
            await store.storage.sweep()
        else:
            assert (await store.gate(60)).status == 402
        assert await reserved(store) == 60
        for _ in range(LIFE // 4000):
            clock.now += 4000
            await store.storage.sweep()
        assert await reserved(store) == 0, "a gateway that is there for a whole life expires it"


async def test_the_clock_also_stands_still_while_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(engine, "wall_clock_ms", clock)

    def make(folder: Path, clock_ms: Callable[[], int]) -> SqliteStorage:
        return SqliteStorage(folder / "g.db", clock_ms=clock_ms, monotonic_ms=clock_ms)

    async with opened_store(make, tmp_path, clock) as store:
        await store.budget(100)
        await hold(store)
        unit = store.storage._unit  # type: ignore[attr-defined]
        commit = unit.commit

        def full() -> None:
            raise sqlite3.OperationalError("no room")

        monkeypatch.setattr(unit, "commit", full)
        for _ in range(LIFE // 4000 + 1):
            clock.now += 4000
            with pytest.raises(StoreError):
                await store.storage.sweep()
        monkeypatch.setattr(unit, "commit", commit)
        await store.storage.sweep()
        assert await reserved(store) == 60
