"""The part of a unit of work over SQL that all engines share."""

from __future__ import annotations

import abc
import secrets
from collections.abc import Sequence
from typing import Final

from guard.core.ids import IdFactory
from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.ledger.state import Scopes
from guard.gateway.storage.sql.alert_tables import AlertTables
from guard.gateway.storage.sql.catalogue_tables import CatalogueTables
from guard.gateway.storage.sql.connection import WritingConnection
from guard.gateway.storage.sql.directory_tables import DirectoryTables
from guard.gateway.storage.sql.money import MoneyTables
from guard.gateway.storage.sql.repeat_tables import RepeatTables

_PRUNED_MS: Final = 60_000


class SqlUnitOfWork(
    CatalogueTables, AlertTables, RepeatTables, DirectoryTables, MoneyTables, abc.ABC
):
    """Implements :class:`guard.gateway.ledger.unit_of_work.UnitOfWork`, except its transaction.

    An engine opens, commits and rolls back the transaction, and decides which cached rows are
    valid. A failed command or unit is undone from the undo log, in memory: no row is read again.
    Used by one thread at a time; the group writer decides which.
    """

    def __init__(self, connection: WritingConnection) -> None:
        super().__init__(connection)
        self.ids = IdFactory()
        # A random id of this opening of the store, the ``epoch`` of the control messages numbered
        # in it: a client notices by it that its record is not this store's.
        self.incarnation = secrets.token_hex(8)
        # When rows that are kept for a short time were last deleted.
        self._pruned_at_ms = 0
        # Announced by the commands of this unit, in order; delivered only after the commit.
        self.events: list[PostCommitEvent] = []

    @abc.abstractmethod
    def begin(self, scopes: Sequence[Scopes]) -> None:
        """Open a transaction."""

    @abc.abstractmethod
    def commit(self) -> list[PostCommitEvent]:
        """Write back everything that changed, commit, and return the post-commit events."""

    @abc.abstractmethod
    def rollback(self) -> None:
        """Undo everything since :meth:`begin`, in the database and in the caches."""

    @abc.abstractmethod
    def housekeep(self) -> None:
        """Do the store's own maintenance."""

    def prune(self, organisation_ids: Sequence[str]) -> None:
        """Delete some of the rows that are kept for a short time, once a minute."""
        if self.now_ms - self._pruned_at_ms < _PRUNED_MS:
            return
        self._pruned_at_ms = self.now_ms
        self.usage.prune(organisation_ids)
        for own in organisation_ids:
            self.write(
                "DELETE FROM rate_windows WHERE organisation_id = ? AND ends_ms <= ? AND lent = 0",
                (own, self.now_ms),
            )
        self.refusals.prune()
        self.write("DELETE FROM sessions WHERE expires_at_ms <= ?", (self.now_ms,))

    def announce(self, event: PostCommitEvent) -> None:
        """Deliver an event once the unit has committed."""
        self.events.append(event)
        # The log is undone newest first, so the last event is always the one to remove.
        self.on_undo(self.events.pop)

    def committed(self) -> list[PostCommitEvent]:
        """Make a commit final in memory: clear the undo log; return the post-commit events.

        Called after the database has confirmed the commit, never before: until then a failure has
        to be undone.
        """
        self.counts.committed()
        self.tally.committed()
        self.undo_log.clear()
        events, self.events = self.events, []
        return events

    def undo_all(self) -> None:
        """Undo everything since the unit began, in the caches."""
        # The rollback or the lost connection ends the savepoint in the database.
        self._has_savepoint = False
        # 1. The log first: it restores the rows' values, which the steps below read.
        self._restore(0)
        # 2. The change marks; the values agree with the database again.
        self._forget_changes()
        # 3. What ``flush`` may have counted before the commit failed.
        self.counts.start(self.leases.values())
        # ``_forget_changes`` has written to the log, and nothing may be undone twice.
        self.undo_log.clear()
        self.answers.forget()
        self.usage.forget()
        self.refusals.forget()
        self.tally.forget()
        self.events.clear()
