"""How much to reserve for one call: a bound of its cost, or a guess.

A bound never shrinks: the call fits with it, is limited to what fits, or is refused. A guess
refuses nothing while a budget has room: :func:`guard.gateway.domain.ledger.judge` shrinks it to
what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import ledger
from guard.gateway.domain.commands import CallRefusal, GateCommand
from guard.gateway.domain.ledger import BudgetBalance, Reservation
from guard.gateway.ledger import requests
from guard.gateway.ledger.estimates import function_of, subjects
from guard.gateway.unit.state import OrganisationState
from guard.gateway.unit.unit_of_work import UnitOfWork

STREAMS: Final = 8
"""How many streams without a limit can share the unspent money of a budget."""

SMALL_ROOM: Final = 100
"""With room for fewer than this many calls of unknown cost, each holds a quarter of the room."""


class GateDecision(Struct, frozen=True):
    """What one run of a command has found out.

    Apart from the command, which is frozen, since the store may run it a second time.

    Attributes:
        recalls: rather than refuse, ask the holders of leases for what they do not use.
        lease: the caller's own lease of this lane, which has given back what is unused.
        chain_id: of the call's chain.
        allowance: how far an open chain may go over a limit, in thousandths of the limit.
        answered_by: the model that is expected to answer, if it is not the one asked for.
        rates: prices of the model, with what is assumed of an answer without a limit.
        is_last: it is the last request of a run, which may use what is kept for winding down.
    """

    unit: UnitOfWork
    org: OrganisationState
    command: GateCommand
    recalls: bool
    lease: Reservation | None
    chain_id: str | None
    allowance: int | None
    answered_by: str | None
    rates: wire.ModelRates | None
    is_last: bool = False


class Amount(Struct, frozen=True):
    """What to reserve, and how that is known.

    Attributes:
        nanousd: nano-dollars.
        basis: how it is known.
        least: a guess must not shrink below this.
        output_tokens: the output limit that the caller has to set in the request.
    """

    nanousd: int
    basis: ledger.Basis
    least: int = 1
    output_tokens: int | None = None

    @property
    def is_guess(self) -> bool:
        """Whether it is an estimate only, which refuses nothing while a budget has room."""
        return self.basis in ("default", "learned")

    @property
    def needed(self) -> int:
        """What a budget must have left."""
        return self.least if self.is_guess else self.nanousd


def bound_of(decision: GateDecision) -> Amount | CallRefusal:
    """Return what to reserve, before looking at how much room there is."""
    unit, org, command = decision.unit, decision.org, decision.command
    call = command.call
    declares_nothing = call.max_input_tokens == call.max_output_tokens == 0
    # 1. A top-up, or a call that declares to use nothing: the least that can be reserved, so that
    # an exhausted budget still refuses it.
    if command.is_top_up or (declares_nothing and call.kind != "llm"):
        return Amount(1, "declared")
    # 2. A request of a model with a price: its worst case.
    if call.kind == "llm" and decision.rates is not None:
        cost = requests.worst_case(unit, org, command, decision.rates)
        if isinstance(cost, CallRefusal):
            return cost
        return Amount(cost.amount, "learned" if cost.is_assumed else "worst_case", cost.least)
    # 3. A call whose tokens were declared.
    if command.declared_nanousd is not None:
        return Amount(command.declared_nanousd, "worst_case" if command.worst_case else "declared")
    # 4. A call of a kind whose cost was learned; else the organisation's default.
    for subject in subjects(function_of(call), call.workflow_id, call.model):
        known = unit.estimates.find(org.organisation_id, subject)
        if known is not None:
            return Amount(known.amount(), "learned")
    return Amount(org.settings.default_hold_nanousd, "default")


def payable(
    decision: GateDecision,
    accounts: list[BudgetBalance],
    amount: Amount,
    read: Mapping[int, int] = ledger.NOTHING_PROMISED,
) -> Amount:
    """Limit a request's output where all unspent money would not pay for its bound.

    Money that is set aside counts as unspent here: the request can wait for that, but what is spent
    never comes back.

    Args:
        decision: the decision.
        accounts: every balance over the call.
        amount: its bound.
        read: by balance, what cannot come back before the request is answered.

    Returns:
        What to reserve.
    """
    call, rates, allowance = decision.command.call, decision.rates, decision.allowance
    if call.least_output_tokens is None or amount.is_guess or rates is None:
        return amount
    unspent = min(
        (
            account.unspent(allowance) - read.get(account.balance.balance_id, 0)
            for account in accounts
            if account.rule.mode == "hard"
        ),
        default=None,
    )
    if unspent is None or amount.nanousd <= unspent:
        return amount
    limited = requests.limited(
        decision.unit, decision.org, decision.command, rates, unspent, call.least_output_tokens
    )
    if limited is None:
        return amount
    cost, tokens = limited
    return Amount(cost, "worst_case", cost, tokens)


def tokens_of(
    decision: GateDecision, accounts: Sequence[BudgetBalance], amount: Amount
) -> tuple[Amount, int]:
    """Return what to reserve for a call under budgets of tokens: money, and tokens.

    Where all unspent tokens would not be enough for its bound, its output is limited to them.

    Args:
        decision: the decision.
        accounts: the balances of tokens over the call.
        amount: the money to reserve.
    """
    call, rates = decision.command.call, decision.rates
    if call.kind != "llm" or rates is None:
        return amount, (call.max_input_tokens or 0) + (call.max_output_tokens or 0)
    unit, org, command = decision.unit, decision.org, decision.command
    limit = amount.output_tokens or call.max_output_tokens
    tokens_in, tokens_out = requests.tokens_of(unit, org, command, rates, limit)
    hard = [each for each in accounts if each.rule.mode == "hard"]
    unspent = min((each.unspent(decision.allowance) for each in hard), default=None)
    if unspent is None or tokens_in + tokens_out <= unspent or call.least_output_tokens is None:
        return amount, tokens_in + tokens_out
    # Any amount of money: the limit so far is at most what money pays for, and this only lowers it.
    most_tokens = min(unspent - tokens_in, tokens_out)
    limited = requests.limited(
        unit, org, command, rates, wire.NANOUSD_MAX, call.least_output_tokens, most_tokens
    )
    if limited is None:
        return amount, tokens_in + tokens_out
    cost, tokens_out = limited
    return Amount(cost, "worst_case", cost, tokens_out), tokens_in + tokens_out


def within_room(decision: GateDecision, accounts: list[BudgetBalance], amount: Amount) -> Amount:
    """Return what to reserve for a guess, which is smaller or larger where little room is left."""
    call, allowance = decision.command.call, decision.allowance
    if amount.basis == "default":
        return Amount(_few_at_once(accounts, amount.nanousd, allowance), "default")
    if amount.basis != "learned" or not call.streams:
        return amount
    share = _share_of_a_stream(accounts, amount.nanousd, amount.least, allowance)
    # A request that has not begun needs its share; one under way takes what there is.
    return Amount(share, "learned", share if call.max_input_tokens else amount.least)


def _few_at_once(accounts: list[BudgetBalance], amount: int, allowance: int | None) -> int:
    """Return what to reserve for a call about which nothing is known.

    Where little room is left, a quarter of it: few such calls then run at once, and the cost of the
    first is known before the others have used up the room.
    """
    rooms = [account.room(allowance) for account in accounts if account.rule.mode == "hard"]
    room = min(rooms, default=None)
    if room is None or room >= SMALL_ROOM * amount:
        return amount
    return max(amount, -(-room // 4))


def _share_of_a_stream(
    accounts: list[BudgetBalance], amount: int, least: int, allowance: int | None
) -> int:
    """Return what to reserve for a stream without a limit: at most a share of the unspent money.

    Several streams can share it, since each asks for more while it runs, or is cut.
    """
    unspent = [
        account.room(allowance) + account.balance.reserved
        for account in accounts
        if account.rule.mode == "hard"
    ]
    return max(least, min(amount, min(unspent, default=amount * STREAMS) // STREAMS))
