"""What an SDK is told when it connects anew, and which directives are forgotten."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from guard.core import wire
from guard.core.control import ControlState
from guard.gateway.ledger import control, directory
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.state import NO_ORGANISATION, within
from tests.support.store import ACTOR, DAY, Clock, Store

RUNS = 9000
MID_MONTH = 1_800_000_000_000 - 1_800_000_000_000 % DAY  # 2027-01-15T00:00Z


def _message(kind: str, **fields: object) -> wire.ControlMessage:
    return wire.ControlMessage(seq=0, type=kind, **fields)  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    clock = Clock(MID_MONTH)
    options = {"clock_ms": clock, "retention_days": 40}
    storage = SqliteStorage(tmp_path / "g.sqlite3", **options)  # type: ignore[arg-type]
    await storage.open(lambda _: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id

    async def reopen() -> None:
        await store.storage.close()
        store.storage = SqliteStorage(tmp_path / "g.sqlite3", **options)  # type: ignore[arg-type]
        await store.storage.open(lambda _: None)

    store = Store(storage, clock, org, reopen, [])
    yield store
    await store.storage.close()


async def issue(store: Store, kind: str, **fields: object) -> None:
    await store.storage.write(
        within(store.org), control.issue_directive, ACTOR, store.org, _message(kind, **fields)
    )


async def kill_runs(store: Store, count: int) -> None:
    for number in range(count):
        await issue(store, "kill", workflow_id="w", run_id=f"r{number}")


async def snapshot(store: Store, key_id: str = "k") -> list[wire.ControlMessage]:
    return await store.storage.control_snapshot(store.org, key_id)


@pytest.mark.asyncio
async def test_runs_that_were_killed_long_ago_are_not_told(store: Store) -> None:
    await issue(store, "kill", workflow_id="dead")
    await kill_runs(store, RUNS)
    store.clock.now += 2 * DAY
    await issue(store, "pause", workflow_id="waiting")
    await issue(store, "kill", workflow_id="w", run_id="new")
    found = await snapshot(store)
    assert [(m.type, m.workflow_id, m.run_id) for m in found] == [
        ("kill", "dead", None), ("pause", "waiting", None), ("kill", "w", "new"),
    ]  # fmt: skip
    newest = await store.storage.control_seq(store.org)
    assert found[-1].seq == newest
    assert await store.storage.control_after(store.org, newest, 10) == []
    for run_id in ("r0", f"r{RUNS - 1}"):  # the gate knows all of them
        assert (await store.gate(workflow_id="w", run_id=run_id)).status == 403


@pytest.mark.asyncio
async def test_a_snapshot_says_what_a_replay_says(store: Store) -> None:
    await issue(store, "kill", workflow_id="a")
    await issue(store, "revive", workflow_id="a")
    await issue(store, "kill", workflow_id="b*")
    await issue(store, "pause", workflow_id="c")
    await issue(store, "pause", workflow_id="c", resume_after_ms=5)
    await issue(store, "pause", workflow_id="d")
    await issue(store, "resume", workflow_id="d")
    await store.budget(10, scope_kind="workflow", scope_id="*")
    await store.budget(5, window="day")
    await store.charge("e1", 10, workflow_id="spent")
    store.clock.now += DAY
    await store.storage.sweep()  # the day's budget has room again
    replayed = await store.storage.control_after(store.org, 0, 1000)
    before = ControlState().apply(*[stored.message for stored in replayed])
    told = await snapshot(store)
    after = ControlState().apply(*told)
    assert len(told) < len(replayed)
    for workflow in ("a", "b1", "c", "d", "spent", "other"):
        now_ms = store.clock.now
        assert after.halt(workflow, None, now_ms, budgets=True) == before.halt(
            workflow, None, now_ms, budgets=True
        ), workflow
    assert (after.seq, after.epoch) == (before.seq, before.epoch)


@pytest.mark.asyncio
async def test_messages_for_another_key_are_not_told(store: Store) -> None:
    await store.budget(10, scope_kind="key", scope_id="k")
    await store.charge("e1", 10)
    assert [m.exhausted for m in await snapshot(store)] == [True]
    assert [m.type for m in await snapshot(store, "other")] == ["policy"]


@pytest.mark.asyncio
async def test_a_directive_for_a_run_is_forgotten_with_the_run(
    store: Store, tmp_path: Path
) -> None:
    await issue(store, "kill", workflow_id="w")
    await issue(store, "kill", run_id="unseen")
    await issue(store, "kill", run_id="old")
    await store.gate(workflow_id="other", run_id="old")
    store.clock.now += 20 * DAY
    await issue(store, "kill", run_id="young")
    store.clock.now += 30 * DAY
    await store.gate(workflow_id="other", run_id="seen again")
    for _ in range(3):
        for _ in range(30):
            await store.storage.sweep()
        store.clock.now += 3_600_000

    async def statuses() -> list[int]:
        calls = [("w", None), ("x", "unseen"), ("x", "old"), ("x", "young")]
        answers = [await store.gate(workflow_id=w, run_id=r) for w, r in calls]
        return [answer.status for answer in answers]

    assert await statuses() == [403, 200, 200, 403]
    await store.reopen()
    assert await statuses() == [403, 200, 200, 403]
    connection = sqlite3.connect(tmp_path / "g.sqlite3")
    rows = connection.execute("SELECT target, run_id FROM directives ORDER BY 1, 2").fetchall()
    connection.close()
    assert rows == [("", "young"), ("w", "")]
