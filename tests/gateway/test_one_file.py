"""One SQLite file is one gateway's, whatever names it has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from guard.gateway.domain.errors import StoreBusyError, StoreError
from guard.gateway.storage import group_writer
from guard.gateway.storage.postgres.copying import copy
from guard.gateway.storage.sqlite.backup import backup
from guard.gateway.storage.sqlite.migrations import SqliteMigrator
from guard.gateway.storage.sqlite.restore import restore
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.state import NO_ORGANISATION
from tests.gateway.conftest import SERVE
from tests.support import postgres
from tests.support.waiting import WAIT_S

IN_USE = "another gateway is using this database"


@pytest_asyncio.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SqliteStorage]:
    storage = SqliteStorage(tmp_path / "g.sqlite3")
    await storage.open(lambda _: None)
    yield storage
    await storage.close()


@pytest.fixture(params=["symbolic link", "hard link", "link to a folder"])
def alias(request: pytest.FixtureRequest, storage: SqliteStorage, tmp_path: Path) -> Path:
    """Another name of the file that is open."""
    other = tmp_path / "elsewhere"
    if request.param == "link to a folder":
        other.symlink_to(tmp_path)
        return other / storage.path.name
    other.mkdir()
    make = os.symlink if request.param == "symbolic link" else os.link
    make(storage.path, other / "h.sqlite3")
    return other / "h.sqlite3"


@pytest.mark.asyncio
async def test_no_second_gateway_opens_it(storage: SqliteStorage, alias: Path) -> None:
    second = SqliteStorage(alias)
    with pytest.raises(StoreError, match=IN_USE):
        await second.open(lambda _: None)
    assert await storage.ready()
    served = subprocess.run(  # noqa: ASYNC221 (ends at once)
        [sys.executable, "-c", SERVE, "serve", "--port", "0", "--database", str(alias)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (served.returncode, IN_USE in served.stderr) == (1, True), served.stderr


@pytest.mark.asyncio
async def test_no_command_writes_to_it(storage: SqliteStorage, alias: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=IN_USE):
        SqliteMigrator(alias).up(dry_run=False)
    with pytest.raises(StoreError, match=IN_USE):
        copy(alias, postgres.dsn_of(tmp_path))
    backup(storage.path, tmp_path / "backup.sqlite3")
    with pytest.raises(StoreError, match=IN_USE):
        restore(tmp_path / "backup.sqlite3", alias, replace=True)


@pytest.mark.asyncio
async def test_the_next_one_opens_it_by_any_name(storage: SqliteStorage, alias: Path) -> None:
    await storage.close()
    for path in (alias, storage.path, alias):
        each = SqliteStorage(path)
        await each.open(lambda _: None)
        await each.close()


@pytest.mark.asyncio
async def test_a_refused_one_takes_no_lock_away(storage: SqliteStorage, alias: Path) -> None:
    """A process that closes a file loses all of its record locks on it, which SQLite's are."""
    with pytest.raises(StoreError, match=IN_USE):
        await SqliteStorage(alias).open(lambda _: None)
    program = (
        "import sqlite3, sys; made = sqlite3.connect(sys.argv[1], timeout=0);"
        "print(made.execute('PRAGMA journal_mode = DELETE').fetchone()[0])"
    )
    command = [sys.executable, "-c", program, str(storage.path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: ASYNC221 (ends at once)
    assert "database is locked" in found.stderr, found.stdout
    assert storage._connection is not None
    assert storage._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.asyncio
async def test_a_restored_file_is_locked_as_well(storage: SqliteStorage, tmp_path: Path) -> None:
    """It has another inode than the one before."""
    await storage.close()
    shutil.copy(storage.path, tmp_path / "backup.sqlite3")
    restore(tmp_path / "backup.sqlite3", storage.path, replace=True)
    await storage.open(lambda _: None)
    os.link(storage.path, tmp_path / "h.sqlite3")
    with pytest.raises(StoreError, match=IN_USE):
        await SqliteStorage(tmp_path / "h.sqlite3").open(lambda _: None)


def _tables(path: Path) -> list[str]:
    found = sqlite3.connect(path)
    names = [name for (name,) in found.execute("SELECT name FROM sqlite_master")]
    found.close()
    return names


@pytest.mark.asyncio
@pytest.mark.parametrize("version", [0, 2, 11, 12, 13, 14])
async def test_a_foreign_file_stays_as_it_is(tmp_path: Path, version: int) -> None:
    """Whatever version another program has given to its file."""
    path = tmp_path / "photos.sqlite3"
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE photos (name TEXT)")
    foreign.execute(f"PRAGMA user_version = {version}")
    foreign.commit()
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not a gateway's database"):
        await SqliteStorage(path).open(lambda _: None)
    with pytest.raises(StoreError, match="not a gateway's database"):
        SqliteMigrator(path).up(dry_run=False)
    assert (_tables(path), path.read_bytes()) == (["photos"], before)


@contextlib.contextmanager
def written_by_another(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program is writing to a file, until it rolls back."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


@pytest.mark.asyncio
async def test_the_loop_goes_on_while_another_program_writes_to_it(storage: SqliteStorage) -> None:
    with written_by_another(storage.path) as other:
        work = [storage.write(NO_ORGANISATION, lambda _, n=n: n) for n in range(64)]  # type: ignore[misc]
        for _ in range(20):
            await asyncio.sleep(0.01)  # a loop that stood still would fail the work meanwhile
        assert not any(each.done() for each in work)
        other.execute("ROLLBACK")
    async with asyncio.timeout(WAIT_S):
        assert await asyncio.gather(*work) == list(range(64))
    assert await storage.ready()


@pytest.mark.asyncio
async def test_all_that_waits_fails_at_once_when_another_program_goes_on(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not one after the other."""
    waits: list[None] = []

    def sleep(seconds: float) -> None:
        waits.append(None)
        pause(seconds)

    pause = time.sleep
    monkeypatch.setattr(group_writer, "BUSY_S", 0.5)
    monkeypatch.setattr(group_writer.time, "sleep", sleep)
    with written_by_another(storage.path):
        work = [storage.write(NO_ORGANISATION, lambda _: None) for _ in range(64)]
        async with asyncio.timeout(WAIT_S):
            failed = await asyncio.gather(*work, return_exceptions=True)
        assert all(isinstance(each, StoreBusyError) for each in failed)
        assert len(waits) <= 51, "one wait for all"
        waits.clear()
        with pytest.raises(StoreBusyError):
            await storage.write(NO_ORGANISATION, lambda _: None)
        assert waits == [], "and none for those that come later"
        assert not await storage.ready()
    async with asyncio.timeout(WAIT_S):
        assert await storage.write(NO_ORGANISATION, lambda _: "done") == "done"
    assert await storage.ready()
