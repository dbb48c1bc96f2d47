"""Types of a unit of work besides the domain's own."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from guard.gateway.domain import alerts, records
from guard.gateway.domain.commands import (
    GateCommand,
    IngestCommand,
    LeaseCommand,
    PricedEvent,
    ReleaseCommand,
)
from guard.gateway.domain.control import Directives
from guard.gateway.domain.ledger import BudgetBalance

ScopeKeys = tuple[
    str | None, str | None, str | None, str | None, str | None, tuple[str, ...], tuple[str, ...]
]
"""What decides the budgets over a call or an event.

Workflow, agent, chain, user and key; its tags as ``name=value`` and its run (:func:`run_scope`),
empty unless there are budgets of tags or runs; and every name of its models.
"""

RUN: Final = "="
"""How a run begins among the tags, none of which has an empty name."""

SCOPE_KINDS: Final[tuple[records.ScopeKind, ...]] = ("workflow", "agent", "chain", "user", "key")
"""The kinds of the first five items of ``ScopeKeys``; the others: ``tag``, ``run``, ``model``."""

NO_SCOPES: Final[tuple[None, None, None, None, None, tuple[str, ...]]] = (
    None, None, None, None, None, (),
)  # fmt: skip
"""All of ``ScopeKeys`` but its models, where only these count."""


def run_scope(key_id: str, run_id: str) -> str:
    """Return a run as it stands in :data:`ScopeKeys`: another key's of this name is another run."""
    return f"{RUN}{key_id}/{run_id}"


class Meter(NamedTuple):
    """What a budget counts that is not of money.

    Args:
        unit: tokens or calls.
        counts: for calls: globs of the tools and models whose calls are counted; empty for all.
    """

    unit: records.BudgetUnit
    counts: tuple[str, ...] = ()


AccountKeys = ScopeKeys | tuple[Meter, ScopeKeys]
"""Names accounts in a cache: those of money, or of a meter."""


class BudgetsOfKind(Struct):
    """The budgets of one kind of scope.

    Attributes:
        exact: those of one id, by this id.
        globs: those of a pattern; every id that matches has a balance of its own.
        each: those of ``*``; every id has a balance of its own.
    """

    exact: dict[str, list[records.BudgetRule]] = {}
    globs: list[records.BudgetRule] = []
    each: list[records.BudgetRule] = []


BudgetIndex = dict[str, BudgetsOfKind]
"""Budgets by kind of scope."""


IN_DOUBT: Final = "in_doubt"
"""Flag of events whose cost is what the request could have cost, since its answer is not known."""

LedgerCommand = GateCommand | IngestCommand | LeaseCommand | ReleaseCommand


class Touches(Struct, frozen=True):
    """What a use case is going to touch: its unit of work reads and locks that before it runs.

    Made by :func:`touches_of` or :func:`within`, or one of ``ALL_ORGANISATIONS`` and
    ``NO_ORGANISATION``.

    Args:
        organisations: whose rows may change; ``None``: any organisation's.
        command: the ledger command; ``None`` for administration.
        lookup_key: the name under which an earlier answer to the same request is stored.
        weight: how many small commands the use case is worth.
        is_own: whether it is the gateway's own work, which goes ahead of what clients ask for.
    """

    organisations: tuple[str, ...] | None = None
    command: LedgerCommand | None = None
    lookup_key: str | None = None
    weight: int = 1
    is_own: bool = False

    def reservation_ids(self) -> set[str]:
        """Return the reservations that the command names."""
        # A store reads these at the beginning of the unit, in one round trip. A name that is
        # missing here costs a read of its own, and changes nothing else.
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


ALL_ORGANISATIONS: Final = Touches()
NO_ORGANISATION: Final = Touches(organisations=())
"""No organisation: for rows that belong to none of them, or are only added."""


def touches_of(command: LedgerCommand) -> Touches:
    """Return what a ledger command touches."""
    request = command.request
    weight = 1
    if isinstance(command, (GateCommand, IngestCommand)):
        weight += len(command.events)
    return Touches((request.organisation_id,), command, request.lookup_key, weight)


def within(organisation_id: str, weight: int = 1) -> Touches:
    """Return what the administration of one organisation touches."""
    return Touches((organisation_id,), weight=weight)


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
    """The charges for one model of one provider in an hour, earlier adjustments included.

    ``uncertain_nanousd`` is the part of them that was charged in doubt; ``events`` is the number of
    charged events.
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

    It belongs to the unit of work. Units of a store never run at the same time in a process, so it
    needs no lock.

    Attributes:
        organisation_id: of the organisation.
        settings: its settings.
        control_seq: the number of its newest control message.
        directives: what operators have killed or paused.
        budgets: the budgets of money; ``None`` until a rule needs them, and again after a change of
            any budget. ``many``, ``metered``, ``is_metered`` and ``is_tagged`` are set with it.
        many: there are too many budgets to keep: ``budgets`` and ``metered`` only have those for
            several scopes each, and the others are looked up for each call.
        metered: the budgets of tokens and calls, by what they count.
        is_metered: whether there are any of tokens or calls, in memory or not.
        is_tagged: whether there are any of tags or runs.
        teams: of keys that such budgets were asked about; a key's team never changes.
        accounts: the cached accounts, each with the time until which they are valid.
        compacted_seq: the number up to which old control messages were dropped.
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
    teams: dict[str, str] = {}
    accounts: dict[AccountKeys, tuple[float, list[BudgetBalance]]] = {}
    compacted_seq: int = 0


class Recipient(NamedTuple):
    """A channel that is in use.

    Args:
        channel_id: of the channel.
        name: empty for a webhook, which lists the types of notices that it gets.
        kind: of channel.
        types: the types that a webhook without a name gets; empty for all.
    """

    channel_id: str
    name: str
    kind: alerts.ChannelKind
    types: list[str]


class Pace(NamedTuple):
    """How many messages a channel has been sent lately.

    Args:
        from_ms: when the current minute began.
        told: how many messages were sent one by one in it.
        digest_id: the delivery that collects the others; empty before the first one.
        digest_due_ms: when that is sent.
    """

    from_ms: int = 0
    told: int = 0
    digest_id: str = ""
    digest_due_ms: int = 0
