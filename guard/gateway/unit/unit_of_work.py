"""A unit of work: everything that the ledger's rules ask of a storage, and all that engines share.

A unit of work serves a group of commands. It begins with what they touch, so that a store with
locks reads and locks all rows of the group at once, always in the same order: two units then
cannot deadlock. Then the commands run, one after the other, each behind a savepoint; then every
table is written back in one statement and committed. A process runs one unit of a store at a time.

Objects that a unit of work hands out belong to it. A rule that is going to change a balance or a
reservation announces that first (``change_balances``, ``change_reservation``): the unit writes it
back at the end, and :meth:`UnitOfWork.undo` restores it when the command fails. A change that was
not announced would be lost, or outlive a failed command. Objects must not be used in a later unit;
whether rows stay cached between units is up to the engine.
"""

from __future__ import annotations

import abc
import secrets
from collections.abc import Sequence
from typing import Final

from guard.core.ids import IdFactory
from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.unit.alert_tables import AlertTables
from guard.gateway.unit.catalogue_tables import CatalogueTables
from guard.gateway.unit.connection import WritingConnection
from guard.gateway.unit.control_tables import ControlTables
from guard.gateway.unit.directory_tables import DirectoryTables
from guard.gateway.unit.later_tables import LaterTables
from guard.gateway.unit.login_tables import LoginTables
from guard.gateway.unit.money import LedgerTables
from guard.gateway.unit.raise_tables import RaiseTables
from guard.gateway.unit.repeat_tables import RepeatTables
from guard.gateway.unit.state import Touches

_PRUNED_MS: Final = 60_000


AWAY_MS: Final = 5000
"""How long holders may go without a gateway until what they hold is renewed by it."""


class UnitOfWork(ControlTables, LedgerTables, abc.ABC):
    """One unit of work, except its transaction.

    An engine opens, commits and rolls back the transaction, and decides which cached rows are
    valid. A failed command or unit is undone from the undo log, in memory: no row is read again.
    Used by one thread at a time; the group writer decides which.

    Attributes:
        now_ms: the store's clock at the beginning; it never runs backwards.
        incarnation: identifies this opening of the store (``epoch`` of its control messages): by a
            random id a client notices that its record is not this store's.
        ids: makes identifiers.
        events: what the commands of this unit have announced, in order; delivered only after the
            commit.
        catalogue: budgets, policies and prices.
        raises: raises of budgets, the calls that wait for one, and the runs that wind down.
        repeats: how often runs have made the same call, and which were flagged.
        later: work that vendors finish later, and who has begun it.
        alerts: webhooks and other channels, alert rules, facts that were sent, and deliveries.
        directory: organisations, keys, nonces, operators, sessions and the audit log.
        logins: people who sign in with ``guard login``.
    """

    def __init__(self, connection: WritingConnection) -> None:
        super().__init__(connection)
        self.catalogue = CatalogueTables(self)
        self.raises = RaiseTables(self)
        self.repeats = RepeatTables(self)
        self.later = LaterTables(self)
        self.alerts = AlertTables(self)
        self.directory = DirectoryTables(self)
        self.logins = LoginTables(self)
        self.ids = IdFactory()
        self.incarnation = secrets.token_hex(8)
        # When rows that are kept for a short time were last deleted.
        self._pruned_at_ms = 0
        self.events: list[PostCommitEvent] = []

    @abc.abstractmethod
    def begin(self, touches: Sequence[Touches]) -> None:
        """Open a transaction, read the store's clock, read and lock what the commands touch."""

    @abc.abstractmethod
    def commit(self) -> list[PostCommitEvent]:
        """Write back everything that changed, commit, and return the post-commit events."""

    @abc.abstractmethod
    def rollback(self) -> None:
        """Undo everything since :meth:`begin`, in the database and in the caches."""

    @abc.abstractmethod
    def housekeep(self) -> None:
        """Do the store's own maintenance, such as dropping old nonces."""

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
        self.later.prune()
        self.logins.prune()
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
        self.directory.newest_audit = None
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
