"""The unit of work over SQLite: one connection, one transaction at a time, and its caches."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from guard.gateway.domain.clock import SteadyClock
from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.errors import StoreBusyError
from guard.gateway.domain.ledger import Reservation
from guard.gateway.storage.sqlite.connection import SqliteWriteConnection
from guard.gateway.unit.record import RowChange
from guard.gateway.unit.state import Touches
from guard.gateway.unit.unit_of_work import AWAY_MS, UnitOfWork


class SqliteUnitOfWork(UnitOfWork):
    """A unit of work over SQLite.

    The caches are filled once, when the file is opened, and stay valid from one unit to the next,
    because one process owns the file.
    """

    # Opened and owned by the engine. Used by the thread of the group writer or by the loop, never
    # by both at a time.

    connection: SqliteWriteConnection

    def __init__(
        self,
        connection: SqliteWriteConnection,
        clock_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        resume: Callable[[UnitOfWork], object] | None = None,
    ) -> None:
        super().__init__(connection)
        self._resume = resume
        # When a unit was last committed: the sweep commits some each second.
        self._committed_ms = monotonic_ms()
        # Whoever waits for another program waits in the group writer, which knows where it may.
        connection.execute("PRAGMA busy_timeout = 0")
        self.load_organisations()
        self.load_open()
        self._clock_ms = clock_ms
        # Stored by ``housekeep``: after a restart the clock does not run backwards.
        row = self.row("SELECT value FROM facts WHERE name = 'clock_ms'")
        last_ms = 0 if row is None else int(row[0])
        self._monotonic_ms = monotonic_ms
        self._clock = SteadyClock(last_ms, clock_ms(), monotonic_ms())
        self.now_ms = self._clock.now_ms

    # -- transaction ---------------------------------------------------------------------------

    def begin(self, touches: Sequence[Touches]) -> None:
        """Open a transaction and read the clock; look up the answers of the group together.

        Raises:
            StoreBusyError: another program is writing to the file.
        """
        # IMMEDIATE takes the write lock now. A transaction that begins by reading would fail at its
        # first write if another program wrote to the file meanwhile.
        try:
            self.connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:  # also while a log is recovered
                raise StoreBusyError("another program is writing to the database") from exc
            raise
        self._undo_from = 0
        monotonic_ms = self._monotonic_ms()
        self.now_ms = self._clock.read(self._clock_ms(), monotonic_ms)
        # Stopped, or with a full disk: nobody could renew anything, so nothing may have expired.
        if self._resume is not None and monotonic_ms - self._committed_ms > AWAY_MS:
            self._resume(self)
        lookup_keys = [s.lookup_key for s in touches if s.lookup_key is not None]
        self.answers.take(self.answers.send_lookup(lookup_keys))

    def commit(self) -> list[PostCommitEvent]:
        """Write back everything that changed, commit, and return the post-commit events."""
        self.flush()
        self.connection.execute("COMMIT")
        self._committed_ms = self._monotonic_ms()
        return self.committed()

    def rollback(self) -> None:
        """Undo everything since :meth:`begin`, in the database and in the caches."""
        self.undo_all()
        # SQLite itself may have rolled back, such as on a full disk; and ``begin`` may have failed.
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def insert_numbered(self, column: str, change: RowChange, row: tuple[Any, ...]) -> int:
        """Insert a row whose number the database chooses, and return the number."""
        self.write(change, row)
        (number,) = self.connection.execute("SELECT last_insert_rowid()").fetchone()
        return int(number)

    def reopen(self, reservation: Reservation) -> None:
        """Open an expired reservation again; it may be older than all that are open."""
        super().reopen(reservation)
        # In the same transaction: after a crash, ``load_open`` must find it.
        self._save_oldest(min(self.reservations))

    def _save_oldest(self, reservation_id: str) -> None:
        # Ids of one millisecond have no order across processes, so only the time is stored.
        self.save_fact("oldest_open", reservation_id[: len("xxxxxxxx-xxxx")])

    # -- maintenance ---------------------------------------------------------------------------

    def truncate_log(self) -> None:
        """Copy the whole write-ahead log into the database and start it afresh, unless it is read.

        A long report or a backup keeps the log in use; the next sweep tries again.
        """
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def housekeep(self) -> None:
        """Drop old nonces and rollups; store the clock and the oldest open reservation."""
        self.prune([*self.orgs])
        self.write("DELETE FROM nonces WHERE expires_at_ms < ?", (self.now_ms,))
        self._save_oldest(min(self.reservations, default=None) or self.ids.uuid7(self.now_ms))
        self.save_fact("clock_ms", str(self.now_ms))
