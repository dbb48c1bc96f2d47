"""A unit of work over SQL: what is the same whatever engine commits it."""

from __future__ import annotations

import abc
import secrets
from collections.abc import Sequence

from guard.core.ids import IdFactory
from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.ledger.state import Scopes
from guard.gateway.storage.sql.alert_tables import AlertTables
from guard.gateway.storage.sql.catalogue_tables import CatalogueTables
from guard.gateway.storage.sql.connection import WritingConnection
from guard.gateway.storage.sql.directory_tables import DirectoryTables
from guard.gateway.storage.sql.money import MoneyTables
from guard.gateway.storage.sql.repeat_tables import RepeatTables
from guard.gateway.storage.sql.scope_days import DAYS, HOURS, EventSums, ScopeSums
from guard.gateway.storage.sql.tag_sums import TagSums


class SqlUnitOfWork(
    CatalogueTables, AlertTables, RepeatTables, DirectoryTables, MoneyTables, abc.ABC
):
    """Implements :class:`guard.gateway.ledger.unit_of_work.UnitOfWork`, but for the transaction.

    An engine opens, commits and rolls back the transaction, and says which cached rows are valid.
    The undo log undoes a failed command or unit; nothing is read again.
    """

    def __init__(self, connection: WritingConnection) -> None:
        super().__init__(connection)
        self.ids = IdFactory()
        self.incarnation = secrets.token_hex(8)
        self.scope_sums: list[EventSums] = [
            ScopeSums(self, DAYS), ScopeSums(self, HOURS), TagSums(self),
        ]  # fmt: skip
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

    def announce(self, event: PostCommitEvent) -> None:
        """Deliver an event once the unit has committed."""
        self.events.append(event)
        self.on_undo(self.events.pop)

    def committed(self) -> list[PostCommitEvent]:
        """Forget how to undo what was committed; return the post-commit events."""
        self.counts.committed()
        self.tally.committed()
        self.undo_log.clear()
        events, self.events = self.events, []
        return events

    def undo_all(self) -> None:
        """Undo everything since the unit began, in the caches."""
        self._has_savepoint = False
        self._restore(0)
        self._forget_changes()
        self.counts.start(self.leases.values())
        self.undo_log.clear()
        self.answers.forget()
        self.rollups.forget()
        self.totals.forget()
        self.uncertain.forget()
        self.seen.forget()
        self.tally.forget()
        self.events.clear()
