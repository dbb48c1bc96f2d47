"""The money rules: what fits, what is reserved, what is charged. Pure functions over balances.

They hold for budgets of tokens and of calls as well, whose balances count these. All amounts are
integers (nano-dollars, tokens or calls), so sums are exact.

Everything here keeps ``committed + reserved <= authorized_max + overspend`` for each hard balance.
``authorized_max`` is the highest total that a grant was ever allowed to reach (the limit, or an
open chain's ceiling); ``overspend`` is how far reported costs went over it. A reported cost is
money already spent, so it is always committed; only grants can be refused.

The functions change balances and reservations in place. Their callers announce that to the unit of
work first (:mod:`guard.gateway.unit.unit_of_work`), which undoes it if the command fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from guard.core import wire
from guard.core.wire import NANOUSD_MAX
from guard.gateway.domain.key_hierarchy import top_key
from guard.gateway.domain.records import BudgetRule, BudgetUnit
from guard.gateway.domain.windows import UTC, length_ms, moment

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

    Attributes:
        balance_id: its number in the store.
        budget_id, scope_id, period_start_ms: identify it.
        ends_ms: the end of its period; ``None``: never, or not before its first charge.
        opening: what the scope had spent when the balance was made, and what was committed since
            without being an event's cost. ``committed`` is this and the costs of its events.
        committed: what is charged, in all.
        reserved: the sum of what open reservations hold on it.
        overspend, authorized_max: see the module; neither ever falls.
        level: how many of the budget's thresholds are reached.
        exhausted: whether the limit was reached, and this was announced.
        leases: how many open leases hold money on it.
        refused: the least amount that was refused since a call was last let through, unless
            it has fitted again since; 0: none.
        zone: whose day, week or month its period is.
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
    refused: int = 0
    zone: str = UTC

    def covers(self, at_ms: int) -> bool:
        """Whether a time is in its period."""
        return self.period_start_ms <= at_ms and (self.ends_ms is None or at_ms < self.ends_ms)


class BudgetBalance(Struct):
    """A balance with its budget.

    Attributes:
        rule, balance: the two.
        kept: the part of the limit that is kept for calls that wind down; 0 for such a call.
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
        # A budget of chains is the ceiling of a chain itself: no chain may go over it.
        limit = self.rule.limit
        if chain_over_permille is None or self.rule.scope_kind == "chain":
            return limit - self.kept
        return min(limit + limit * chain_over_permille // 1000, NANOUSD_MAX) - self.kept

    def unspent(self, chain_over_permille: int | None = None) -> int:
        """Return what is not spent, of which a part may be set aside."""
        return self.ceiling(chain_over_permille) - self.balance.committed

    def is_exhausted(self) -> bool:
        """Whether all is spent, or a call was refused and none let through since."""
        balance = self.balance
        is_short = balance.refused > 0 and self.room() < balance.refused
        return self.rule.mode == "hard" and (balance.exhausted or is_short)

    def has_refused_less(self, amount: int) -> bool:
        """Whether this amount or less was refused before, and still does not fit."""
        least = self.balance.refused
        return 0 < least <= amount and self.room() < least

    def forget_refused(self) -> None:
        """Forget the refused amount if it fits again; call this before anything is taken."""
        balance = self.balance
        if balance.refused and self.room() >= balance.refused:
            balance.refused = 0

    def label(self) -> str:
        """Name the scope for a person: ``workflow research (day)``."""
        scope = f"{self.rule.scope_kind} {self.balance.scope_id}".strip()
        return f"{scope} ({self.rule.window})"

    def whose(self, key_id: str, key_limit: str | None) -> str:
        """Name the budget in a sentence for a caller that it has refused.

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
        """Describe the balance for a person: ``$1.2 of $2 spent, $0.5 set aside``.

        A budget of calls: ``20 of 20 calls of search made``.
        """
        balance, rule = self.balance, self.rule
        if rule.unit == "calls":
            called = f" of {', '.join(rule.counts)}" if rule.counts else ""
            text = f"{balance.committed:,} of {rule.limit:,} calls{called} made"
            return f"{text}, {balance.reserved:,} under way" if balance.reserved else text
        done = "used" if rule.unit == "tokens" else "spent"
        text = f"{self.shown(balance.committed)} of {self.limit_shown()} {done}"
        if balance.reserved:
            text += f", {self.shown(balance.reserved)} set aside for what is under way"
        if self.kept:
            text += f", {self.shown(self.kept)} kept for winding down"
        return text

    def ends(self) -> str:
        """Say when its window ends, in its zone; nothing where it does not."""
        ends_ms = self.balance.ends_ms
        return "" if ends_ms is None else f"; its window ends {moment(ends_ms, self.balance.zone)}"

    def shown(self, amount: int) -> str:
        """Return an amount for a person; of tokens and calls only the number."""
        return wire.dollars(amount) if self.rule.unit == "usd" else f"{amount:,}"

    def limit_shown(self) -> str:
        """Return the limit with its unit: ``$2``, ``20,000 tokens``, ``20 calls``."""
        return wire.amount_in(self.rule.unit, self.rule.limit)

    @property
    def _resets_at_ms(self) -> int | None:
        # That of a run ends some time after its last use, and nobody waits for it.
        return None if self.rule.window == "total" else self.balance.ends_ms

    def view(self) -> wire.Budget:
        """Return the balance as the protocol shows it."""
        return wire.Budget.of(
            limit=self.rule.limit,
            spent=self.balance.committed,
            reserved=self.balance.reserved,
            resets_at_ms=self._resets_at_ms,
            scope=self.label(),
        )

    def counted(self) -> wire.CountedBudget:
        """Return the balance of a budget of tokens or calls as the protocol shows it."""
        rule, balance = self.rule, self.balance
        return wire.CountedBudget(
            unit=rule.unit,
            limit=rule.limit,
            used=balance.committed,
            set_aside=balance.reserved,
            left=rule.limit - balance.committed - balance.reserved,
            counts=rule.counts,
            resets_at_ms=self._resets_at_ms,
            scope=self.label(),
            kept=rule.kept,
        )


class MeteredHold(Struct, frozen=True, array_like=True):
    """What a reservation holds on budgets of tokens, or of calls.

    Attributes:
        unit: tokens or calls.
        balance_ids: the balances that it is reserved on, and charged to.
        amount: how much was reserved.
        held: how much of that is still reserved.
        prepaid: what was charged when the reservation expired, and stands for later events.
    """

    unit: BudgetUnit
    balance_ids: tuple[int, ...]
    amount: int
    held: int
    prepaid: int = 0


class Reservation(Struct, gc=False):
    """An amount reserved on a set of balances for a protected call, an LLM request or a lease.

    Each of the balances has ``held`` in its ``reserved``, as long as the reservation is open.

    Attributes:
        amount: what was reserved, less what was given back unused; a lease's grows with each grant.
        held: the part of it that is neither charged nor given back; 0 when it is not open.
        spent: the cost of its events, whether it held enough for them or not.
        state: an open one becomes settled, released or expired; an expired one may be reopened.
        basis: how the amount was found; that of a lease is ``lease``.
        renewed: whether its holder renews it, so that it lasts no longer than a lease.
        under_way: while it is open, the most that LLM requests can cost that it pays for: those
            that were sent, and those that its holder may begin. After it has expired, what was
            charged for these, less what is known of them since.
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
    calls: int = 0
    """How many calls of rate caps a lease holds, which its holder makes without asking."""
    buckets: tuple[str, ...] = ()
    """The counters of these caps."""
    answered_by: str | None = None
    """The model that was reported last; not stored."""

    @property
    def is_lease(self) -> bool:
        """Whether a process holds it in advance and spends it by itself."""
        return self.basis == "lease"

    @property
    def provider(self) -> str | None:
        """The vendor of its LLM requests; of a lease, of the first."""
        kind, _, name = self.function.partition(":")
        return name if kind == "llm" else None

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
    """Return, by balance, what the open leases of a key and of the keys below it hold.

    Args:
        reservations: any; those that are no such leases are skipped.
        organisation_id: of the key.
        root_id: the id of the key, which is at the top of its lineage.
    """
    found: dict[int, int] = {}
    for each in reservations:
        if not (each.held and each.is_lease and each.state == "open"):
            continue
        if each.organisation_id == organisation_id and top_key(each.key_id) == root_id:
            for balance_id in each.balance_ids:
                found[balance_id] = found.get(balance_id, 0) + each.held
    return found


class Judgement(Struct):
    """Whether an amount fits all balances at once.

    Attributes:
        amount: what fits on all of them; with ``refused_by``, the amount that did not fit.
        refused_by: the first account that it does not fit, if there is one.
        refused_by_chain: whether it does not fit that account in spite of a chain's allowance.
        warnings: for the caller, about accounts that are nearly used up or over.
    """

    amount: int
    refused_by: BudgetBalance | None = None
    refused_by_chain: bool = False
    warnings: list[str] = []


class Charge(Struct):
    """The effects of committing a cost.

    Attributes:
        over: whether the cost went over a hard budget that had not reserved enough for it.
        over_account: the first such account.
        exhausted: accounts that have reached their limit by this.
        crossed: accounts that have reached a threshold by this, with the highest such share.
    """

    over: bool = False
    over_account: BudgetBalance | None = None
    exhausted: list[BudgetBalance] = []
    crossed: list[tuple[BudgetBalance, float]] = []


def judge(
    accounts: Sequence[BudgetBalance],
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
        promised: by balance, the room that is kept for other calls; negative where this call may
            draw on what the calls around it hold.
    """
    warnings: list[str] = []
    for account in accounts:
        rule, balance = account.rule, account.balance
        limit = rule.limit
        used = balance.committed + balance.reserved
        if promised:
            used += promised.get(balance.balance_id, 0)
        is_hard = rule.mode == "hard"
        # A soft budget only warns; its bound is that of the numbers.
        room = (account.ceiling(chain_over_permille) if is_hard else NANOUSD_MAX) - used
        if room < least or (room < amount and not guess):
            in_chain = is_hard and chain_over_permille is not None
            return Judgement(amount, account, in_chain, warnings)
        # A guess shrinks. The accounts before this one have room for the smaller amount as well.
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
    accounts: Iterable[BudgetBalance], amount: int, chain_over_permille: int | None = None
) -> None:
    """Reserve an amount that :func:`judge` has allowed."""
    # ``authorized_max`` rises only as far as this grant was allowed to go, so that the invariant
    # shows every grant beyond that.
    for account in accounts:
        balance = account.balance
        balance.refused = 0  # a call is let through
        balance.reserved += amount
        total = balance.committed + balance.reserved
        authorized = account.rule.limit
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
    """Return what a call draws from the calls around it: the part of each, and by balance.

    Args:
        around: the reservations of the calls around it, in the order in which to draw on them.
        amount: what the call needs, in nano-dollars.
    """
    parts: list[tuple[Reservation, int]] = []
    drawn: dict[int, int] = {}
    for reservation in around:
        # As much as the balance that has drawn least still lacks. A part is given back on all of
        # its reservation's balances; what another one gets too much simply becomes room.
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
    accounts: Sequence[BudgetBalance],
    cost: int,
    reservation: Reservation | None,
    reserved_balances: Iterable[Balance],
    *,
    now_ms: int,
    strict: bool = False,
    chain_over_permille: int | None = None,
) -> Charge:
    """Commit a real cost, using up the reserved amount first.

    Args:
        accounts: every balance that the cost belongs to.
        cost: nano-dollars, zero or more.
        reservation: the reservation that the cost belongs to, in any state.
        reserved_balances: the balances of the reservation.
        now_ms: when it is charged, which opens windows of a length.
        strict: any consumption above the reservation plus epsilon counts as over.
        chain_over_permille: the allowance of an open chain, or ``None`` outside of one.
    """
    # 1. The cost uses up what is held for it. A closed reservation holds nothing; its cost is then
    # taken from the room.
    taken = 0
    if reservation is not None:
        taken = min(reservation.held, cost) if reservation.state == "open" else 0
        reservation.held -= taken
        reservation.spent += cost
        for balance in reserved_balances:
            balance.reserved -= taken
    # 2. All of it is committed, also where it goes over the limit: it was spent.
    outcome = Charge(exhausted=[], crossed=[])
    for account in accounts:
        balance, rule = account.balance, account.rule
        if balance.refused:
            account.forget_refused()
        total = _commit(account, cost, now_ms)
        if rule.mode != "hard":
            continue
        # Over: the reservation held too little for it, and the total is above the ceiling. In
        # strict mode, to cost more than was reserved is enough.
        ceiling = account.ceiling(chain_over_permille)
        uncovered = cost > taken and total > ceiling + rule.epsilon_nanousd
        if strict and reservation is not None:
            uncovered |= reservation.spent > reservation.amount + rule.epsilon_nanousd
        if uncovered and not outcome.over:
            outcome.over, outcome.over_account = True, account
    # 3. Thresholds and limits that are reached by it.
    for account in accounts:
        _note_levels(account, outcome)
    return outcome


def commit(accounts: Sequence[BudgetBalance], amount: int, now_ms: int) -> Charge:
    """Commit tokens or calls, of which nothing is set aside any more.

    They are no event's cost, so the opening grows with them: what a balance has committed is always
    its opening and the costs of its events.
    """
    outcome = Charge(exhausted=[], crossed=[])
    for account in accounts:
        account.forget_refused()
        open_with(account, amount, now_ms)
        _note_levels(account, outcome)
    return outcome


def open_with(account: BudgetBalance, amount: int, now_ms: int) -> None:
    """Commit an amount that is no event's of this balance."""
    account.balance.opening += amount
    _commit(account, amount, now_ms)


def _commit(account: BudgetBalance, amount: int, now_ms: int) -> int:
    """Commit an amount; return what is committed and reserved after that."""
    balance = account.balance
    if balance.ends_ms is None and amount > 0 and account.rule.window != "total":
        length = length_ms(account.rule.window)
        if length is not None:
            balance.period_start_ms, balance.ends_ms = now_ms, now_ms + length
    balance.committed += amount
    total = balance.committed + balance.reserved
    balance.authorized_max = max(balance.authorized_max, account.rule.limit)
    balance.overspend = max(balance.overspend, total - balance.authorized_max, 0)
    return total


def _note_levels(account: BudgetBalance, outcome: Charge) -> None:
    """Add what the account has reached to the outcome, each threshold and the limit once."""
    balance, limit = account.balance, account.rule.limit
    thresholds = sorted(account.rule.thresholds)
    # The level also falls, as after a raised limit or a negative adjustment. A threshold that is
    # reached again then counts again.
    level = sum(1 for share in thresholds if balance.committed >= share * limit)
    if level > balance.level:
        outcome.crossed.append((account, thresholds[level - 1]))
    balance.level = level
    if account.rule.mode == "hard" and balance.committed >= limit and not balance.exhausted:
        balance.exhausted = True
        outcome.exhausted.append(account)


def tightest(accounts: Iterable[BudgetBalance]) -> BudgetBalance | None:
    """Return the account with the least room, hard ones before soft ones."""
    found, least = None, (True, 0)
    for account in accounts:
        rule, balance = account.rule, account.balance
        room = rule.limit - balance.committed - balance.reserved
        order = (rule.mode == "soft", room)
        if found is None or order < least:
            found, least = account, order
    return found
