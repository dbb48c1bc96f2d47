"""How much one call may cost, and so is to be reserved for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import ledger
from guard.gateway.domain.commands import CallRefusal, GateCommand
from guard.gateway.domain.ledger import BudgetAccount, Reservation
from guard.gateway.ledger import requests
from guard.gateway.ledger.estimates import function_of, subjects
from guard.gateway.ledger.state import OrganisationState
from guard.gateway.ledger.unit_of_work import UnitOfWork

STREAMS: Final = 8
"""How many streams without a limit can share what is unspent of a budget."""

SMALL_ROOM: Final = 100
"""Multiple of an unknown call's reservation: with less room, few such calls run at once."""


class GateDecision(Struct, frozen=True):
    """What one run of a command has found out, beside the command, which may run again.

    Attributes:
        recalls: rather than refuse, ask the holders of leases for what they do not use.
        lease: the caller's own lease of this lane, which has given back what is unused.
        chain_id: of the call's chain.
        allowance: how far an open chain may go over a limit, in thousandths.
        answered_by: the model that is expected to answer, if another than the one asked for.
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
        least: what it must not shrink below if it is a guess.
        output_tokens: the output limit that the caller has to put into the request.
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
    """Return what to reserve, before anything is known of the room."""
    unit, org, command = decision.unit, decision.org, decision.command
    call = command.call
    declares_nothing = call.max_input_tokens == call.max_output_tokens == 0
    if command.is_ahead or (declares_nothing and call.kind != "llm"):
        return Amount(1, "declared")  # the least, which an exhausted budget has not left
    if call.kind == "llm" and decision.rates is not None:
        cost = requests.worst_case(unit, org, command, decision.rates)
        if isinstance(cost, CallRefusal):
            return cost
        return Amount(cost.amount, "learned" if cost.is_assumed else "worst_case", cost.least)
    if command.declared_nanousd is not None:
        return Amount(command.declared_nanousd, "worst_case" if command.worst_case else "declared")
    for subject in subjects(function_of(call), call.workflow_id, call.model):
        known = unit.estimate(org.organisation_id, subject)
        if known is not None:
            return Amount(known.amount(), "learned")
    return Amount(org.settings.default_hold_nanousd, "default")


def payable(
    decision: GateDecision,
    accounts: list[BudgetAccount],
    amount: Amount,
    read: Mapping[int, int] = ledger.NOTHING_PROMISED,
) -> Amount:
    """Return what to reserve of a request whose output can be limited.

    Where not even all unspent money would pay for its bound, the most that it does pay for.

    Args:
        decision: the decision.
        accounts: every balance over the call.
        amount: its bound.
        read: by balance, what cannot come back before the request is answered.
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
    decision: GateDecision, accounts: Sequence[BudgetAccount], amount: Amount
) -> tuple[Amount, int]:
    """Return what to reserve of a call under budgets of tokens: money, and tokens.

    Where not all unspent tokens would do for its bound, its output is limited to those that do.

    Args:
        decision: the decision.
        accounts: the balances of tokens over the call.
        amount: what to reserve of money.
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
    most_tokens = min(unspent - tokens_in, tokens_out)
    limited = requests.limited(
        unit, org, command, rates, wire.NANOUSD_MAX, call.least_output_tokens, most_tokens
    )
    if limited is None:
        return amount, tokens_in + tokens_out
    cost, tokens_out = limited
    return Amount(cost, "worst_case", cost, tokens_out), tokens_in + tokens_out


def within_room(decision: GateDecision, accounts: list[BudgetAccount], amount: Amount) -> Amount:
    """Return what to reserve of a guess where little room is left."""
    call, allowance = decision.command.call, decision.allowance
    if amount.basis == "default":
        return Amount(_few_at_once(accounts, amount.nanousd, allowance), "default")
    if amount.basis != "learned" or not call.streams:
        return amount
    share = _share_of_a_stream(accounts, amount.nanousd, amount.least, allowance)
    # A request that has not begun needs its share; one under way takes what there is.
    return Amount(share, "learned", share if call.max_input_tokens else amount.least)


def _few_at_once(accounts: list[BudgetAccount], amount: int, allowance: int | None) -> int:
    """Return what to reserve for a call about which nothing is known.

    Where little room is left, a quarter of it. So few such calls run at once, and the cost of the
    first is known before the room is used up.
    """
    rooms = [account.room(allowance) for account in accounts if account.rule.mode == "hard"]
    room = min(rooms, default=None)
    if room is None or room >= SMALL_ROOM * amount:
        return amount
    return max(amount, -(-room // 4))


def _share_of_a_stream(
    accounts: list[BudgetAccount], amount: int, least: int, allowance: int | None
) -> int:
    """Return what to reserve for a stream without a limit: where little is left, a share of it.

    A stream asks for more while it comes, or is cut, so that several can share what is unspent.
    """
    unspent = [
        account.room(allowance) + account.balance.reserved
        for account in accounts
        if account.rule.mode == "hard"
    ]
    return max(least, min(amount, min(unspent, default=amount * STREAMS) // STREAMS))
