"""Events on disk: undelivered events wait here and survive the process.

One SQLite file in WAL mode, in its own directory, shared by any number of processes. A row goes
from ``append`` over ``claim`` to ``settle`` or ``release``. A process that delivers claims rows for
a limited time; if it dies, the claim ends and another process takes the rows. An event keeps its
``event_id``, so one that was delivered but could not be deleted is still charged only once. On a
full disk events are read without a claim, and deleted once there is room.

Every method may raise :class:`SpoolError` (disk full, locked for too long, permissions). A damaged
file is set aside, and a new one is created. All methods block: call them in worker threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

from guard.core import wire
from guard.core.buffer import Priority
from guard.delivery import loss_notes
from guard.delivery.journal import OpenRequest, left_behind
from guard.delivery.spool_files import holder_of, lives, prepare_directory, require_plain_file

logger = logging.getLogger("guard.spool")

T = TypeVar("T")

_FILE: Final = "events-1.sqlite3"
"""The number is the schema version: each version has its own file."""

_LOCK_FILE: Final = "events-1.lock"
_SIDE_FILES: Final = ("", "-wal", "-shm")
_PAGE_BYTES: Final = 4096
_BUSY_MS: Final = 500
"""How long to wait for another process that writes; ``_HURRY_MS`` once this process is ending."""

_HURRY_MS: Final = 50
_FORK_WAIT_S: Final = 1.0
"""How long a fork waits for a thread that uses the spool."""

_WAL_BYTES_MAX: Final = 4 * 1024 * 1024
_DAMAGED_KEPT: Final = 3
_ROW_BYTES: Final = 150
"""Approximate size of a row besides its body, indexes included."""

_ROOM_SHARE: Final = 16
"""A full spool drops at least 1/16 of its events at a time."""

# `id` is the order of delivery. `claimed_until_ms` is 0 for a row that no process delivers, else
# Unix time; `claimed_by` names the process (`holder_of`). The body is the encoded event.

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS events (
  id INTEGER PRIMARY KEY,
  owner BLOB NOT NULL,
  event_id TEXT NOT NULL,
  priority INTEGER NOT NULL,
  claimed_until_ms INTEGER NOT NULL DEFAULT 0,
  claimed_by TEXT,
  body BLOB NOT NULL,
  UNIQUE (owner, event_id)
);
CREATE INDEX IF NOT EXISTS events_in_order ON events (owner, id);
CREATE TABLE IF NOT EXISTS accounts (owner BLOB PRIMARY KEY, account BLOB NOT NULL);
"""


class SpoolError(Exception):
    """The spool cannot be used at the moment."""


class Spooled(NamedTuple):
    """One event to be written to disk."""

    event_id: str
    priority: int
    body: bytes


class Row(NamedTuple):
    """Where an event is; the number alone may be given to another event once the row is deleted."""

    number: int
    event_id: str


class Claimed(NamedTuple):
    """One event that this process is to deliver."""

    row: Row
    body: bytes


def event_of_open(request: OpenRequest) -> Spooled:
    """Return the event of a request whose process died before its own was delivered."""
    data = wire.LlmData(
        model=request.model or wire.UNKNOWN_MODEL,
        cost_nanousd=request.amount_nanousd,
        estimated=True,
        estimate="journal" if request.is_cost else "bound",
        source="auto",
        request_id=request.event_id,
    )
    event = wire.Event(
        request.event_id,
        "llm",
        request.at_ms,
        reservation_id=request.reservation_id or None,
        data=cast("dict[str, Any]", data),
    )
    return Spooled(request.event_id, Priority.LLM, wire.encode(event))


def _event_of_end(reservation_id: str) -> Spooled:
    """Return the event that says that no more was under way under a reservation of a dead process.

    Before or after the events of its requests: each of them is charged.
    """
    event_id = f"gone-{reservation_id}"
    data = wire.SpanData("journal of a process that is gone", wire.HOLDER_GONE)
    event = wire.Event(
        event_id,
        "span",
        time.time_ns() // 1_000_000,
        reservation_id=reservation_id,
        data=cast("dict[str, Any]", data),
    )
    return Spooled(event_id, Priority.LLM, wire.encode(event))


def owner_of(api_url: str, api_key: str) -> bytes:
    """Return an identifier of one gateway and key that does not reveal the key.

    Events are delivered only with a secret of the key that they were recorded under: another key
    may belong to another tenant, who must not be charged.

    Args:
        api_url: the URL of the gateway.
        api_key: a secret, or the id of a key.
    """
    return hashlib.blake2b(
        api_url.encode(), key=api_key.encode()[:64], digest_size=16, person=b"guard-spool"
    ).digest()


class Spool:
    """The event log of one owner in a directory; safe between threads and between processes.

    Args:
        directory: created with mode 0700 if missing; may be shared by processes of one user.
        owner: from :func:`owner_of`.
        bytes_max: size of the file at which the least important events are dropped.
        lease_s: how long a claim is valid.

    Attributes:
        account: from :func:`owner_of` with the key's id, once the gateway has told it. The events
            of all secrets that are noted for one account are delivered with any of them. Any
            thread may set it.
        pending: events of this owner and its account on disk, as of the last count.
        dropped: events that this process has dropped to make room.
    """

    def __init__(
        self, directory: Path, owner: bytes, *, bytes_max: int, lease_s: float = 30.0
    ) -> None:
        self._directory = directory
        self._path = directory / _FILE
        self._owner = owner
        self._bytes_max = bytes_max
        self._lease_ms = int(lease_s * 1000)
        # Held by the one thread that uses the connection, and by a fork (`_before_fork`).
        self._lock = threading.Lock()
        # Opened on first use, and again after a fork or when the file was replaced. Guarded by the
        # lock; `hurry` reads it without.
        self._connection: sqlite3.Connection | None = None
        # Inode of the open file, 0 without one: another process may have set the file aside as
        # damaged and made a new one. Guarded by the lock.
        self._inode = 0
        self.account: bytes | None = None
        # The file and the account that were noted. Guarded by the lock.
        self._noted: tuple[int, bytes] | None = None
        # Names this process in its claims.
        self._holder = holder_of(os.getpid())
        # How long to wait for other threads and processes; set once, when the process is ending.
        self._busy_ms = _BUSY_MS
        # Written under the lock; any thread reads it. A hint: other processes write rows, too.
        self.pending = 0
        # Likewise. Only rises: no failure or cancellation of a write can hide what it has dropped.
        self.dropped = 0
        # Rows that were delivered, and could not be deleted yet. Used under the lock.
        self._delivered = set[Row]()
        _spools.add(self)

    def take_over(self, *, also_living: bool = False, of_all: bool = False) -> int:
        """Write an event for each request that dead processes have left open in their journals.

        Args:
            also_living: whether to take those of living processes too, because no process will
                charge them later.
            of_all: whether the events and requests of other owners become this owner's, because
                the other keys are revoked.

        Returns:
            How many requests were taken over.
        """
        taken = 0
        for left in left_behind(self._directory, also_living=also_living):
            events = [event_of_open(request) for request in left.requests]
            events += [_event_of_end(each) for each in left.reservations]
            # The next step of the loop removes the journal. If the process dies before that, the
            # journal is taken over again, and its events, with the same ids, are ignored or charged
            # once. If `append` raises, the journal stays.
            owner = self._owner if of_all else left.owner
            if events and self.append(events, owner) < len(events):
                raise SpoolError("the disk is full")
            taken += len(left.requests)
        if of_all:
            self._with_file(self._own_all)
        return taken

    def _own_all(self, connection: sqlite3.Connection) -> None:
        # REPLACE: the same event may be there for both owners.
        connection.execute("UPDATE OR REPLACE events SET owner = ?", (self._owner,))

    def append(self, events: Sequence[Spooled], owner: bytes | None = None) -> int:
        """Write events; once written they survive a SIGKILL.

        A full spool drops the least important and oldest events for them; if they do not fit all
        the same, it keeps what it has. On a full disk nothing is dropped, and as many are written
        as there is room for.

        Args:
            events: to be written, the most important ones first.
            owner: the owner of the events; this spool's own when None.

        Returns:
            How many are on disk, from the first on.
        """

        def write(connection: sqlite3.Connection) -> int:
            stored, most = 0, len(events)
            while stored < len(events):
                try:
                    self._insert(connection, events[stored : stored + most], owner)
                    stored += min(most, len(events) - stored)
                except sqlite3.OperationalError as exc:
                    most //= 2
                    if not _without_room(exc) or not (most or stored):
                        raise
                    if not most:
                        break
            return stored

        return self._with_file(write)

    def _insert(
        self, connection: sqlite3.Connection, events: Sequence[Spooled], owner: bytes | None
    ) -> None:
        rows = [(owner or self._owner, *event) for event in events]
        size = sum(len(event.body) + _ROW_BYTES for event in events)
        # How many events to drop; more in each round.
        room = dropped = own = new = 0

        def insert() -> None:
            nonlocal dropped, own, new
            # In the same transaction: nothing is dropped for a write that fails.
            dropped, own = self._evict(connection, room) if room else (0, 0)
            # IGNORE: an event that an earlier write has stored, whose caller was cancelled and
            # kept it, stays one row.
            new = connection.executemany(
                "INSERT OR IGNORE INTO events (owner, event_id, priority, body)"
                " VALUES (?, ?, ?, ?)",
                rows,
            ).rowcount

        while True:
            try:
                _transact(connection, insert)
            except sqlite3.OperationalError as exc:
                full = exc.sqlite_errorcode == sqlite3.SQLITE_FULL
                if not full or not self._at_cap(connection, size):
                    raise  # the disk itself is full, or another process writes for too long
                # The file has reached its own limit: drop some events and try again. Rounds end
                # when the rows fit, or nothing unclaimed is left to drop.
                if dropped < room:
                    raise SpoolError(f"the spool is full: {exc}") from None
                room += self._next_room(connection, len(rows))
            else:
                new = new if owner in (None, self._owner) else 0
                self.pending = max(0, self.pending + new - own)
                self.dropped += dropped
                return

    def claim(self, most: int) -> list[Claimed]:
        """Take up to ``most`` events, oldest first, that no living process has claimed."""

        def take(connection: sqlite3.Connection) -> list[Claimed]:
            # One transaction for the search and the claim: no other process claims the same rows.
            # If this process dies after the commit, its claims are released by the next.
            try:
                found = _transact(connection, lambda: self._claimed(connection, most))
                self._delivered.clear()
                return found
            except sqlite3.OperationalError as exc:
                if not _without_room(exc):
                    raise
                # A claim cannot be written. Without one another process may send the same events,
                # which are charged once.
                return self._unclaimed(connection, most, self._owners(connection))

        return self._with_file(take)

    def _claimed(self, connection: sqlite3.Connection, most: int) -> list[Claimed]:
        self._strike(connection)
        owners = self._owners(connection)
        holders = {
            holder
            for owner in owners
            for (holder,) in connection.execute(
                "SELECT DISTINCT claimed_by FROM events WHERE owner = ? AND claimed_until_ms > 0",
                (owner,),
            )
        }
        # 1. Release the claims of dead processes at once, before they expire.
        dead = [(holder,) for holder in holders if not lives(holder)]
        connection.executemany(
            "UPDATE events SET claimed_until_ms = 0, claimed_by = NULL WHERE claimed_by = ?", dead
        )
        # 2. Take rows without a valid claim.
        found = self._unclaimed(connection, most, owners)
        until_ms = time.time_ns() // 1_000_000 + self._lease_ms
        connection.executemany(
            "UPDATE events SET claimed_until_ms = ?, claimed_by = ? WHERE id = ?",
            [(until_ms, self._holder, each.row.number) for each in found],
        )
        return found

    def _unclaimed(
        self, connection: sqlite3.Connection, most: int, owners: Sequence[bytes]
    ) -> list[Claimed]:
        # A claim that expires too far in the future was made before the clock was set back: it is
        # not valid.
        now_ms = time.time_ns() // 1_000_000
        found: list[Claimed] = []
        for owner in owners:
            rows = connection.execute(
                "SELECT id, event_id, body FROM events WHERE owner = ?"
                " AND (claimed_until_ms < ? OR claimed_until_ms > ?) ORDER BY id",
                (owner, now_ms, now_ms + 2 * self._lease_ms),
            )
            undelivered = (
                Claimed(row, body)
                for number, event_id, body in rows
                if (row := Row(number, event_id)) not in self._delivered
            )
            found += itertools.islice(undelivered, most - len(found))
        return found

    def settle(self, rows: Sequence[Row]) -> None:
        """Delete events that were delivered or finally refused; later, if there is no room for it.

        If the process dies before this, they are sent again, and charged once by their ids.
        """

        def strike(connection: sqlite3.Connection) -> None:
            self.pending = max(0, self.pending - len(set(rows) - self._delivered))
            self._delivered.update(rows)
            _transact(connection, lambda: self._strike(connection))
            self._delivered.clear()
            # Give the pages back once the backlog is gone, not after each batch. At most 10 000
            # pages, so that the lock is held for a limited time.
            if not self.pending:
                connection.execute("PRAGMA incremental_vacuum(10000)").fetchall()

        self._with_file(strike)

    def _strike(self, connection: sqlite3.Connection) -> None:
        connection.executemany("DELETE FROM events WHERE id = ? AND event_id = ?", self._delivered)

    def release(self, rows: Sequence[Row]) -> None:
        """Release claimed events that could not be delivered, for any process to claim."""

        def free(connection: sqlite3.Connection) -> None:
            _transact(
                connection,
                lambda: connection.executemany(
                    "UPDATE events SET claimed_until_ms = 0, claimed_by = NULL"
                    " WHERE id = ? AND event_id = ?",
                    rows,
                ),
            )

        self._with_file(free)

    def count(self) -> int:
        """Count the events of this owner and its account, whichever process wrote them."""
        return self._with_file(self._count)

    def _count(self, connection: sqlite3.Connection) -> int:
        count = "SELECT count(*) FROM events WHERE owner = ?"
        owners = self._owners(connection)
        found = sum(connection.execute(count, (each,)).fetchone()[0] for each in owners)
        # Another process may have deleted what this one has delivered.
        there = "SELECT 1 FROM events WHERE id = ? AND event_id = ?"
        self._delivered = {
            row for row in self._delivered if connection.execute(there, row).fetchone()
        }
        self.pending = found - len(self._delivered)
        return self.pending

    def _owners(self, connection: sqlite3.Connection) -> list[bytes]:
        """Return the owners whose events are delivered: the account's other secrets, and this one.

        Rows keep the owner that they were written with: a process may learn its account later.
        """
        others = connection.execute(
            "SELECT other.owner FROM accounts own JOIN accounts other USING (account)"
            " WHERE own.owner = ? AND other.owner <> ?",
            (self._owner, self._owner),
        )
        return [*(owner for (owner,) in others), self._owner]

    def note_loss(self, event_id: str, events: int) -> None:
        """Note that events were lost, for the next process to report; needs no room on the disk.

        Args:
            event_id: the id of the report.
            events: how many were lost.

        Raises:
            SpoolError: the directory cannot be written to.
        """
        try:
            prepare_directory(self._directory)
            loss_notes.write(self._directory, self._owner, event_id, events)
        except OSError as exc:
            raise SpoolError(f"{type(exc).__name__}: {exc}") from None

    def noted(self) -> list[Claimed]:
        """Return the losses that processes of this owner have noted, as events to deliver.

        Several processes may deliver one: it is counted once, by its id.
        """
        return [
            Claimed(Row(0, event_id), body)
            for event_id, body in loss_notes.found(self._directory, self._owner)
        ]

    def strike_notes(self, rows: Sequence[Row]) -> None:
        """Remove notes of losses that were reported."""
        for row in rows:
            loss_notes.remove(self._directory, row.event_id)

    def hurry(self) -> None:
        """Wait only briefly for other processes and threads from here on: the process is ending."""
        # Without the lock, which a thread that waits for another process may hold.
        self._busy_ms = _HURRY_MS
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.execute(f"PRAGMA busy_timeout = {_HURRY_MS}").fetchall()

    def close(self) -> None:
        """Close the file. Its events stay.

        A thread that still uses the file keeps it open until the process ends.
        """
        if self._lock.acquire(timeout=self._busy_ms / 1000):
            try:
                connection = self._connection
                if connection is not None and self._delivered:
                    with contextlib.suppress(sqlite3.Error):  # they are sent again, charged once
                        _transact(connection, lambda: self._strike(connection))
                self._drop_connection()
            finally:
                self._lock.release()

    # -- the file -----------------------------------------------------------------------------

    def _with_file(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` with the open file, under the lock.

        Raises:
            SpoolError: it failed, or the lock or the file is not free in time.
        """
        if not self._lock.acquire(timeout=2 * self._busy_ms / 1000):
            raise SpoolError("the disk does not answer")
        try:
            # Twice at most: a damaged file is set aside, and the work is done on a new one. Each
            # `work` is one transaction, so the first try has left nothing behind.
            for last in (False, True):
                try:
                    connection = self._opened()
                    self._note_account(connection)
                    return work(connection)
                except sqlite3.DatabaseError as exc:
                    if self._connection is not None:
                        _roll_back(self._connection)
                    if last or not _damaged(exc):
                        raise
                    self._set_aside()
            raise AssertionError("unreachable")
        except (sqlite3.Error, OSError) as exc:
            raise SpoolError(f"{type(exc).__name__}: {exc}") from None
        finally:
            self._lock.release()

    def _note_account(self, connection: sqlite3.Connection) -> None:
        account = self.account
        if account is None or self._noted == (self._inode, account):
            return
        # A full or busy disk must not keep events from it: the next use tries again.
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("REPLACE INTO accounts VALUES (?, ?)", (self._owner, account))
            self._noted = self._inode, account

    def _opened(self) -> sqlite3.Connection:
        """Return the connection to the file that is in the directory now; open it if need be."""
        if self._connection is not None:
            try:
                # Checked at each use: rows written to a file that was set aside would be lost.
                if self._path.lstat().st_ino == self._inode:
                    return self._connection
            except FileNotFoundError:
                pass
            self._drop_connection()  # another process has set the file aside
        prepare_directory(self._directory)
        # Locked: another process may be creating the file, or setting it aside, at this moment.
        with self._directory_locked():
            require_plain_file(self._path)
            connection = sqlite3.connect(
                self._path,
                timeout=self._busy_ms / 1000,
                isolation_level=None,  # transactions are begun and committed here, explicitly
                check_same_thread=False,  # any thread, one at a time, under the lock
            )
            try:
                self._set_up(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._inode = connection, self._path.lstat().st_ino
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        # Lets the file shrink; takes effect only before the first table is created.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        # A commit survives the death of the process; a power loss may undo the newest commits.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_MAX}").fetchall()
        # The file's own limit: a write beyond it fails with SQLITE_FULL.
        pages = max(16, self._bytes_max // _PAGE_BYTES)
        connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        connection.executescript(_SCHEMA)
        self._count(connection)

    def _at_cap(self, connection: sqlite3.Connection, size: int) -> bool:
        # SQLITE_FULL means that the file's own limit is reached or that the disk is full. It is the
        # limit if the rows and their index would bring the file near it. Events must not be dropped
        # for a full disk, which other files may have filled.
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (most,) = connection.execute("PRAGMA max_page_count").fetchone()
        return bool(pages + 2 * size // _PAGE_BYTES >= most - most // 8 - 1)

    def _next_room(self, connection: sqlite3.Connection, rows: int) -> int:
        # Twice as many as are to be written, since rows differ in size, and a share of all, so that
        # this does not run at every write.
        (total,) = connection.execute("SELECT count(*) FROM events").fetchone()
        return max(2 * rows, cast("int", total) // _ROOM_SHARE)

    def _evict(self, connection: sqlite3.Connection, most: int) -> tuple[int, int]:
        """Delete events in the open transaction; return how many, and how many of this owner."""
        # Events of all owners, since they share the file; no claimed ones, which are being
        # delivered.
        now_ms = time.time_ns() // 1_000_000
        rows = connection.execute(
            "SELECT id, owner = ? FROM events WHERE claimed_until_ms < ? ORDER BY priority, id"
            " LIMIT ?",
            (self._owner, now_ms, most),
        ).fetchall()
        connection.executemany("DELETE FROM events WHERE id = ?", [(row,) for row, _ in rows])
        logger.debug("the spool is full: %d events make room", len(rows))
        return len(rows), sum(is_own for _, is_own in rows)

    def _set_aside(self) -> None:
        """Move a damaged file out of the way for inspection; keep only a few of them."""
        inode = self._inode
        self._drop_connection()
        with self._directory_locked():
            with contextlib.suppress(FileNotFoundError):
                # Checked under the lock: the file at the path may be a new, undamaged one.
                if inode and self._path.lstat().st_ino != inode:
                    return  # another process was faster
            # Together with its side files: the new file must not be opened with the old one's log.
            stamp = f"damaged-{time.time_ns()}"
            for side in _SIDE_FILES:
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{self._path}{side}").rename(f"{self._path}.{stamp}{side}")
            logger.error("the spool's file was damaged; it is set aside as %s.%s", _FILE, stamp)
            stamps = {
                path.name.removeprefix(f"{_FILE}.damaged-").partition("-")[0]
                for path in self._directory.glob(f"{_FILE}.damaged-*")
            }
            for old in sorted(stamps)[:-_DAMAGED_KEPT]:
                for side in _SIDE_FILES:
                    Path(f"{self._path}.damaged-{old}{side}").unlink(missing_ok=True)

    @contextlib.contextmanager
    def _directory_locked(self) -> Iterator[None]:
        """Hold the lock that processes take to create the file or to set it aside."""
        # A file of its own: the spool's file is replaced, and closing a second descriptor of it
        # would give up SQLite's locks on it.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._directory / _LOCK_FILE, flags, 0o600)
        try:
            ends = time.monotonic() + self._busy_ms / 1000
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > ends:
                        raise
                    time.sleep(0.005)
            yield
        finally:
            # Unlocked, not only closed: a child that was forked meanwhile has the descriptor too,
            # and would keep the lock as long as it lives.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        self._inode = 0
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _damaged(exc: sqlite3.DatabaseError) -> bool:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _without_room(exc: sqlite3.OperationalError) -> bool:
    """Return whether the file cannot be written now, but perhaps read: a full or failing disk."""
    code = exc.sqlite_errorcode & 0xFF
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY)


def _transact(connection: sqlite3.Connection, work: Callable[[], T]) -> T:
    """Do ``work`` in a transaction; without room once more, with the log emptied into the file."""
    for is_last in (False, True):
        try:
            # IMMEDIATE takes the write lock now: a transaction that starts by reading could fail
            # later without waiting.
            connection.execute("BEGIN IMMEDIATE")
            done = work()
            connection.execute("COMMIT")
            return done
        except sqlite3.OperationalError as exc:
            _roll_back(connection)
            if is_last or not _without_room(exc):
                raise
            with contextlib.suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint").fetchall()
    raise AssertionError("unreachable")


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


_spools: weakref.WeakSet[Spool] = weakref.WeakSet()
# The spools that the current fork has locked, in the thread that forks.
_quiet = threading.local()


def _before_fork() -> None:
    """Ensure that no SQLite call runs and no connection is open while the process forks.

    If a thread does not give up a spool in time, the fork goes ahead without it.

    A child inherits SQLite's own record of its parent's locks (https://sqlite.org/howtocorrupt.html,
    2.6): with an open transaction the file would stay locked for the child for ever.
    """
    _quiet.held = []
    for spool in list(_spools):
        if spool._lock.acquire(timeout=_FORK_WAIT_S):
            _quiet.held.append(spool)
            spool._drop_connection()


def _after_fork() -> None:
    for spool in _quiet.held:
        spool._lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
