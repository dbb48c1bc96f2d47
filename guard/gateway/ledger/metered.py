"""Budgets of tokens and of calls: set aside and charged beside money, by the same rules.

Calls under such a budget are decided one by one, without a lease. An LLM request holds its bound in
tokens, and itself as one call, until its event reports what it used. Any other call is counted when
it is allowed, since no event need report whether it was made.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from guard.core import globs, wire
from guard.gateway.domain import ledger
from guard.gateway.domain.commands import PostCommitEvent, PricedEvent
from guard.gateway.domain.ledger import BudgetBalance, MeteredHold, Reservation
from guard.gateway.ledger import control
from guard.gateway.ledger.accounts import metered_accounts_of
from guard.gateway.unit.state import Meter, OrganisationState, ScopeKeys
from guard.gateway.unit.unit_of_work import UnitOfWork


class Demand(Struct, frozen=True):
    """What a call takes of budgets that count the same thing, in their unit."""

    meter: Meter
    accounts: list[BudgetBalance]
    amount: int


NO_DEMANDS: Final[Sequence[Demand]] = ()


def over_call(
    unit: UnitOfWork, org: OrganisationState, call: wire.GateRequest, keys: ScopeKeys
) -> Sequence[Demand]:
    """Return the budgets of tokens and calls over a call, with an amount of 1 for a start."""
    if call.grows:  # more money for a request that holds all its tokens
        return NO_DEMANDS
    return [
        Demand(meter, accounts, 1)
        for meter, accounts in metered_accounts_of(unit, org, keys)
        if (_uses_tokens(call) if meter.unit == "tokens" else _counts_call(meter, call, keys[-1]))
    ]


def _uses_tokens(call: wire.GateRequest) -> bool:
    """Return whether a call takes tokens itself: one whose requests are gated does not."""
    if call.kind == "llm":
        return True
    return not call.gates_requests and bool(call.max_input_tokens or call.max_output_tokens)


def _counts_call(meter: Meter, call: wire.GateRequest, named: tuple[str, ...]) -> bool:
    if call.kind == "llm":
        return _counts_model(meter, named)
    if not meter.counts:
        return True
    return _matcher(meter.counts).find_in_parts(call.tool_name or call.function) is not None


def _counts_model(meter: Meter, names: Iterable[str]) -> bool:
    """Return whether requests for a model are counted, by any of its names."""
    if not meter.counts:
        return True
    matcher = _matcher(meter.counts)
    return any(matcher.find(name) is not None for name in names)


@functools.lru_cache(maxsize=1024)
def _matcher(counts: tuple[str, ...]) -> globs.Matcher:
    return globs.Matcher(counts)


def judge(
    needs: Sequence[Demand],
    judgement: ledger.Judgement,
    chain_over_permille: int | None,
    promised: Mapping[int, int],
) -> ledger.Judgement:
    """Return the judgement of a call whose money fits, refused where its tokens or calls do not."""
    for need in needs:
        found = ledger.judge(
            need.accounts,
            need.amount,
            guess=False,
            chain_over_permille=chain_over_permille,
            promised=promised,
        )
        judgement.warnings.extend(found.warnings)
        if found.refused_by is not None:
            return found
    return judgement


def reserve(
    unit: UnitOfWork,
    org: OrganisationState,
    needs: Sequence[Demand],
    reservation: Reservation,
    chain_over_permille: int | None,
) -> None:
    """Reserve what was judged to fit; charge at once what no event will settle."""
    holds: list[MeteredHold] = []
    for need in needs:
        balances = [account.balance for account in need.accounts]
        unit.change_balances(balances)
        ledger.reserve(need.accounts, need.amount, chain_over_permille)
        if need.meter.unit == "tokens" or reservation.is_request:
            ids = tuple([balance.balance_id for balance in balances])
            holds.append(MeteredHold(need.meter.unit, ids, need.amount, need.amount))
            continue
        # Reserved above and unreserved here: ``ledger.reserve`` also raises what was authorised, as
        # for every other grant.
        for balance in balances:
            balance.reserved -= need.amount
        control.announce_charge(unit, org, ledger.commit(need.accounts, need.amount, unit.now_ms))
    reservation.metered = tuple(holds)


# -- the end -----------------------------------------------------------------------------------


MeteredAccounts = Sequence[tuple[Meter, list[BudgetBalance]]]


def over_event(unit: UnitOfWork, org: OrganisationState, keys: ScopeKeys) -> MeteredAccounts:
    """Return the budgets over an LLM request's event, by what they count.

    Call this before the event's usage is counted: a balance that is opened here starts with what
    was used before, and the event is charged to it later.
    """
    return list(metered_accounts_of(unit, org, keys))


def charge(
    unit: UnitOfWork,
    org: OrganisationState,
    keys: ScopeKeys,
    found: MeteredAccounts,
    priced: PricedEvent,
    reservation: Reservation | None,
    charged_at_ms: int,
) -> None:
    """Charge an LLM request's event, using up what its reservation holds.

    The caller has announced that the reservation changes.
    """
    holds = () if reservation is None else reservation.metered
    if not found and not holds:
        return
    # 1. The balances of the reservation's own period, by budget and scope.
    own = {}
    for hold in holds:
        for balance_id in hold.balance_ids:
            balance = unit.balance(balance_id)
            own[balance.budget_id, balance.scope_id] = balance
    tokens = _tokens_of(priced, reservation)
    if any(meter.unit == "tokens" for meter, _ in found):
        unit.count_doubtful_tokens(org.organisation_id, keys, charged_at_ms, priced, tokens)
    # 2. What is held goes back to the balances, up to what is about to be charged.
    left: list[MeteredHold] = []
    counted: set[int] = set()  # the balances on which the request is counted already
    for hold in holds:
        taken = tokens if hold.unit == "tokens" else 1
        # Charged in advance when the reservation expired; it holds nothing any more.
        if hold.unit == "tokens":
            prepaid = min(tokens, hold.prepaid)
            tokens -= prepaid
            hold = msgspec.structs.replace(hold, prepaid=hold.prepaid - prepaid)
        # An earlier event has counted the request, or its end has (:func:`close`). A release gave
        # the call back uncounted, so an event that comes after it counts.
        elif not hold.held and reservation is not None and reservation.state != "released":
            counted.update(hold.balance_ids)
        taken = min(taken, hold.held)
        _unreserve(unit, hold, taken)
        left.append(msgspec.structs.replace(hold, held=hold.held - taken))
    if reservation is not None and holds:
        reservation.metered = tuple(left)
    # 3. The charge, on every budget over the event, also where nothing was held: the model that has
    # answered may be under other budgets than the one that was asked for.
    for meter, accounts in found:
        # A request that began before midnight is charged to the day in which it was reserved.
        over = [
            BudgetBalance(a.rule, own.get((a.balance.budget_id, a.balance.scope_id), a.balance))
            for a in accounts
        ]
        amount = tokens
        if meter.unit == "calls":
            amount = 1 if _counts_model(meter, keys[-1]) else 0
            over = [each for each in over if each.balance.balance_id not in counted]
        if amount and over:
            unit.change_balances([account.balance for account in over])
            control.announce_charge(unit, org, ledger.commit(over, amount, unit.now_ms))


def _tokens_of(priced: PricedEvent, reservation: Reservation | None) -> int:
    """Return the tokens of an event: input, output and cached ones.

    For a request of which no more is known than that it was sent: all tokens that were set aside.
    """
    tokens = priced.input_tokens + priced.output_tokens
    if tokens or "estimated" not in priced.flags or reservation is None:
        return tokens
    if not reservation.is_request:
        return 0
    return max((hold.amount for hold in reservation.metered if hold.unit == "tokens"), default=0)


def _unreserve(unit: UnitOfWork, hold: MeteredHold, amount: int) -> None:
    if amount:
        balances = [unit.balance(balance_id) for balance_id in hold.balance_ids]
        unit.change_balances(balances)
        for balance in balances:
            balance.reserved -= amount


def close(
    unit: UnitOfWork,
    org: OrganisationState,
    reservation: Reservation,
    state: ledger.ReservationState,
) -> None:
    """Give back what a reservation still holds, but charge a call that may have been made.

    The caller has announced that the reservation changes.
    """
    returned: set[int] = set()
    for hold in reservation.metered:
        if not hold.held:
            continue
        _unreserve(unit, hold, hold.held)
        if hold.unit == "tokens" or state == "released":
            returned.update(hold.balance_ids)
        else:
            over = _accounts_of(unit, hold)
            control.announce_charge(unit, org, ledger.commit(over, hold.held, unit.now_ms))
    reservation.metered = tuple(
        [msgspec.structs.replace(hold, held=0) for hold in reservation.metered]
    )
    if returned:
        own = reservation.organisation_id
        unit.announce(PostCommitEvent("room", own, balance_ids=tuple(sorted(returned))))


def _accounts_of(unit: UnitOfWork, hold: MeteredHold) -> list[BudgetBalance]:
    """Return the accounts of a hold, without those whose budget was removed."""
    found = []
    for balance_id in hold.balance_ids:
        balance = unit.balance(balance_id)
        rule = unit.catalogue.budget(balance.budget_id)
        if rule is not None:
            found.append(BudgetBalance(rule, balance))
    return found


def prepay(reservation: Reservation) -> None:
    """Note that all tokens of an expired request were charged, which pays for a late event."""
    reservation.metered = tuple(
        [
            msgspec.structs.replace(hold, prepaid=hold.amount) if hold.unit == "tokens" else hold
            for hold in reservation.metered
        ]
    )


def unpay(
    unit: UnitOfWork,
    org: OrganisationState,
    keys: ScopeKeys,
    reservation: Reservation,
    charge: PricedEvent,
) -> None:
    """Take back the tokens that were charged when a reservation expired, at the time of the charge.

    The caller has announced that the reservation changes.
    """
    holds = []
    for hold in reservation.metered:
        if hold.prepaid:
            own = org.organisation_id
            unit.count_doubtful_tokens(own, keys, charge.event.at_ms, charge, -hold.prepaid)
            over = _accounts_of(unit, hold)
            unit.change_balances([account.balance for account in over])
            ledger.commit(over, -hold.prepaid, unit.now_ms)
            control.lift_unspent(unit, org, over)
        holds.append(msgspec.structs.replace(hold, prepaid=0))
    reservation.metered = tuple(holds)


def hold_again(unit: UnitOfWork, reservation: Reservation) -> None:
    """Hold tokens again for a reopened reservation, as many as no other call was granted."""
    holds = []
    for hold in reservation.metered:
        if hold.unit == "tokens" and not hold.prepaid:
            over = _accounts_of(unit, hold)
            judgement = ledger.judge(over, hold.amount, guess=True)
            if judgement.refused_by is None and len(over) == len(hold.balance_ids):
                unit.change_balances([account.balance for account in over])
                ledger.reserve(over, judgement.amount)
                hold = msgspec.structs.replace(hold, held=judgement.amount)
        holds.append(hold)
    reservation.metered = tuple(holds)
