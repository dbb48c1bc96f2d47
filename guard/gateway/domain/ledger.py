"""The money rules: what fits, what is reserved, what is charged. Pure functions over balances.

They hold for budgets of tokens and of calls as well, whose balances count these.

Everything here keeps ``committed + reserved <= authorized_max + overspend`` for each hard balance.
``authorized_max`` is the highest total that a grant was ever allowed to reach (the limit, or an
open chain's ceiling); ``overspend`` is how far reported costs went over it. A reported cost is
money already spent, so it is always committed; only grants can be refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from guard.core import wire
from guard.core.wire import NANOUSD_MAX
from guard.gateway.domain.lineage import root_of
from guard.gateway.domain.records import BudgetRule, BudgetUnit

EVENT_NANOUSD_MAX: Final = 10**15
"""Maximum cost of one event (a million dollars)."""

_BUDGETS: Final[dict[BudgetUnit, str]] = {
    "usd": "budget",
    "tokens": "budget of tokens",
    "calls": "limit of calls",
}

_OPTION: Final = "--limit"
_OPTIONS: Final[dict[BudgetUnit, str]] = {"tokens": "--limit-tokens", "calls": "--max-calls"}

LEASE_NANOUSD_MAX: Final = 10**12
"""Maximum of one grant of a lease (a thousand dollars)."""

NOTHING_PROMISED: Final[Mapping[int, int]] = {}

ReservationState = Literal["open", "settled", "released", "expired"]
Basis = Literal["declared", "worst_case", "learned", "default", "lease"]


class Balance(Struct, gc=False):
    """One budget's account for one concrete scope id and period.

    ``leases`` counts the open leases that hold money on it. ``refused_nanousd`` is the least that
    was refused for want of it since it let a call through, and has not fitted since; 0: nothing.
    """

    balance_id: int
    budget_id: str
    scope_id: str
    period_start_ms: int
    ends_ms: int | None
    opening: int = 0
    committed: int = 0
    reserved: int = 0
    overspend: int = 0
    authorized_max: int = 0
    level: int = 0
    exhausted: bool = False
    leases: int = 0
    refused_nanousd: int = 0


class BudgetAccount(Struct):
    """A balance with its budget.

    Attributes:
        rule, balance: the two.
        kept: what of the limit a call may not use, because it does not wind down.
    """

    rule: BudgetRule
    balance: Balance
    kept: int = 0

    def room(self, chain_over_permille: int | None = None) -> int:
        """Return how much more may be granted; negative when the scope is over."""
        balance = self.balance
        return self.ceiling(chain_over_permille) - balance.committed - balance.reserved

    def ceiling(self, chain_over_permille: int | None = None) -> int:
        """Return the highest total that a grant may reach, inside an open chain or outside."""
        limit = self.rule.limit_nanousd
        if chain_over_permille is None or self.rule.scope_kind == "chain":
            return limit - self.kept
        return min(limit + limit * chain_over_permille // 1000, NANOUSD_MAX) - self.kept

    def unspent(self, chain_over_permille: int | None = None) -> int:
        """Return what is not spent, though a part of it may be set aside."""
        return self.ceiling(chain_over_permille) - self.balance.committed

    def is_exhausted(self) -> bool:
        """Whether all is spent, or a call was refused and none let through since."""
        balance = self.balance
        is_short = balance.refused_nanousd > 0 and self.room() < balance.refused_nanousd
        return self.rule.mode == "hard" and (balance.exhausted or is_short)

    def has_refused_less(self, amount: int) -> bool:
        """Whether no more than an amount was refused before, and does not fit yet."""
        least = self.balance.refused_nanousd
        return 0 < least <= amount and self.room() < least

    def forget_refused(self) -> None:
        """Forget what was refused where it fits again; to be called before anything is taken."""
        balance = self.balance
        if balance.refused_nanousd and self.room() >= balance.refused_nanousd:
            balance.refused_nanousd = 0

    def label(self) -> str:
        """Name the scope for a person: ``workflow research (day)``."""
        scope = f"{self.rule.scope_kind} {self.balance.scope_id}".strip()
        return f"{scope} ({self.rule.window})"

    def whose(self, key_id: str, key_limit: str | None) -> str:
        """Name the budget in a sentence to whoever it has refused.

        Args:
            key_id: of the caller.
            key_limit: what the caller calls its key's own budget.
        """
        kind, scope_id = self.rule.scope_kind, self.balance.scope_id
        budget = _BUDGETS[self.rule.unit]
        if kind == "organisation":
            found = f"the organisation's {budget}"
        elif kind == "key" and scope_id == key_id:
            found = f"this key's {budget}"
            if key_limit is not None and self.rule.unit == "usd":
                found = key_limit
            elif key_limit is not None and key_limit.endswith(_OPTION):  # of `guard run`
                found = key_limit.removesuffix(_OPTION) + _OPTIONS[self.rule.unit]
        else:
            found = f"the {budget} of {kind} {scope_id}"
        return found if self.rule.window == "total" else f"{found} of the {self.rule.window}"

    def state(self) -> str:
        """Say for a person what became of the money: ``$1.2 of $2 spent, $0.5 set aside``.

        Or of what else is counted: ``20 of 20 calls of search made``.
        """
        balance, rule = self.balance, self.rule
        if rule.unit == "calls":
            called = f" of {', '.join(rule.counts)}" if rule.counts else ""
            text = f"{balance.committed:,} of {rule.limit_nanousd:,} calls{called} made"
            return f"{text}, {balance.reserved:,} under way" if balance.reserved else text
        done = "used" if rule.unit == "tokens" else "spent"
        text = f"{self.shown(balance.committed)} of {self.limit_shown()} {done}"
        if balance.reserved:
            text += f", {self.shown(balance.reserved)} set aside for what is under way"
        if self.kept:
            text += f", {self.shown(self.kept)} kept for winding down"
        return text

    def shown(self, amount: int) -> str:
        """Return an amount in the budget's unit for a person, without the unit if not money."""
        return wire.dollars(amount) if self.rule.unit == "usd" else f"{amount:,}"

    def limit_shown(self) -> str:
        """Return the limit with its unit: ``$2``, ``20,000 tokens``, ``20 calls``."""
        return wire.amount_in(self.rule.unit, self.rule.limit_nanousd)

    def view(self) -> wire.Budget:
        """Return the balance as the protocol shows it."""
        return wire.Budget.of(
            limit=self.rule.limit_nanousd,
            spent=self.balance.committed,
            reserved=self.balance.reserved,
            resets_at_ms=self.balance.ends_ms,
            scope=self.label(),
        )

    def counted(self) -> wire.CountedBudget:
        """Return the balance of a budget of tokens or calls as the protocol shows it."""
        rule, balance = self.rule, self.balance
        return wire.CountedBudget(
            unit=rule.unit,
            limit=rule.limit_nanousd,
            used=balance.committed,
            set_aside=balance.reserved,
            left=rule.limit_nanousd - balance.committed - balance.reserved,
            counts=rule.counts,
            resets_at_ms=balance.ends_ms,
            scope=self.label(),
            kept=rule.kept_nanousd,
        )


class MeteredHold(Struct, frozen=True, array_like=True):
    """What a reservation holds of budgets of tokens, or of calls.

    Attributes:
        unit: what is held.
        balance_ids: the balances that it is reserved on, and charged to.
        amount: how much was reserved.
        held: how much is reserved now.
        prepaid: what was charged when the reservation expired, and pays for events that come after.
    """

    unit: BudgetUnit
    balance_ids: tuple[int, ...]
    amount: int
    held: int
    prepaid: int = 0


class Reservation(Struct, gc=False):
    """An amount reserved on a set of balances for a protected call, an LLM request or a lease.

    Attributes:
        renewed: whether its holder renews it, so that it lasts no longer than a lease.
        under_way: what requests can cost that only the holder knows of: it is charged when the
            reservation expires, and from then on pays for events that come after all.
        closing: whether its holder has closed the lease: it only pays for events on their way.
    """

    reservation_id: str
    organisation_id: str
    key_id: str
    call_id: str
    balance_ids: tuple[int, ...]
    amount: int
    held: int
    created_at_ms: int
    expires_at_ms: int
    spent: int = 0
    state: ReservationState = "open"
    basis: Basis = "default"
    workflow_id: str | None = None
    run_id: str | None = None
    chain_id: str | None = None
    agent: str | None = None
    model: str | None = None
    function: str = ""
    user: str | None = None
    renewed: bool = False
    under_way: int = 0
    closing: bool = False
    metered: tuple[MeteredHold, ...] = ()
    """What it holds of budgets that are not of money."""
    answered_by: str | None = None
    """The model that was reported last; not stored."""

    @property
    def is_lease(self) -> bool:
        """Whether a process holds it in advance and spends it by itself."""
        return self.basis == "lease"

    @property
    def overspent(self) -> int:
        """What it was charged beyond what it held, while open."""
        return self.held + self.spent - self.amount

    @property
    def is_request(self) -> bool:
        """Whether it is for one LLM request, which its event settles."""
        return self.basis != "lease" and self.function.startswith("llm:")


def held_by_key(
    reservations: Iterable[Reservation], organisation_id: str, root_id: str
) -> dict[int, int]:
    """Return, by balance, what open leases of a key and of those that belong to it hold.

    Args:
        reservations: any, of which others are passed over.
        organisation_id: of the key.
        root_id: of the key, which belongs to no other.
    """
    found: dict[int, int] = {}
    for each in reservations:
        if not (each.held and each.is_lease and each.state == "open"):
            continue
        if each.organisation_id == organisation_id and root_of(each.key_id) == root_id:
            for balance_id in each.balance_ids:
                found[balance_id] = found.get(balance_id, 0) + each.held
    return found


class Judgement(Struct):
    """Whether an amount fits all balances at once."""

    amount: int
    refused_by: BudgetAccount | None = None
    refused_by_chain: bool = False
    warnings: list[str] = []


class Charge(Struct):
    """The effects of committing a cost."""

    over: bool = False
    over_account: BudgetAccount | None = None
    exhausted: list[BudgetAccount] = []
    crossed: list[tuple[BudgetAccount, float]] = []


def judge(
    accounts: Sequence[BudgetAccount],
    amount: int,
    *,
    guess: bool,
    least: int = 1,
    chain_over_permille: int | None = None,
    promised: Mapping[int, int] = NOTHING_PROMISED,
) -> Judgement:
    """Decide, without changing anything, whether ``amount`` may be reserved on every balance.

    Args:
        accounts: every balance that applies to the call.
        amount: what to reserve, in nano-dollars.
        guess: the amount is only an estimate, so it may shrink to what is left.
        least: what a guess must not shrink below.
        chain_over_permille: the allowance of an open chain, or ``None`` outside of one.
        promised: by balance, the room that is others'; less than zero where the call has some.
    """
    warnings: list[str] = []
    for account in accounts:
        rule, balance = account.rule, account.balance
        limit = rule.limit_nanousd
        used = balance.committed + balance.reserved
        if promised:
            used += promised.get(balance.balance_id, 0)
        is_hard = rule.mode == "hard"
        room = (account.ceiling(chain_over_permille) if is_hard else NANOUSD_MAX) - used
        if room < least or (room < amount and not guess):
            in_chain = is_hard and chain_over_permille is not None
            return Judgement(amount, account, in_chain, warnings)
        if room < amount:
            amount = room
        if used + amount > limit:
            why = "chain allowance" if rule.mode == "hard" else "soft budget"
            warnings.append(f"over budget: {account.label()}, {why} in use")
        elif rule.thresholds and used + amount >= min(rule.thresholds) * limit > 0:
            share = (used + amount) / limit
            warnings.append(f"{share:.0%} of budget used or reserved: {account.label()}")
    return Judgement(amount, None, False, warnings)


def reserve(
    accounts: Iterable[BudgetAccount], amount: int, chain_over_permille: int | None = None
) -> None:
    """Reserve an amount that :func:`judge` has allowed."""
    for account in accounts:
        balance = account.balance
        balance.refused_nanousd = 0
        balance.reserved += amount
        total = balance.committed + balance.reserved
        authorized = account.rule.limit_nanousd
        if total > authorized:
            authorized = account.ceiling(chain_over_permille)
            if account.rule.mode == "soft":
                authorized = max(authorized, total)
        if authorized > balance.authorized_max:
            balance.authorized_max = authorized


def release(reservation: Reservation, balances: Iterable[Balance], state: ReservationState) -> int:
    """Close an open reservation and return what was still reserved; leave a closed one alone."""
    if reservation.state != "open":
        return 0
    left = reservation.held
    for balance in balances:
        balance.reserved -= left
        balance.leases -= reservation.is_lease
    reservation.held = 0
    reservation.state = state
    return left


def drawn_on(
    around: Iterable[Reservation], amount: int
) -> tuple[list[tuple[Reservation, int]], dict[int, int]]:
    """Return what a call takes of what the calls around it hold: of each, and on each balance.

    Args:
        around: their reservations, those that are drawn on first before the others.
        amount: what the call needs, in nano-dollars.
    """
    parts: list[tuple[Reservation, int]] = []
    drawn: dict[int, int] = {}
    for reservation in around:
        ids = reservation.balance_ids
        lacking = max((amount - drawn.get(each, 0) for each in ids), default=0)
        part = min(reservation.held, lacking)
        if part > 0:
            parts.append((reservation, part))
            for each in ids:
                drawn[each] = min(amount, drawn.get(each, 0) + part)
    return parts, drawn


def give_back(reservation: Reservation, balances: Iterable[Balance], amount: int) -> None:
    """Return a part of what an open reservation still holds; it stays open."""
    reservation.amount -= amount
    reservation.held -= amount
    for balance in balances:
        balance.reserved -= amount


def charge(
    accounts: Sequence[BudgetAccount],
    cost: int,
    reservation: Reservation | None,
    reserved_balances: Iterable[Balance],
    *,
    strict: bool = False,
    chain_over_permille: int | None = None,
) -> Charge:
    """Commit a real cost, using up the reserved amount first.

    Args:
        accounts: every balance that the cost belongs to.
        cost: nano-dollars, zero or more.
        reservation: the reservation that the cost belongs to, in any state.
        reserved_balances: the balances of the reservation.
        strict: any consumption above the reservation plus epsilon counts as over.
        chain_over_permille: the allowance of an open chain, or ``None`` outside of one.
    """
    taken = 0
    if reservation is not None:
        taken = min(reservation.held, cost) if reservation.state == "open" else 0
        reservation.held -= taken
        reservation.spent += cost
        for balance in reserved_balances:
            balance.reserved -= taken
    outcome = Charge(exhausted=[], crossed=[])
    for account in accounts:
        balance, rule = account.balance, account.rule
        if balance.refused_nanousd:
            account.forget_refused()
        total = _commit(account, cost)
        if rule.mode != "hard":
            continue
        ceiling = account.ceiling(chain_over_permille)
        uncovered = cost > taken and total > ceiling + rule.epsilon_nanousd
        if strict and reservation is not None:
            uncovered |= reservation.spent > reservation.amount + rule.epsilon_nanousd
        if uncovered and not outcome.over:
            outcome.over, outcome.over_account = True, account
    for account in accounts:
        _note_levels(account, outcome)
    return outcome


def commit(accounts: Sequence[BudgetAccount], amount: int) -> Charge:
    """Commit tokens or calls, of which nothing is set aside any more.

    No event has them as its cost, so they stand in the opening, too: each balance is its opening
    and the costs of its events.
    """
    outcome = Charge(exhausted=[], crossed=[])
    for account in accounts:
        account.forget_refused()
        account.balance.opening += amount
        _commit(account, amount)
        _note_levels(account, outcome)
    return outcome


def _commit(account: BudgetAccount, amount: int) -> int:
    """Add to what is committed; return what is committed and reserved then."""
    balance = account.balance
    balance.committed += amount
    total = balance.committed + balance.reserved
    balance.authorized_max = max(balance.authorized_max, account.rule.limit_nanousd)
    balance.overspend = max(balance.overspend, total - balance.authorized_max, 0)
    return total


def _note_levels(account: BudgetAccount, outcome: Charge) -> None:
    balance, limit = account.balance, account.rule.limit_nanousd
    thresholds = sorted(account.rule.thresholds)
    level = sum(1 for share in thresholds if balance.committed >= share * limit)
    if level > balance.level:
        outcome.crossed.append((account, thresholds[level - 1]))
    balance.level = level
    if account.rule.mode == "hard" and balance.committed >= limit and not balance.exhausted:
        balance.exhausted = True
        outcome.exhausted.append(account)


def tightest(accounts: Iterable[BudgetAccount]) -> BudgetAccount | None:
    """Return the account with the least room, hard ones before soft ones."""
    found, least = None, (True, 0)
    for account in accounts:
        rule, balance = account.rule, account.balance
        room = rule.limit_nanousd - balance.committed - balance.reserved
        order = (rule.mode == "soft", room)
        if found is None or order < least:
            found, least = account, order
    return found
