"""What is special to the SQLite store."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from guard.core import wire
from guard.gateway.domain.errors import StoreError
from guard.gateway.ledger import audit, control, directory
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.state import ALL_ORGANISATIONS, NO_ORGANISATION, AuditRow, within
from tests.support.store import ACTOR, Clock, Store


@pytest.mark.asyncio
@pytest.mark.parametrize("durable", [False, True])
async def test_full_disk_refuses_and_recovers(tmp_path: Path, durable: bool) -> None:
    storage = SqliteStorage(tmp_path / "g.sqlite3", durable=durable)
    await storage.open(lambda events: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    store = Store(storage, Clock(), org, lambda: None, [])
    await store.budget(1_000_000)
    (pages,) = await storage.write(
        ALL_ORGANISATIONS, lambda unit: unit.connection.execute("PRAGMA page_count").fetchone()
    )
    await storage.write(
        ALL_ORGANISATIONS,
        lambda unit: unit.connection.execute(f"PRAGMA max_page_count = {pages}").fetchone(),
    )
    results = await asyncio.gather(
        *(store.charge(f"e{n}" + "x" * 200, 1) for n in range(500)), return_exceptions=True
    )
    assert any(isinstance(r, StoreError) for r in results)
    await storage.write(
        ALL_ORGANISATIONS,
        lambda unit: unit.connection.execute("PRAGMA max_page_count = 1000000").fetchone(),
    )
    assert await storage.ready()
    for n in range(500):
        await store.charge(f"e{n}" + "x" * 200, 1)
    (balance,) = await storage.balances(org, current_only=True)
    assert balance.committed == 500
    assert (await storage.verify_ledger()).problems == []
    await storage.close()


@pytest.mark.asyncio
async def test_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.sqlite3"
    storage = SqliteStorage(path)
    await storage.open(lambda events: None)
    await storage.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(StoreError, match="newer"):
        await SqliteStorage(path).open(lambda events: None)


@pytest.mark.asyncio
async def test_replays_are_bounded_by_what_still_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guard.gateway.ledger.control.CONTROL_KEEP", 5)
    storage = SqliteStorage(tmp_path / "g.sqlite3")
    await storage.open(lambda events: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    await storage.write(
        within(org),
        control.issue_directive,
        ACTOR,
        org,
        wire.ControlMessage(seq=0, type="kill", workflow_id="dead"),
    )
    for _ in range(20):
        for kind in ("pause", "resume"):
            await storage.write(
                within(org),
                control.issue_directive,
                ACTOR,
                org,
                wire.ControlMessage(seq=0, type=kind, workflow_id="w"),
            )
    await storage.sweep()
    kept = [stored.message for stored in await storage.control_after(org, 0, 100)]
    assert [m.seq for m in kept] == [1, 37, 38, 39, 40, 41]
    assert kept[0].workflow_id == "dead"
    await storage.close()


@pytest.mark.asyncio
async def test_lookups_and_replays_do_not_wait_for_reports(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "g.sqlite3")
    await storage.open(lambda events: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    kill = wire.ControlMessage(seq=0, type="kill", workflow_id="w")
    await storage.write(within(org), control.issue_directive, ACTOR, org, kill)
    finish = threading.Event()
    started = threading.Semaphore(0)

    def slow_report(_: Any) -> None:
        started.release()
        finish.wait()

    reports = [asyncio.ensure_future(storage.report(slow_report)) for _ in range(8)]
    waiting = asyncio.ensure_future(storage.usage(org, "total", 0, 2**60, 10))
    try:
        for _ in range(2):
            await asyncio.to_thread(started.acquire)
        assert await storage.find_key(b"none") is None
        assert [stored.message.type for stored in await storage.control_after(org, 0, 10)] == [
            "kill"
        ]
        assert await storage.policies(org) == []
        assert await storage.ready()
        assert not waiting.done()
    finally:
        finish.set()
    await asyncio.gather(*reports, waiting)
    await storage.close()


@pytest.mark.asyncio
async def test_a_noted_head_shows_a_chain_that_was_computed_anew(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "g.sqlite3")
    await storage.open(lambda events: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    heads = [await storage.audit_head()]
    for n in range(3):
        kill = wire.ControlMessage(seq=0, type="kill", workflow_id=str(n))
        await storage.write(within(org), control.issue_directive, ACTOR, org, kill)
        heads.append(await storage.audit_head())
    for head in heads:
        assert await storage.verify_audit(head) == (4, None)
    assert await storage.verify_audit((2, "0" * 64)) == (4, 2)
    assert await storage.verify_audit((9, heads[-1][1])) == (4, 9)
    await storage.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "g.sqlite3")) as forging:
        rows = [AuditRow(*row) for row in forging.execute("SELECT * FROM audit ORDER BY seq")]
        previous = audit.GENESIS
        for row in rows:
            forged = row._replace(prev_hash=previous)
            if row.seq == 3:
                forged = forged._replace(actor="nobody")
            previous = audit._hash(previous, forged)
            forging.execute(
                "UPDATE audit SET actor = ?, prev_hash = ?, hash = ? WHERE seq = ?",
                (forged.actor, forged.prev_hash, previous, forged.seq),
            )
        forging.commit()
    storage = SqliteStorage(tmp_path / "g.sqlite3")
    await storage.open(lambda events: None)
    assert await storage.verify_audit() == (4, None), "by itself the chain cannot tell"
    assert [(await storage.verify_audit(head))[1] for head in heads] == [None, None, 3, 4]
    await storage.close()


@pytest.mark.asyncio
async def test_audit_notices_every_change(sqlite_factory: Any, tmp_path: Path) -> None:
    storage = sqlite_factory(tmp_path)
    await storage.open(lambda events: None)
    org = (
        await storage.write(NO_ORGANISATION, directory.create_organisation, ACTOR, "o")
    ).organisation_id
    for n in range(3):
        await storage.write(
            within(org),
            control.issue_directive,
            ACTOR,
            org,
            wire.ControlMessage(seq=0, type="kill", workflow_id=str(n)),
        )
    assert await storage.verify_audit() == (4, None)
    await storage.close()
    path = tmp_path / "gateway.sqlite3"
    for change, first_bad in (
        ("UPDATE audit SET target = 'x' WHERE seq = 2", 2),
        ("UPDATE audit SET at_ms = at_ms + 1 WHERE seq = 3", 3),
        ("DELETE FROM audit WHERE seq = 2", 3),
        ("UPDATE audit SET organisation_id = NULL WHERE seq = 4", 4),
    ):
        copy = tmp_path / f"copy{first_bad}{change[:6]}" / "gateway.sqlite3"
        copy.parent.mkdir()
        copy.write_bytes(path.read_bytes())
        connection = sqlite3.connect(copy)
        connection.execute(change)
        connection.commit()
        connection.close()
        tampered = sqlite_factory(copy.parent)
        await tampered.open(lambda events: None)
        assert (await tampered.verify_audit())[1] == first_bad
        await tampered.close()
