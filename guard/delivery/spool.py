"""Events on disk: undelivered events wait here and survive the process.

One SQLite file in WAL mode, in its own directory, shared by any number of processes. A process
that delivers claims rows for a limited time; if it dies, the claim expires and another process
takes them. An event keeps its ``event_id``, so one that was delivered but could not be deleted
is still charged only once.

Every method may raise :class:`SpoolError` (disk full, locked for too long, permissions); a file
that turns out to be damaged is set aside and a new one is created. Blocking: for worker threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
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
_HURRY_MS: Final = 50
_FORK_WAIT_S: Final = 1.0
_WAL_BYTES_MAX: Final = 4 * 1024 * 1024
_DAMAGED_KEPT: Final = 3
_ROW_BYTES: Final = 150
"""Approximate size of a row besides its body, indexes included."""

_ROOM_SHARE: Final = 16
"""A full spool drops at least 1/16 of its events at a time."""

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
"""


class SpoolError(Exception):
    """The spool cannot be used at the moment."""


class Spooled(NamedTuple):
    """One event to be written to disk."""

    event_id: str
    priority: int
    body: bytes


class Claimed(NamedTuple):
    """One event that this process is to deliver."""

    row: int
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


def owner_of(api_url: str, api_key: str) -> bytes:
    """Return an identifier of one gateway and key that does not reveal the key.

    Events are delivered only with the key that they were recorded under: another key may belong
    to another tenant, who must not be charged.
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
        pending: events of this owner on disk, as of the last count.
    """

    def __init__(
        self, directory: Path, owner: bytes, *, bytes_max: int, lease_s: float = 30.0
    ) -> None:
        self._directory = directory
        self._path = directory / _FILE
        self._owner = owner
        self._bytes_max = bytes_max
        self._lease_ms = int(lease_s * 1000)
        # One thread at a time uses the connection; also taken by a fork (`_before_fork`).
        self._lock = threading.Lock()
        # Opened on first use, and again after a fork or when the file was replaced.
        self._connection: sqlite3.Connection | None = None
        # Of the open file: another process may have set it aside and made a new one.
        self._inode = 0
        # Names this process in its claims.
        self._holder = holder_of(os.getpid())
        # How long to wait for other processes; short once this one is ending.
        self._busy_ms = _BUSY_MS
        self.pending = 0
        _spools.add(self)

    def take_over(self, *, also_living: bool = False, of_all: bool = False) -> int:
        """Write down what dead processes have left open in their journals.

        Args:
            also_living: whether to take that of living ones too, since nobody charges it later.
            of_all: whether what other owners have left, here and in journals, becomes this one's,
                because their keys are revoked.

        Returns:
            How many requests that were.
        """
        taken = 0
        for left in left_behind(self._directory, also_living=also_living):
            events = [event_of_open(request) for request in left.requests]
            if events:
                self.append(events, self._owner if of_all else left.owner)
            taken += len(events)
        if of_all:
            self._with_file(self._own_all)
        return taken

    def _own_all(self, connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE OR REPLACE events SET owner = ?", (self._owner,))

    def append(self, events: Sequence[Spooled], owner: bytes | None = None) -> int:
        """Write events; once written they survive a SIGKILL.

        Args:
            events: to be written.
            owner: of the events; this spool's own when None.

        Returns:
            How many events were dropped to make room, the least important and oldest first.
        """

        def write(connection: sqlite3.Connection) -> int:
            rows = [(owner or self._owner, *event) for event in events]
            size = sum(len(event.body) + _ROW_BYTES for event in events)
            dropped = 0
            while True:
                try:
                    # IMMEDIATE takes the write lock now: a transaction that starts by reading could
                    # fail later without waiting.
                    connection.execute("BEGIN IMMEDIATE")
                    # IGNORE: an event that an earlier, cancelled write has stored stays one row.
                    new = connection.executemany(
                        "INSERT OR IGNORE INTO events (owner, event_id, priority, body)"
                        " VALUES (?, ?, ?, ?)",
                        rows,
                    ).rowcount
                    connection.execute("COMMIT")
                except sqlite3.OperationalError as exc:
                    _roll_back(connection)
                    full = exc.sqlite_errorcode == sqlite3.SQLITE_FULL
                    if not full or not self._at_cap(connection, size):
                        raise  # the disk itself is full, or another process writes for too long
                    # The file has reached its own limit: drop some events and try again.
                    gone = self._make_room(connection, len(rows))
                    if not gone:
                        raise
                    dropped += gone
                else:
                    self.pending += new if owner in (None, self._owner) else 0
                    return dropped

        return self._with_file(write)

    def claim(self, most: int) -> list[Claimed]:
        """Take up to ``most`` events, oldest first, that no living process has claimed."""

        def take(connection: sqlite3.Connection) -> list[Claimed]:
            now_ms = time.time_ns() // 1_000_000
            connection.execute("BEGIN IMMEDIATE")
            holders = connection.execute(
                "SELECT DISTINCT claimed_by FROM events WHERE owner = ? AND claimed_until_ms > 0",
                (self._owner,),
            ).fetchall()
            # A dead process's claims need not run out first.
            dead = [(holder,) for (holder,) in holders if not lives(holder)]
            connection.executemany(
                "UPDATE events SET claimed_until_ms = 0, claimed_by = NULL WHERE claimed_by = ?",
                dead,
            )
            # A claim that expires too far ahead was made under another clock: it is void.
            rows = connection.execute(
                "SELECT id, body FROM events WHERE owner = ?"
                " AND (claimed_until_ms < ? OR claimed_until_ms > ?) ORDER BY id LIMIT ?",
                (self._owner, now_ms, now_ms + 2 * self._lease_ms, most),
            ).fetchall()
            connection.executemany(
                "UPDATE events SET claimed_until_ms = ?, claimed_by = ? WHERE id = ?",
                [(now_ms + self._lease_ms, self._holder, row) for row, _ in rows],
            )
            connection.execute("COMMIT")
            return [Claimed(row, body) for row, body in rows]

        return self._with_file(take)

    def settle(self, rows: Sequence[int]) -> None:
        """Delete events that were delivered (or permanently refused)."""

        def strike(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            gone = connection.executemany(
                "DELETE FROM events WHERE id = ?", [(row,) for row in rows]
            ).rowcount
            connection.execute("COMMIT")
            self.pending = max(0, self.pending - gone)
            if not self.pending:
                connection.execute("PRAGMA incremental_vacuum(10000)").fetchall()

        self._with_file(strike)

    def release(self, rows: Sequence[int]) -> None:
        """Release claimed events that could not be delivered."""

        def free(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "UPDATE events SET claimed_until_ms = 0, claimed_by = NULL WHERE id = ?",
                [(row,) for row in rows],
            )
            connection.execute("COMMIT")

        self._with_file(free)

    def look(self) -> int:
        """Count the events of this owner, whichever process wrote them."""
        return self._with_file(self._count)

    def _count(self, connection: sqlite3.Connection) -> int:
        (self.pending,) = connection.execute(
            "SELECT count(*) FROM events WHERE owner = ?", (self._owner,)
        ).fetchone()
        return self.pending

    def hurry(self) -> None:
        """Wait only briefly for other processes and threads from now on: the process is ending."""
        self._busy_ms = _HURRY_MS
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.execute(f"PRAGMA busy_timeout = {_HURRY_MS}").fetchall()

    def close(self) -> None:
        """Close the file. Its events stay."""
        if self._lock.acquire(timeout=self._busy_ms / 1000):
            try:
                self._drop_connection()
            finally:
                self._lock.release()

    # -- the file -----------------------------------------------------------------------------

    def _with_file(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if not self._lock.acquire(timeout=2 * self._busy_ms / 1000):
            raise SpoolError("the disk does not answer")
        try:
            # Twice: a damaged file is set aside, and the work is done on a new one.
            for last in (False, True):
                try:
                    return work(self._opened())
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

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None:
            try:
                if self._path.lstat().st_ino == self._inode:
                    return self._connection
            except FileNotFoundError:
                pass
            self._drop_connection()  # another process has set the file aside
        prepare_directory(self._directory)
        # Locked: another process may be creating the file, or setting it aside, right now.
        with self._directory_locked():
            require_plain_file(self._path)
            connection = sqlite3.connect(
                self._path,
                timeout=self._busy_ms / 1000,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self._set_up(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._inode = connection, self._path.lstat().st_ino
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        # Only before the first table is created: then the file can shrink.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        # A commit survives the death of the process; power loss may undo the newest ones.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_MAX}").fetchall()
        pages = max(16, self._bytes_max // _PAGE_BYTES)
        connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        connection.executescript(_SCHEMA)
        self._count(connection)

    def _at_cap(self, connection: sqlite3.Connection, size: int) -> bool:
        # SQLITE_FULL means the file's own limit or a full disk. Only near the limit, with room for
        # the rows and their index, is it the former.
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (most,) = connection.execute("PRAGMA max_page_count").fetchone()
        return bool(pages + 2 * size // _PAGE_BYTES >= most - most // 8 - 1)

    def _make_room(self, connection: sqlite3.Connection, wanted: int) -> int:
        # Of all owners, but no claimed ones, which are being delivered. Twice as many as wanted,
        # since rows differ in size, and a share of the whole, so that this does not run for every
        # write.
        now_ms = time.time_ns() // 1_000_000
        connection.execute("BEGIN IMMEDIATE")
        (total,) = connection.execute("SELECT count(*) FROM events").fetchone()
        rows = connection.execute(
            "SELECT id, owner = ? FROM events WHERE claimed_until_ms < ? ORDER BY priority, id"
            " LIMIT ?",
            (self._owner, now_ms, max(2 * wanted, total // _ROOM_SHARE)),
        ).fetchall()
        connection.executemany("DELETE FROM events WHERE id = ?", [(row,) for row, _ in rows])
        connection.execute("COMMIT")
        own = sum(is_own for _, is_own in rows)
        self.pending = max(0, self.pending - own)
        logger.debug("the spool is full: %d events made room", len(rows))
        return len(rows)

    def _set_aside(self) -> None:
        """Move a damaged file out of the way for inspection; keep only a few of them."""
        inode = self._inode
        self._drop_connection()
        with self._directory_locked():
            with contextlib.suppress(FileNotFoundError):
                if inode and self._path.lstat().st_ino != inode:
                    return  # another process was faster
            # With its side files: a new file must not be read with the old one's log.
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
            # A child that was forked meanwhile has the descriptor too: closing only ours would
            # leave the file locked for as long as that child lives.
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


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


_spools: weakref.WeakSet[Spool] = weakref.WeakSet()
_quiet = threading.local()


def _before_fork() -> None:
    """Ensure that no SQLite call runs and no connection is open while the process forks.

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
