"""Types of the unit-of-work port besides the domain's own."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from guard.gateway.domain import records
from guard.gateway.domain.commands import (
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    ReleaseCommand,
)
from guard.gateway.domain.control import Directives
from guard.gateway.domain.ledger import BudgetAccount

ScopeKeys = tuple[
    str | None, str | None, str | None, str | None, str | None, tuple[str, ...], tuple[str, ...]
]
"""Workflow, agent, chain, user and key of a call or an event; its tags, as ``name=value``, where
there are budgets of tags; and every name of its models."""

SCOPE_KINDS: Final[tuple[records.ScopeKind, ...]] = ("workflow", "agent", "chain", "user", "key")
"""The kinds of the first parts of ``ScopeKeys``; those of the others are ``tag`` and ``model``."""

NO_SCOPES: Final[tuple[None, None, None, None, None, tuple[str, ...]]] = (
    None, None, None, None, None, (),
)  # fmt: skip
"""The first parts of ``ScopeKeys`` where only models count."""


class Meter(NamedTuple):
    """What budgets count that are not of money.

    Args:
        unit: tokens or calls.
        counts: of calls: globs of the tools and models whose calls are counted; empty for all.
    """

    unit: records.BudgetUnit
    counts: tuple[str, ...] = ()


AccountKeys = ScopeKeys | tuple[Meter, ScopeKeys]
"""Names accounts in a cache: those of money, or of a meter."""


class BudgetsOfKind(Struct):
    """The budgets of one kind of scope.

    Attributes:
        exact: by the id that they are of.
        globs: for each matching id by itself.
        each: for each id by itself.
    """

    exact: dict[str, list[records.BudgetRule]] = {}
    globs: list[records.BudgetRule] = []
    each: list[records.BudgetRule] = []


BudgetIndex = dict[str, BudgetsOfKind]
"""Budgets by kind of scope."""


LedgerCommand = GateCommand | IngestCommand | LeaseCommand | ReleaseCommand


class Scopes(Struct, frozen=True):
    """What a use case is going to touch, known before it runs: its unit of work reads and locks it.

    Made by :func:`scopes_of` or :func:`within`, or one of ``ANYTHING`` and ``NOTHING``.

    Args:
        organisations: those whose rows may change; ``None``: any.
        command: the ledger command; ``None`` for administration.
        lookup_key: the name under which an earlier answer to the same request is stored.
        weight: how many small commands the use case is worth.
    """

    organisations: tuple[str, ...] | None = None
    command: LedgerCommand | None = None
    lookup_key: str | None = None
    weight: int = 1

    def reservation_ids(self) -> set[str]:
        """Return the reservations that the command names."""
        command = self.command
        if command is None:
            return set()
        if isinstance(command, ReleaseCommand):
            return {command.reservation_id}
        if isinstance(command, LeaseCommand):
            return {command.update.lease_id, *command.update.also}
        found = {
            priced.event.reservation_id
            for priced in command.events
            if priced.event.reservation_id is not None
        }
        if isinstance(command, GateCommand):
            lease = command.call.lease
            named = (command.call.held, None if lease is None else lease.lease_id)
            found.update(each for each in named if each is not None)
            found.update(command.call.around, command.call.reads)
        return found

    def priced_events(self) -> list[tuple[str, PricedEvent]]:
        """Return the events that the command reports, with their organisation."""
        if not isinstance(self.command, (GateCommand, IngestCommand)):
            return []
        own = self.command.request.organisation_id
        return [(own, priced) for priced in self.command.events]


ANYTHING: Final = Scopes()
NOTHING: Final = Scopes(organisations=())
"""No organisation: what belongs to all of them, or is added."""


def scopes_of(command: LedgerCommand) -> Scopes:
    """Return what a ledger command touches."""
    request = command.request
    weight = 1
    if isinstance(command, (GateCommand, IngestCommand)):
        weight += len(command.events)
    return Scopes((request.organisation_id,), command, request.lookup_key, weight)


def within(organisation_id: str, weight: int = 1) -> Scopes:
    """Return what the administration of one organisation touches."""
    return Scopes((organisation_id,), weight=weight)


class ChainState(Struct, frozen=True):
    """A chain, open or closed, and the workflow in which it was opened."""

    opened_at_ms: int
    expires_at_ms: int
    closed: bool
    workflow_id: str | None = None


class StoredAnswer(Struct):
    """A stored answer, with the fingerprint of its request."""

    fingerprint: bytes
    status: int
    body: bytes


class LeaseHold(NamedTuple):
    """What an open lease holds, in nano-dollars."""

    held: int
    key_id: str
    lease_id: str


class ChargedHour(Struct, frozen=True):
    """What one model of one provider was charged in an hour, earlier adjustments included.

    ``uncertain_nanousd`` is what of it was charged in doubt; ``events`` counts what was charged.
    """

    hour_ms: int
    provider: str
    model: str
    cost_nanousd: int
    events: int
    uncertain_nanousd: int = 0


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

    ``budgets`` is ``None`` until a rule needs it, and again after a change of a budget. It has all
    of them that are of money, or, where they are ``many``, those for several scopes each;
    ``metered`` has the others. ``is_metered`` says whether there are others, ``is_tagged`` whether
    there are any of tags.
    """

    organisation_id: str
    settings: records.OrganisationSettings
    control_seq: int
    directives: Directives
    budgets: BudgetIndex | None = None
    many: bool = False
    metered: dict[Meter, BudgetIndex] = {}
    is_metered: bool = False
    is_tagged: bool = False
    accounts: dict[AccountKeys, tuple[float, list[BudgetAccount]]] = {}
    compacted_seq: int = 0
