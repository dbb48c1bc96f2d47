"""The unit of work over SQLite: one connection, one transaction at a time, and its caches."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Sequence

from guard.core.ids import IdFactory
from guard.gateway.domain.clock import SteadyClock
from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.ledger.state import Scopes
from guard.gateway.storage.sqlite.catalogue_tables import CatalogueTables
from guard.gateway.storage.sqlite.directory_tables import DirectoryTables
from guard.gateway.storage.sqlite.money import MoneyTables
from guard.gateway.storage.sqlite.scope_days import ScopeDays


class SqliteUnitOfWork(CatalogueTables, DirectoryTables, MoneyTables):
    """Implements :class:`guard.gateway.ledger.unit_of_work.UnitOfWork`.

    The caches are filled once, when the file is opened, and stay valid from one unit to the next,
    because one process owns the file. The undo log undoes a failed command or unit; nothing is read
    again.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        super().__init__(connection)
        self.ids = IdFactory()
        self.incarnation = secrets.token_hex(8)
        self._clock_ms = clock_ms
        self._events: list[PostCommitEvent] = []
        self.scope_days = ScopeDays(self)
        row = self.row("SELECT value FROM facts WHERE name = 'clock_ms'")
        last_ms = 0 if row is None else int(row[0])
        self._monotonic_ms = monotonic_ms
        self._clock = SteadyClock(last_ms, clock_ms(), monotonic_ms())
        self.now_ms = self._clock.now_ms

    # -- transaction ---------------------------------------------------------------------------

    def begin(self, scopes: Sequence[Scopes]) -> None:
        """Open a transaction and read the clock; look up the answers of the group together."""
        self.connection.execute("BEGIN IMMEDIATE")
        self._undo_from = 0
        self.now_ms = self._clock.read(self._clock_ms(), self._monotonic_ms())
        self._answers.begin([s.lookup_key for s in scopes if s.lookup_key is not None])

    def commit(self) -> list[PostCommitEvent]:
        """Write back everything that changed, commit, and return the post-commit events."""
        self.flush()
        self.connection.execute("COMMIT")
        self.counts.committed()
        self.undo_log.clear()
        events, self._events = self._events, []
        return events

    def rollback(self) -> None:
        """Undo everything since :meth:`begin`, in the database and in the caches."""
        self._has_savepoint = False
        self._restore(0)
        self._forget_changes()
        # The oldest reservation comes first again, as ``housekeep`` expects.
        in_order = sorted(self.reservations.items())
        self.reservations.clear()
        self.reservations.update(in_order)
        self.counts.start(self.leases.values())
        self.undo_log.clear()
        self._answers.forget()
        self.rollups.forget()
        self.totals.forget()
        self.seen.forget()
        self._events.clear()
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def announce(self, event: PostCommitEvent) -> None:
        """Deliver an event once the unit has committed."""
        self._events.append(event)
        self.on_undo(self._events.pop)

    # -- maintenance ---------------------------------------------------------------------------

    def truncate_log(self) -> None:
        """Copy the whole write-ahead log into the database and start it afresh, if nobody reads.

        A long report or a backup holds on to the log; the next sweep tries again.
        """
        execute = self.connection.execute
        (patience_ms,) = execute("PRAGMA busy_timeout").fetchone()
        execute("PRAGMA busy_timeout = 0")
        try:
            execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            execute(f"PRAGMA busy_timeout = {patience_ms}")

    def housekeep(self) -> None:
        """Drop old nonces and rollups; store the clock and the oldest open reservation."""
        self.rollups.prune(list(self.orgs))
        self.scope_days.look()
        self.write("DELETE FROM nonces WHERE expires_at_ms < ?", (self.now_ms,))
        # Ids of one millisecond have no order across processes, so only the time is stored.
        oldest = next(iter(self.reservations), None) or self.ids.uuid7(self.now_ms)
        millisecond = oldest[: len("xxxxxxxx-xxxx")]
        self.write("INSERT OR REPLACE INTO facts VALUES ('oldest_open', ?)", (millisecond,))
        self.write("INSERT OR REPLACE INTO facts VALUES ('clock_ms', ?)", (str(self.now_ms),))
