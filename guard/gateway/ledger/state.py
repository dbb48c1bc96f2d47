"""Types of the unit-of-work port besides the domain's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import models, records
from guard.gateway.domain.commands import (
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    ReleaseCommand,
)
from guard.gateway.domain.control import Directives
from guard.gateway.domain.ledger import Account, Reservation

ScopeKeys = tuple[str | None, str | None, str | None, str | None, str | None, tuple[str, ...]]
"""Workflow, agent, chain, user and key of a call or an event, and every name of its models."""

SCOPE_KINDS: Final[tuple[records.ScopeKind, ...]] = ("workflow", "agent", "chain", "user", "key")
"""The kinds of the first parts of ``ScopeKeys``; the last one's is ``model``."""

NO_SCOPES: Final = (None, None, None, None, None)
"""The first parts of ``ScopeKeys`` where only models count."""


class BudgetsOfKind(Struct):
    """The budgets of one kind of scope.

    Attributes:
        exact: by the id that they are of.
        globs: for each matching id by itself.
        each: for each id by itself.
    """

    exact: dict[str, list[records.Budget]] = {}
    globs: list[records.Budget] = []
    each: list[records.Budget] = []


BudgetIndex = dict[str, BudgetsOfKind]
"""Budgets by kind of scope."""


class Scopes(Struct):
    """What a command is going to touch, known before it runs.

    Args:
        lookup_key: the name under which an earlier answer to the same request is stored.
        command: the ledger command; ``None`` for administration.
        organisations: the organisations that administration touches; ``None``: any.
    """

    lookup_key: str | None = None
    command: GateCommand | IngestCommand | LeaseCommand | ReleaseCommand | None = None
    organisations: tuple[str, ...] | None = None

    def organisation_ids(self) -> tuple[str, ...] | None:
        """Return the organisations whose rows the command may change; ``None``: any."""
        if self.command is not None:
            return (self.command.request.organisation_id,)
        return self.organisations

    def reservation_ids(self) -> set[str]:
        """Return the reservations that the command names."""
        command = self.command
        if command is None:
            return set()
        if isinstance(command, ReleaseCommand):
            return {command.reservation_id}
        if isinstance(command, LeaseCommand):
            return {command.update.lease_id}
        found = {
            priced.event.reservation_id
            for priced in command.events
            if priced.event.reservation_id is not None
        }
        if isinstance(command, GateCommand):
            lease = command.call.lease
            named = (command.call.held, None if lease is None else lease.lease_id)
            found.update(each for each in named if each is not None)
        return found

    def priced_events(self) -> list[tuple[str, PricedEvent]]:
        """Return the events that the command reports, with their organisation."""
        if not isinstance(self.command, (GateCommand, IngestCommand)):
            return []
        own = self.command.request.organisation_id
        return [(own, priced) for priced in self.command.events]

    def scope_keys(
        self,
        find: Callable[[str], Reservation | None],
        last_model: Callable[[str, str, str | None], str | None],
    ) -> set[ScopeKeys]:
        """Return the scopes whose balances the command may read or change.

        Args:
            find: returns a reservation by its id; an event inherits what it leaves out.
            last_model: returns the model that calls of an organisation, function and workflow
                have used last; a gate that names none reads its balances.
        """
        command = self.command
        if command is None or isinstance(command, (LeaseCommand, ReleaseCommand)):
            return set()
        key_id = command.request.key_id
        found: set[ScopeKeys] = set()
        for priced in command.events:
            event = priced.event
            held = None if event.reservation_id is None else find(event.reservation_id)
            workflow, agent, chain = event.workflow_id, event.agent, event.chain_id
            user = event.user
            if held is not None:
                workflow = workflow or held.workflow_id
                agent = agent or held.agent
                chain = chain or held.chain_id
                user = user or held.user
            asked = None if held is None else held.model
            found.add((workflow, agent, chain, user, key_id, models.names(priced.model, asked)))
            found.add((workflow, agent, chain, user, key_id, ()))
        if isinstance(command, GateCommand):
            call = command.call
            chain = None if call.chain is None else call.chain.id
            asked = None if call.model == wire.UNKNOWN_MODEL else call.model
            own_scopes = (call.workflow_id, call.agent, chain, call.user, key_id)
            found.add((*own_scopes, models.names(asked)))
            answers = command.answers_function
            if answers is not None:
                answered = last_model(command.request.organisation_id, answers, None)
                named = models.names(answered, asked)
                found.add((*own_scopes, named))
            if asked is None:
                function = f"{call.kind}:{call.function}"
                own = command.request.organisation_id
                guessed = models.names(last_model(own, function, call.workflow_id))
                found.add((*NO_SCOPES, guessed))
        return found


class Chain(Struct, frozen=True):
    """A chain, open or closed."""

    opened_at_ms: int
    expires_at_ms: int
    closed: bool


class StoredAnswer(Struct):
    """A stored answer, with the fingerprint of its request."""

    fingerprint: bytes
    status: int
    body: bytes


class AuditRow(NamedTuple):
    """One entry of the audit log as stored; ``details`` is JSON text."""

    seq: int
    at_ms: int
    organisation_id: str | None
    actor: str
    action: str
    target: str
    details: str
    prev_hash: str
    hash: str


class OrganisationState(Struct):
    """One organisation as a unit of work sees it.

    ``budgets`` is ``None`` until a rule needs it, and again after a change of a budget.
    """

    organisation_id: str
    settings: records.OrganisationSettings
    control_seq: int
    directives: Directives
    budgets: BudgetIndex | None = None
    accounts: dict[ScopeKeys, tuple[float, list[Account]]] = {}
    compacted_seq: int = 0
