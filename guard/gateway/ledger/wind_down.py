"""Winding down: a share of a hard budget is kept for calls that finish the work of a run.

A caller marks such calls itself (``winding_down``). For a caller that does not, but accepts a last
request (``takes_last``), the first request of a run that does not fit outside of the share may use
it, and is the run's last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from guard.core import wire
from guard.gateway.domain.ledger import BudgetBalance
from guard.gateway.ledger.amounts import Amount, GateDecision
from guard.gateway.ledger.metered import NO_DEMANDS, Demand
from guard.gateway.unit.unit_of_work import UnitOfWork

FORGET_MS: Final = 30 * 86_400_000
"""How long it is remembered that a run winds down."""


def without_kept(accounts: list[BudgetBalance], call: wire.GateRequest) -> list[BudgetBalance]:
    """Return the accounts as a call may use them: without the shares kept for winding down."""
    # New accounts, as the given ones are cached and shared. The balances in them are the same.
    for account in accounts:
        if account.rule.wind_down_percent and not call.winding_down:
            return [BudgetBalance(a.rule, a.balance, a.rule.kept) for a in accounts]
    return accounts


def begins(
    decision: GateDecision,
    accounts: Sequence[BudgetBalance],
    amount: Amount,
    needs: Sequence[Demand] = NO_DEMANDS,
) -> list[BudgetBalance]:
    """Return the accounts with a kept share outside of which a call does not fit."""
    allowance = decision.allowance
    found = [a for a in accounts if a.kept and a.room(allowance) < amount.needed]
    for need in needs:
        found += [a for a in need.accounts if a.kept and a.room(allowance) < need.amount]
    return found


def may_be_last(decision: GateDecision, short: Sequence[BudgetBalance]) -> bool:
    """Return whether a request may use the kept shares, as the last one of its run."""
    # A question for more (``grows``) is not a request of its own, so it cannot be the last one.
    call = decision.command.call
    if not (short and call.takes_last and call.kind == "llm" and not call.grows):
        return False
    unit = decision.unit
    return all(not unit.raises.last_call(a.balance.balance_id, _run(a, call)) for a in short)


def note(decision: GateDecision, short: Sequence[BudgetBalance], *, is_last: bool = False) -> None:
    """Note that the run winds down on these accounts.

    Args:
        decision: the decision.
        short: the accounts.
        is_last: whether its last request was let through.
    """
    call = decision.command.call
    last = call.call_id if is_last else ""
    for account in short:
        balance_id, run = account.balance.balance_id, _run(account, call)
        # Further refusals of a run that is known to wind down write nothing.
        if is_last or decision.unit.raises.last_call(balance_id, run) is None:
            decision.unit.raises.wind_down(balance_id, run, last)


def run_of(scope_kind: str, workflow_id: str | None, run_id: str | None) -> str:
    """Return what has one last request: a key's whole budget (empty), else the run or workflow."""
    return "" if scope_kind == "key" else run_id or workflow_id or ""


def _run(account: BudgetBalance, call: wire.GateRequest) -> str:
    return run_of(account.rule.scope_kind, call.workflow_id, call.run_id)


def lapse(unit: UnitOfWork) -> None:
    """Delete the notes on runs that began to wind down long ago."""
    unit.raises.drop_wind_downs(unit.now_ms - FORGET_MS)
