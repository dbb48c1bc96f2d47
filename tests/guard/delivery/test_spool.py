"""The spool's file: many processes, a cap, permissions, damage, a full disk."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from guard.core.buffer import EventBuffer, Record
from guard.core.ids import IdFactory
from guard.delivery.health import Health
from guard.delivery.loss_report import Losses
from guard.delivery.spool import Spool, Spooled, SpoolError, owner_of
from guard.delivery.spooler import Spooler
from guard.scope.scope import Scope
from tests.support.waiting import WAIT_S

OWNER = owner_of("http://127.0.0.1:1", "key")
_SPAWN = multiprocessing.get_context("spawn")


def spool_at(path: Path, *, bytes_max: int = 1 << 26, lease_s: float = 30.0) -> Spool:
    return Spool(path, OWNER, bytes_max=bytes_max, lease_s=lease_s)


def rows(count: int, first: int = 0, priority: int = 2, size: int = 200) -> list[Spooled]:
    return [Spooled(f"e{first + n}", priority, b"x" * size) for n in range(count)]


def test_oldest_first_each_to_one_claimant_until_settled(tmp_path: Path) -> None:
    one, other = spool_at(tmp_path / "s"), spool_at(tmp_path / "s")
    one.append(rows(10))
    assert one.dropped == 0
    first = one.claim(4)
    second = other.claim(100)
    assert [event.row.number for event in first] == [1, 2, 3, 4]
    assert len(second) == 6
    one.settle([event.row for event in first])
    other.release([event.row for event in second])
    assert len(one.claim(100)) == 6
    assert other.count() == 6
    one.close()
    other.close()


def test_an_event_that_is_there_already_is_not_there_twice(tmp_path: Path) -> None:
    spool = spool_at(tmp_path / "s")
    spool.append(rows(5))
    spool.append(rows(8))
    assert spool.pending == spool.count() == 8
    spool.close()


def test_another_owners_events_are_out_of_reach(tmp_path: Path) -> None:
    ours = spool_at(tmp_path / "s")
    theirs = Spool(tmp_path / "s", owner_of("http://127.0.0.1:1", "other"), bytes_max=1 << 26)
    ours.append(rows(3))
    assert theirs.count() == 0
    assert theirs.claim(10) == []
    theirs.append(rows(2))  # the same ids, and yet other events
    assert (ours.count(), theirs.count()) == (3, 2)
    ours.close()
    theirs.close()


def test_an_accounts_events_are_delivered_with_any_of_its_secrets(tmp_path: Path) -> None:
    """Whichever process learns it, before or after the events were written."""
    url, account = "http://127.0.0.1:1", owner_of("http://127.0.0.1:1", "the key's id")
    first, second, other = (
        Spool(tmp_path / "s", owner_of(url, secret), bytes_max=1 << 26)
        for secret in ("first", "second", "another key's")
    )
    first.append(rows(2))
    first.account = account
    assert second.count() == 0, "nothing is known of it yet"
    second.account = account
    assert (first.count(), second.count()) == (2, 2)
    first.append(rows(3))
    other.account = owner_of(url, "another key")
    other.append(rows(4))
    assert (first.count(), second.count(), other.count()) == (3, 3, 4)
    claimed = second.claim(10)
    assert len(claimed) == 3
    assert first.claim(10) == [], "they are under way"
    second.settle([each.row for each in claimed])
    assert (first.count(), second.count(), other.count()) == (0, 0, 4)
    # Written by a process that takes over what a dead one with the old secret has left.
    second.append(rows(1, first=9), owner_of(url, "first"))
    assert second.count() == 1
    assert len(first.claim(10)) == 1
    for spool in (first, second, other):
        spool.close()


def test_a_full_spool_gives_up_the_least_important_and_oldest(tmp_path: Path) -> None:
    spool = spool_at(tmp_path / "s", bytes_max=512 * 1024)
    spool.append(rows(500, priority=0))
    spool.append(rows(300, first=500, priority=2))
    for turn in range(5):
        spool.append(rows(200, first=1000 + 200 * turn, priority=2))
    assert spool.dropped > 0
    pending = spool.pending
    assert spool.count() == pending == 1800 - spool.dropped
    with sqlite3.connect(tmp_path / "s" / "events-1.sqlite3") as file:
        kept = dict(file.execute("SELECT priority, count(*) FROM events GROUP BY 1").fetchall())
    file.close()
    assert kept.get(0, 0) == 0 or kept[2] == 1300, "nothing important goes before the rest is gone"
    spool.close()
    assert (tmp_path / "s" / "events-1.sqlite3").stat().st_size <= 512 * 1024


def test_a_full_spool_gives_up_nothing_for_what_does_not_fit(tmp_path: Path) -> None:
    spool = spool_at(tmp_path / "s", bytes_max=256 * 1024)
    spool.append(rows(200))
    with pytest.raises(SpoolError, match="full"):
        spool.append(rows(1, first=1000, size=512 * 1024))
    assert spool.dropped == 0
    pending = spool.pending
    assert spool.count() == pending == 200
    spool.close()


@pytest.mark.asyncio
async def test_what_a_cancelled_write_gives_up_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = spool_at(tmp_path / "s", bytes_max=256 * 1024)
    spool.append(rows(600))
    assert spool.dropped == 0
    ids = IdFactory()
    health = Health(buffer := EventBuffer(1000))
    spooler = Spooler(spool, ids, Losses(buffer, health, ids))
    writing, go_on = threading.Event(), threading.Event()
    append = spool.append

    def slow(events: list[Spooled]) -> None:
        writing.set()
        assert go_on.wait(WAIT_S)
        append(events)

    monkeypatch.setattr(spool, "append", slow)
    fields = Scope(workflow_id="w").event_fields
    records = [Record("llm", n, n, fields, {"padding": "x" * 500}) for n in range(100)]
    storing = asyncio.create_task(spooler.store(records))
    assert await asyncio.to_thread(writing.wait, WAIT_S)
    storing.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await storing
    assert health.lost == 600 + 100 - spool.count() > 0
    spool.close()


@pytest.mark.parametrize("damage", ["overwritten", "middle", "not sqlite", "emptied"])
def test_damage_is_set_aside_and_never_a_crash(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "s" / "events-1.sqlite3"
    spool = spool_at(tmp_path / "s")
    spool.append(rows(500))
    spool.close()
    size = path.stat().st_size
    if damage == "overwritten":
        path.write_bytes(os.urandom(size))
    elif damage == "middle":
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(size - 4096))
    elif damage == "not sqlite":
        path.write_text("hello\n" * 1000)
    else:
        path.write_bytes(b"")
    spool = spool_at(tmp_path / "s")
    spool.append(rows(5, first=1000))
    assert len(spool.claim(1000)) == spool.pending
    assert spool.pending >= 5
    spool.close()
    aside = list((tmp_path / "s").glob("*.damaged-*"))
    assert aside or damage == "emptied"


def test_only_a_few_damaged_files_are_kept(tmp_path: Path) -> None:
    for _ in range(6):
        spool = spool_at(tmp_path / "s")
        spool.append(rows(1))
        spool.close()
        (tmp_path / "s" / "events-1.sqlite3").write_text("hello\n" * 1000)
    spool = spool_at(tmp_path / "s")
    spool.count()
    spool.close()
    assert len(list((tmp_path / "s").glob("events-1.sqlite3.damaged-*"))) == 3


def test_a_file_that_another_process_set_aside_is_left_too(tmp_path: Path) -> None:
    spool = spool_at(tmp_path / "s")
    spool.append(rows(3))
    (tmp_path / "s" / "events-1.sqlite3").rename(tmp_path / "s" / "events-1.sqlite3.damaged-1")
    spool.append(rows(2, first=10))
    assert spool.count() == 2
    spool.close()


class TestPermissions:
    def test_a_new_directory_and_its_files_are_the_owners_alone(self, tmp_path: Path) -> None:
        old = os.umask(0)
        try:
            spool = spool_at(tmp_path / "deep" / "s")
            spool.append(rows(1))
        finally:
            os.umask(old)
        found = tmp_path / "deep" / "s"
        assert found.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in found.iterdir()} == {0o600}
        spool.close()

    def test_an_empty_one_that_is_too_open_is_narrowed(self, tmp_path: Path) -> None:
        (tmp_path / "s").mkdir(mode=0o755)
        spool = spool_at(tmp_path / "s")
        spool.append(rows(1))
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
        spool.close()

    def test_one_that_others_use_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "s").mkdir(mode=0o755)
        (tmp_path / "s" / "somebody's").write_text("hello")
        with pytest.raises(SpoolError, match="directory of its own"):
            spool_at(tmp_path / "s").append(rows(1))
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o755

    def test_no_link_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir(mode=0o700)
        (tmp_path / "s").symlink_to(tmp_path / "real")
        with pytest.raises(SpoolError, match="not followed"):
            spool_at(tmp_path / "s").append(rows(1))
        for name in ("events-1.sqlite3", "events-1.lock"):
            directory = tmp_path / f"for-{name}"
            directory.mkdir(mode=0o700)
            (directory / name).symlink_to(tmp_path / "target")
            with pytest.raises(SpoolError):
                spool_at(directory).append(rows(1))
        assert not (tmp_path / "target").exists()

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "s").write_text("hello")
        with pytest.raises(SpoolError):
            spool_at(tmp_path / "s").append(rows(1))


def _write(path: str, name: int) -> None:
    spool = spool_at(Path(path))
    for turn in range(20):
        spool.append(rows(20, first=name * 10_000 + turn * 20))
        claimed = spool.claim(10)
        spool.settle([event.row for event in claimed])
    spool.close()


def test_processes_share_it(tmp_path: Path) -> None:
    processes = [_SPAWN.Process(target=_write, args=(str(tmp_path / "s"), n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    spool = spool_at(tmp_path / "s")
    assert spool.count() == 4 * 20 * (20 - 10)
    assert len(spool.claim(10_000)) == 800
    spool.close()


def _claim_and_die(path: str) -> None:
    assert len(spool_at(Path(path)).claim(7)) == 7
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_claims_of_a_dead_process_are_void_at_once(tmp_path: Path) -> None:
    spool = spool_at(tmp_path / "s")
    spool.append(rows(10))
    process = _SPAWN.Process(target=_claim_and_die, args=(str(tmp_path / "s"),))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert len(spool.claim(100)) == 10
    spool.close()


def _fill(path: str, pipe: multiprocessing.connection.Connection) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    spool = spool_at(Path(path))
    spool.append(rows(100))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, resource.RLIM_INFINITY))
    stored = refused = 0
    for turn in range(40):
        try:
            stored += spool.append(rows(100, first=1000 + 100 * turn))
        except SpoolError:
            refused += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    spool.append(rows(10, first=100_000))
    pipe.send((stored, refused, spool.count()))
    spool.close()


def test_a_full_disk_refuses_keeps_what_is_there_and_recovers(tmp_path: Path) -> None:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_fill, args=(str(tmp_path / "s"), theirs))
    process.start()
    assert ours.poll(WAIT_S)
    stored, refused, kept = ours.recv()
    process.join(120)
    assert process.exitcode == 0
    assert refused > 0
    assert stored % 100, "of the batch that met the limit there is what had room"
    assert kept == 100 + stored + 10


FORKS_DURING = """
import os, sys, threading, time
from pathlib import Path
from guard.delivery.spool import Spool, Spooled
def spool():
    return Spool(Path(sys.argv[1]), bytes(16), bytes_max=1 << 20)
def written(name):
    spool().append([Spooled(name, 1, b"{}")])
begun = threading.Event()
def transaction(connection):
    connection.execute("BEGIN IMMEDIATE")
    begun.set()
    time.sleep(0.2)  # so that the fork comes before its end
    connection.execute("ROLLBACK")
def opening():
    with parents._directory_locked():
        begun.set()
        time.sleep(0.2)
parents = spool()
parents.count()
work = {"a transaction": lambda: parents._with_file(transaction), "an opening": opening}
thread = threading.Thread(target=work[sys.argv[2]])
thread.start()
begun.wait()
reading, writing = os.pipe()
pid = os.fork()
if not pid:
    os.close(writing)
    written("child")
    os.read(reading, 1)  # until the parent has written too
    os._exit(0)
thread.join()
written("parent")
os.close(writing)
assert os.waitpid(pid, 0)[1] == 0
print(parents.count())
"""


@pytest.mark.parametrize("case", ["a transaction", "an opening"])
def test_a_fork_leaves_the_file_usable_on_both_sides(tmp_path: Path, case: str) -> None:
    """The background thread may be at work in the file at the moment that the program forks."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS_DURING, str(tmp_path / "s"), case],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
