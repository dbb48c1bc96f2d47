"""Types of the unit-of-work port besides the domain's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import models, records
from guard.gateway.domain.commands import GateCommand, IngestCommand, ReleaseCommand
from guard.gateway.domain.control import Directives
from guard.gateway.domain.ledger import Account, Reservation

ScopeKeys = tuple[str | None, str | None, str | None, str | None, tuple[str, ...]]
"""Workflow, agent, chain and key of a call or an event, and every name of its models."""

BudgetIndex = dict[str, dict[str, list[records.Budget]]]
"""Budgets by kind of scope and scope id."""


class Scopes(Struct):
    """What a command is going to touch, known before it runs.

    Args:
        lookup_key: the name under which an earlier answer to the same request is stored.
        command: the ledger command; ``None`` for administration, which may touch any row.
    """

    lookup_key: str | None = None
    command: GateCommand | IngestCommand | ReleaseCommand | None = None

    def reservation_ids(self) -> set[str]:
        """Return the reservations that the command names."""
        if isinstance(self.command, ReleaseCommand):
            return {self.command.reservation_id}
        events = [] if self.command is None else self.command.events
        return {
            priced.event.reservation_id
            for priced in events
            if priced.event.reservation_id is not None
        }

    def scope_keys(self, find: Callable[[str], Reservation | None]) -> set[ScopeKeys]:
        """Return the scopes whose balances the command may read or change.

        Args:
            find: returns a reservation by its id; an event inherits what it leaves out.
        """
        command = self.command
        if command is None or isinstance(command, ReleaseCommand):
            return set()
        key_id = command.request.key_id
        found: set[ScopeKeys] = set()
        for priced in command.events:
            event = priced.event
            held = None if event.reservation_id is None else find(event.reservation_id)
            workflow, agent, chain = event.workflow_id, event.agent, event.chain_id
            if held is not None:
                workflow = workflow or held.workflow_id
                agent = agent or held.agent
                chain = chain or held.chain_id
            asked = None if held is None else held.model
            found.add((workflow, agent, chain, key_id, models.names(priced.model, asked)))
            found.add((workflow, agent, chain, key_id, ()))
        if isinstance(command, GateCommand):
            call = command.call
            chain = None if call.chain is None else call.chain.id
            asked = None if call.model == wire.UNKNOWN_MODEL else call.model
            found.add((call.workflow_id, call.agent, chain, key_id, models.names(asked)))
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
