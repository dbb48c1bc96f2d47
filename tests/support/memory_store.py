"""A storage without a database: the unit-of-work port over plain lists and dictionaries.

It exists to show that the port is one: the ledger's rules run on it unchanged. Its savepoints are
deep copies, so rules must not carry objects from one command to the next, and its ledger commands
may touch only the balances that their scopes name, as on a store that locks rows.
"""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import attrs
import msgspec

from guard.core import wire
from guard.core.ids import IdFactory
from guard.gateway.domain import records
from guard.gateway.domain.commands import PostCommitEvent, PricedEvent, Refusal, Request
from guard.gateway.domain.control import Directives
from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.estimates import Estimate
from guard.gateway.domain.ledger import Account, Balance, Reservation
from guard.gateway.domain.windows import DAY_MS
from guard.gateway.ledger import audit, estimates
from guard.gateway.ledger.state import (
    SCOPE_KINDS,
    AuditRow,
    Chain,
    OrganisationState,
    ScopeKeys,
    Scopes,
    StoredAnswer,
)
from guard.gateway.ledger.unit_of_work import UnitOfWork
from guard.gateway.storage.commands import CommandStorage
from guard.gateway.storage.group_writer import ANYTHING, GroupWriter


class Outside(Exception):
    """A ledger command touched a balance that its scopes do not name."""


@attrs.define
class Event:
    organisation_id: str
    key_id: str
    priced: PricedEvent
    charged_at_ms: int
    balance_ids: list[int]


@attrs.define
class Data:
    """Every table."""

    organisations: dict[str, records.Organisation] = attrs.Factory(dict)
    sequences: dict[str, int] = attrs.Factory(dict)
    messages: dict[str, list[records.StoredControl]] = attrs.Factory(dict)
    budgets: dict[str, records.Budget] = attrs.Factory(dict)
    balances: dict[int, Balance] = attrs.Factory(dict)
    exhausted: dict[int, str] = attrs.Factory(dict)
    reservations: dict[str, Reservation] = attrs.Factory(dict)
    events: list[Event] = attrs.Factory(list)
    chains: dict[tuple[str, str], Chain] = attrs.Factory(dict)
    estimates: dict[tuple[str, str], Estimate] = attrs.Factory(dict)
    answers: dict[str, tuple[int, StoredAnswer]] = attrs.Factory(dict)
    policies: list[records.Policy] = attrs.Factory(list)
    prices: dict[str, records.Price] = attrs.Factory(dict)
    nonces: dict[tuple[str, str], int] = attrs.Factory(dict)
    audit: list[AuditRow] = attrs.Factory(list)
    post_commit: list[PostCommitEvent] = attrs.Factory(list)
    now_ms: int = 0


class MemoryUnitOfWork:
    """Implements as much of :class:`guard.gateway.ledger.unit_of_work.UnitOfWork` as the
    conformance suite asks for."""

    def __init__(self, data: Data, clock_ms: Callable[[], int]) -> None:
        self.data = data
        self.ids = IdFactory()
        self.incarnation = secrets.token_hex(8)
        self._clock_ms = clock_ms
        self._scopes: Sequence[Scopes] = ()
        self._before = self._saved = data

    @property
    def now_ms(self) -> int:
        return self.data.now_ms

    # -- transaction ---------------------------------------------------------------------------

    def begin(self, scopes: Sequence[Scopes]) -> None:
        self._scopes = scopes
        self._before = copy.deepcopy(self.data)
        self.data.now_ms = max(self.data.now_ms, self._clock_ms())

    def savepoint(self) -> None:
        self._saved = copy.deepcopy(self.data)

    def undo(self) -> None:
        self.data = self._saved

    def rollback(self) -> None:
        self.data = self._before

    def commit(self) -> list[PostCommitEvent]:
        events, self.data.post_commit = self.data.post_commit, []
        return events

    def announce(self, event: PostCommitEvent) -> None:
        self.data.post_commit.append(event)

    def housekeep(self) -> None:
        now_ms = self.now_ms
        self.data.nonces = {key: at for key, at in self.data.nonces.items() if at >= now_ms}

    # -- balances ------------------------------------------------------------------------------

    def _last_model(self, own: str, function: str, workflow_id: str | None) -> str | None:
        unit = cast("UnitOfWork", self)
        return estimates.last_model(unit, own, function, workflow_id)

    def _check(self, balance: Balance) -> None:
        """Tell whether a group that has only ledger commands may touch a balance."""
        if any(scopes.command is None for scopes in self._scopes):
            return
        budget = self.data.budgets.get(balance.budget_id)
        kind = "organisation" if budget is None else budget.scope_kind
        named: set[tuple[str, str | None]] = {("organisation", "")}
        for scopes in self._scopes:
            for keys in scopes.scope_keys(self.data.reservations.get, self._last_model):
                named.update(zip(SCOPE_KINDS, keys[:-1], strict=True))
                named.update(("model", name) for name in keys[-1])
        held = {
            balance_id
            for scopes in self._scopes
            for reservation_id in scopes.reservation_ids()
            if (known := self.data.reservations.get(reservation_id)) is not None
            for balance_id in known.balance_ids
        }
        if (kind, balance.scope_id) not in named and balance.balance_id not in held:
            raise Outside(f"{kind} {balance.scope_id}")

    def cached_accounts(self, org: OrganisationState, keys: ScopeKeys) -> list[Account] | None:
        return None

    def cache_accounts(
        self, org: OrganisationState, keys: ScopeKeys, valid_until_ms: float, found: list[Account]
    ) -> None:
        pass

    def find_balance(self, budget_id: str, scope_id: str, period_start_ms: int) -> Balance | None:
        for b in self.data.balances.values():
            if (b.budget_id, b.scope_id, b.period_start_ms) == (
                budget_id, scope_id, period_start_ms,
            ):  # fmt: skip
                self._check(b)
                return b
        return None

    def add_balance(self, balance: Balance) -> Balance:
        self._check(balance)
        balance.balance_id = len(self.data.balances) + 1
        self.data.balances[balance.balance_id] = balance
        return balance

    def balance(self, balance_id: int) -> Balance:
        self._check(self.data.balances[balance_id])
        return self.data.balances[balance_id]

    def open_balances(self, budget_id: str) -> list[Balance]:
        return [
            b
            for b in self.data.balances.values()
            if b.budget_id == budget_id and (b.ends_ms is None or b.ends_ms > self.now_ms)
        ]

    def change_balances(self, balances: Iterable[Balance]) -> None:
        for balance in balances:
            assert self.data.balances[balance.balance_id] is balance

    def note_exhausted(self, balance_id: int, organisation_id: str) -> None:
        self.data.exhausted[balance_id] = organisation_id

    def clear_exhausted(self, balance_id: int) -> None:
        self.data.exhausted.pop(balance_id, None)

    def ended_exhausted(self) -> list[tuple[Balance, str]]:
        known = [(self.data.balances[number], own) for number, own in self.data.exhausted.items()]
        return [(b, own) for b, own in known if b.ends_ms is not None and b.ends_ms <= self.now_ms]

    def spent_before(
        self, organisation_id: str, kind: records.ScopeKind, scope_id: str, start_ms: int,
        end_ms: int | None,
    ) -> int:  # fmt: skip
        def scope_of(event: Event) -> str | None:
            e, priced = event.priced.event, event.priced
            scopes = {"organisation": "", "workflow": e.workflow_id, "agent": e.agent,
                      "chain": e.chain_id, "user": e.user, "key": event.key_id,
                      "model": priced.model}  # fmt: skip
            return scopes[kind]

        return sum(
            event.priced.cost
            for event in self.data.events
            if event.organisation_id == organisation_id
            and start_ms <= event.charged_at_ms < (end_ms or 2**62)
            and scope_of(event) == scope_id
        )

    # -- reservations and events ---------------------------------------------------------------

    def reservation(self, reservation_id: str) -> Reservation | None:
        return self.data.reservations.get(reservation_id)

    def add_reservation(self, reservation: Reservation) -> None:
        self.data.reservations[reservation.reservation_id] = reservation

    def change_reservation(self, reservation: Reservation) -> None:
        assert self.data.reservations[reservation.reservation_id] is reservation

    def expire_sooner(self, reservation: Reservation, expires_at_ms: int) -> None:
        self.change_reservation(reservation)
        reservation.expires_at_ms = expires_at_ms

    def open_leases(self, balance_ids: Sequence[int]) -> list[Reservation]:
        return [
            r
            for r in self.data.reservations.values()
            if r.is_lease and r.state == "open" and r.held and set(balance_ids) & set(r.balance_ids)
        ]

    def all_open_leases(self) -> list[Reservation]:
        found = self.data.reservations.values()
        return [r for r in found if r.is_lease and r.state == "open"]

    def expired_reservations(self, limit: int) -> list[Reservation]:
        found = []
        for reservation in self.data.reservations.values():
            if reservation.state != "open" or reservation.expires_at_ms > self.now_ms:
                continue
            try:  # of the others, another unit of work may hold the locks
                for balance_id in reservation.balance_ids:
                    self._check(self.data.balances[balance_id])
            except Outside:
                continue
            found.append(reservation)
        return found[:limit]

    def add_event(
        self, organisation_id: str, key_id: str, priced: PricedEvent, charged_at_ms: int,
        flags: Sequence[str], balance_ids: Sequence[int],
    ) -> bool:  # fmt: skip
        new = Event(organisation_id, key_id, priced, charged_at_ms, list(balance_ids))

        def is_repeat(known: Event) -> bool:
            theirs, ours = known.priced, priced
            return known.organisation_id == organisation_id and (
                theirs.event.event_id == ours.event.event_id
                or (
                    ours.response_id is not None
                    and (theirs.provider, theirs.response_id) == (ours.provider, ours.response_id)
                    and (ours.request_id is None or theirs.request_id in (None, ours.request_id))
                )
            )

        for known in self.data.events:
            if is_repeat(known):
                if known.priced.event.event_id != priced.event.event_id:
                    known.priced = msgspec.structs.replace(
                        known.priced, request_id=known.priced.request_id or priced.request_id
                    )
                return False
        self.data.events.append(new)
        return True

    def chain(self, organisation_id: str, chain_id: str) -> Chain | None:
        return self.data.chains.get((organisation_id, chain_id))

    def save_chain(self, organisation_id: str, chain_id: str, chain: Chain) -> None:
        self.data.chains[organisation_id, chain_id] = chain

    def estimate(self, organisation_id: str, subject: str) -> Estimate | None:
        return self.data.estimates.get((organisation_id, subject))

    def save_estimate(self, organisation_id: str, subject: str, estimate: Estimate) -> None:
        self.data.estimates[organisation_id, subject] = estimate

    def count_workflow(
        self, organisation_id: str, workflow_id: str, *, spent: int, calls: int, events: int
    ) -> None:
        pass

    def count_run(
        self, organisation_id: str, run_id: str, workflow_id: str | None, *, spent: int
    ) -> None:
        pass

    def count_usage(
        self, organisation_id: str, keys: ScopeKeys, at_ms: int, priced: PricedEvent
    ) -> None:
        pass

    def add_refusal(self, request: Request, call: wire.GateRequest, refusal: Refusal) -> None:
        pass

    def stored_answer(self, lookup_key: str) -> StoredAnswer | None:
        assert any(scopes.lookup_key == lookup_key for scopes in self._scopes)
        kept_at_ms, answer = self.data.answers.get(lookup_key, (0, None))
        return answer if self.now_ms - kept_at_ms < DAY_MS else None

    def store_answer(self, lookup_key: str, answer: StoredAnswer) -> None:
        self.data.answers[lookup_key] = (self.now_ms, answer)

    # -- control -------------------------------------------------------------------------------

    def organisation(self, organisation_id: str) -> OrganisationState | None:
        known = self.data.organisations.get(organisation_id)
        if known is None:
            return None
        directives = Directives()
        for stored in self.data.messages.get(organisation_id, ()):
            directives.apply(stored.message)
        sequence = self.data.sequences.get(organisation_id, 0)
        return OrganisationState(organisation_id, known.settings, sequence, directives)

    def organisation_states(self) -> Iterable[OrganisationState]:
        found = (self.organisation(organisation_id) for organisation_id in self.data.organisations)
        return [org for org in found if org is not None]

    def append_control(
        self, org: OrganisationState, message: wire.ControlMessage, key_id: str | None
    ) -> None:
        own = org.organisation_id
        org.control_seq = self.data.sequences[own] = message.seq
        self.data.messages.setdefault(own, []).append(records.StoredControl(message, key_id))

    def drop_control(self, org: OrganisationState, through_seq: int) -> None:
        pass

    def overdue_approvals(self, limit: int) -> list[records.Approval]:
        return []

    def extend_presence(self, until_ms: int) -> None:
        pass

    def approval(self, approval_id: str) -> records.Approval | None:
        return None

    # -- catalogue -----------------------------------------------------------------------------

    def budget(self, budget_id: str) -> records.Budget | None:
        return self.data.budgets.get(budget_id)

    def find_budget(self, wanted: records.Budget) -> records.Budget | None:
        for b in self.budgets(wanted.organisation_id):
            if (b.scope_kind, b.scope_id, b.window) == (
                wanted.scope_kind, wanted.scope_id, wanted.window,
            ):  # fmt: skip
                return b
        return None

    def budgets(self, organisation_id: str) -> list[records.Budget]:
        return [b for b in self.data.budgets.values() if b.organisation_id == organisation_id]

    def save_budget(self, budget: records.Budget) -> None:
        self.data.budgets[budget.budget_id] = budget

    def delete_budget(self, budget: records.Budget) -> None:
        del self.data.budgets[budget.budget_id]

    def policy(self, organisation_id: str, name: str) -> records.Policy | None:
        return next((p for p in self.policies(organisation_id) if p.name == name), None)

    def policies(self, organisation_id: str) -> list[records.Policy]:
        return [p for p in self.data.policies if p.organisation_id == organisation_id]

    def add_policy_version(self, policy: records.Policy) -> None:
        self.retire_policy(policy)
        self.data.policies.append(policy)

    def retire_policy(self, policy: records.Policy) -> None:
        own = policy.policy_id
        self.data.policies = [p for p in self.data.policies if p.policy_id != own]

    def price(self, organisation_id: str, provider: str, model: str) -> records.Price | None:
        for price in self.prices(organisation_id):
            if (price.provider, price.model) == (provider, model):
                return price
        return None

    def prices(self, organisation_id: str) -> list[records.Price]:
        return [p for p in self.data.prices.values() if p.organisation_id == organisation_id]

    def save_price(self, price: records.Price) -> None:
        self.data.prices[price.price_id] = price

    def delete_price(self, organisation_id: str, price_id: str) -> bool:
        return self.data.prices.pop(price_id, None) is not None

    def enabled_webhooks(self, organisation_id: str) -> list[tuple[str, list[str]]]:
        return []

    # -- directory -----------------------------------------------------------------------------

    def organisation_named(self, name: str) -> bool:
        return any(org.name == name for org in self.data.organisations.values())

    def add_organisation(self, organisation: records.Organisation) -> None:
        self.data.organisations[organisation.organisation_id] = organisation

    def save_settings(
        self, organisation_id: str, settings: records.OrganisationSettings
    ) -> records.Organisation | None:
        known = self.data.organisations.get(organisation_id)
        if known is not None:
            known.settings = settings
        return known

    def use_nonce(self, key_id: str, nonce: str, expires_at_ms: int) -> bool:
        if (key_id, nonce) in self.data.nonces:
            return False
        self.data.nonces[key_id, nonce] = expires_at_ms
        return True

    def audit_head(self) -> tuple[int, str] | None:
        return (self.data.audit[-1].seq, self.data.audit[-1].hash) if self.data.audit else None

    def add_audit(self, row: AuditRow) -> None:
        self.data.audit.append(row)


class MemoryStorage(CommandStorage):
    """Keeps what it holds by folder, so that it can be closed and opened again."""

    _kept: ClassVar[dict[Path, Data]] = {}

    def __init__(
        self, folder: Path, *, clock_ms: Callable[[], int] = lambda: 0, retention_days: int = 0
    ) -> None:
        self._folder, self._clock_ms = folder, clock_ms
        self._writer: GroupWriter[Any] | None = None
        self._unit: Any = None

    async def open(self, listener: Callable[[Sequence[PostCommitEvent]], None]) -> None:
        data = self._kept.get(self._folder, Data())
        self._unit = MemoryUnitOfWork(data, self._clock_ms)
        self._writer = GroupWriter(self._unit, listener, inline=True)

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer.close()
            self._writer = None
            self._kept[self._folder] = self._unit.data

    def write(
        self, work: Callable[[Any], Any], scopes: Scopes | None = None, *, weight: int = 1
    ) -> asyncio.Future[Any]:
        if self._writer is None:
            raise StoreError("the store is not open")
        return self._writer.submit(work, scopes or ANYTHING, weight=weight)

    async def ready(self) -> bool:
        return self._writer is not None

    # -- queries -------------------------------------------------------------------------------

    async def budgets(self, organisation_id: str) -> list[records.Budget]:
        return list(self._unit.budgets(organisation_id))

    async def policies(self, organisation_id: str) -> list[records.Policy]:
        return list(self._unit.policies(organisation_id))

    async def prices(self, organisation_id: str) -> list[records.Price]:
        return list(self._unit.prices(organisation_id))

    async def control_seq(self, organisation_id: str) -> int:
        return int(self._unit.data.sequences.get(organisation_id, 0))

    async def audit(self, organisation_id: str | None, after: int, limit: int) -> list[AuditRow]:
        return [row for row in self._unit.data.audit if row.seq > after][:limit]

    async def audit_head(self) -> tuple[int, str]:
        head = self._unit.audit_head()
        return (0, audit.GENESIS) if head is None else head

    async def verify_audit(self, noted: tuple[int, str] | None = None) -> tuple[int, int | None]:
        return audit.verify(self._unit.data.audit, None, noted)

    async def balances(
        self, organisation_id: str, *, current_only: bool, after: int = 0, limit: int = 2**31
    ) -> list[records.BalanceView]:
        data: Data = self._unit.data
        now_ms = self._clock_ms()
        return [
            _view(Account(budget, balance))
            for balance in data.balances.values()
            if (budget := data.budgets.get(balance.budget_id)) is not None
            and budget.organisation_id == organisation_id
            and (not current_only or balance.ends_ms is None or balance.ends_ms > now_ms)
            and balance.balance_id > after
        ][:limit]

    async def verify_ledger(self) -> records.LedgerReport:
        data: Data = self._unit.data
        problems = []
        for number, b in data.balances.items():
            charged = sum(e.priced.cost for e in data.events if number in e.balance_ids)
            held = sum(r.held for r in data.reservations.values() if number in r.balance_ids)
            if (b.committed, b.reserved) != (b.opening + charged, held):
                problems.append(f"balance {number} is not the sum of its entries")
            entries = [r for r in data.reservations.values() if number in r.balance_ids]
            if b.leases != sum(r.is_lease and r.state == "open" for r in entries):
                problems.append(f"balance {number}: leases is not the count of open leases")
            if b.committed + b.reserved > b.authorized_max + b.overspend:
                problems.append(f"balance {number}: granted more than was authorized")
        return records.LedgerReport(
            balances=len(data.balances), events=len(data.events), problems=problems,
            reservations_open=sum(r.state == "open" for r in data.reservations.values()),
        )  # fmt: skip


def _view(account: Account) -> records.BalanceView:
    rule, balance = account.rule, account.balance
    return msgspec.convert(
        {
            **msgspec.structs.asdict(rule), **msgspec.structs.asdict(balance),
            "epoch_ms": balance.period_start_ms, "committed_nanousd": balance.committed,
            "reserved_nanousd": balance.reserved, "remaining_nanousd": account.room(),
            "overshoot_nanousd": balance.overspend, "limit_cents": wire.cents(rule.limit_nanousd),
            "committed_cents": wire.cents(balance.committed),
            "reserved_cents": wire.cents(balance.reserved),
        },
        records.BalanceView,
    )  # fmt: skip
