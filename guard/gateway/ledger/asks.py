"""Budgets that ask: a call that does not fit waits for an operator to raise the limit.

A raise changes the limit like any other change does, once for each raise key. It wakes the line:
the waiting calls ask again, and are allowed if they fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from guard.core.wire import NANOUSD_MAX
from guard.gateway.domain import records
from guard.gateway.domain.commands import Actor, PostCommitEvent
from guard.gateway.domain.errors import ConflictError, NotFoundError
from guard.gateway.domain.ledger import BudgetBalance
from guard.gateway.domain.waiting import LAPSE_MS, RETRY_MS
from guard.gateway.ledger import audit, control, webhooks
from guard.gateway.ledger.accounts import organisation
from guard.gateway.ledger.amounts import GateDecision
from guard.gateway.unit.unit_of_work import UnitOfWork

FORGET_MS: Final = 60_000
"""A call that has not asked for so long is taken for gone. Long enough for a gateway to restart."""


def may_wait(decision: GateDecision, account: BudgetBalance) -> bool:
    """Return whether a call may wait, or keep waiting, for a budget to be raised."""
    if not account.rule.asks:
        return False
    unit = decision.unit
    known = unit.raises.budget_ask(account.balance.balance_id, decision.command.call.call_id)
    return known is None or unit.now_ms < known[0].deadline_ms


def note(decision: GateDecision, asked: Iterable[tuple[BudgetBalance, int]]) -> None:
    """Note that a call waits for budgets to be raised; notify channels of the first at a limit.

    Args:
        decision: the decision.
        asked: the accounts that do not pay for it, each with what the call needs in its unit.
    """
    unit, call = decision.unit, decision.command.call
    for account, needed in asked:
        balance, rule = account.balance, account.rule
        known = unit.raises.budget_ask(balance.balance_id, call.call_id)
        asked_at_ms, deadline_ms = unit.now_ms, unit.now_ms + rule.ask_ms
        if known is not None:
            ask, seen_ms = known
            asked_at_ms, deadline_ms = ask.asked_at_ms, ask.deadline_ms
            # A call for which a raise was too little asks anew, for more than the new limit.
            if ask.limit == rule.limit:
                # Waiting calls ask about every second; more often is not worth a write.
                if unit.now_ms - seen_ms >= RETRY_MS // 2:
                    unit.raises.save_ask(ask)
                continue
        # One notice for a limit, however many calls wait; another one after a time without any.
        since_ms = unit.now_ms - LAPSE_MS
        is_first = not unit.raises.is_asked(balance.balance_id, rule.limit, since_ms)
        ask = records.BudgetAsk(
            organisation_id=rule.organisation_id, budget_id=rule.budget_id,
            balance_id=balance.balance_id, scope=account.label(),
            limit=rule.limit, spent=balance.committed,
            needed=needed, lacking=needed - account.unspent(decision.allowance),
            call_id=call.call_id, function=call.tool_name or call.function,
            workflow_id=call.workflow_id, run_id=call.run_id, agent=call.agent, user=call.user,
            model=call.model, asked_at_ms=asked_at_ms, deadline_ms=deadline_ms,
            unit=rule.unit, counts=rule.counts,
        )  # fmt: skip
        unit.raises.save_ask(ask)
        if is_first:
            body = msgspec.to_builtins(ask) | control.key_name(unit, account)
            webhooks.enqueue(unit, rule.organisation_id, "budget.asks", body)


def decided(decision: GateDecision, accounts: Iterable[BudgetBalance], *, refused: bool) -> str:
    """Delete what a call has asked, once it is decided.

    Args:
        decision: the decision.
        accounts: every balance over the call.
        refused: whether the call is refused, as no operator raised the limit in time.

    Returns:
        The refusal of an operator, for the end of a sentence; else an empty string.
    """
    command, unit = decision.command, decision.unit
    if command.place is None:
        return ""
    call_id, own = command.call.call_id, decision.org.organisation_id
    found = []
    for account in accounts:
        if account.rule.asks:
            known = unit.raises.budget_ask(account.balance.balance_id, call_id)
            if known is not None:
                found.append(known[0])
    if not found:
        return ""
    # An operator sees a call only as long as it waits. That no answer came in time is recorded, as
    # it is the reason for the refusal.
    unit.raises.drop_asks(own, call_id)
    for ask in found if refused else ():
        if unit.now_ms >= ask.deadline_ms and not ask.refused_by:
            details = {
                "call_id": call_id,
                "scope": ask.scope,
                "needed": ask.needed,
                "unit": ask.unit,
            }
            audit.record(unit, Actor("gateway"), "budget.unanswered", ask.budget_id, details, own)
    answered = next((ask for ask in found if ask.refused_by), None) if refused else None
    if answered is None:
        return ""
    why = f": {answered.refused_reason}" if answered.refused_reason else ""
    return f"; an operator refused to raise it{why}"


def require_open(
    unit: UnitOfWork, organisation_id: str, balance_id: int, call_id: str
) -> records.BudgetAsk:
    """Return the question of a call that is still waiting.

    Raises:
        NotFoundError: the organisation has no such call.
        ConflictError: it waits no longer.
    """
    known = unit.raises.budget_ask(balance_id, call_id)
    if known is None or known[0].organisation_id != organisation_id:
        raise NotFoundError("no such call that waits for a raise")
    if unit.now_ms >= known[0].deadline_ms:
        raise ConflictError("the call waits no longer for a raise")
    return known[0]


def refuse(
    unit: UnitOfWork,
    actor: Actor,
    organisation_id: str,
    balance_id: int,
    call_id: str,
    reason: str = "",
) -> records.BudgetAsk:
    """Refuse a raise: the waiting call is woken, asks once more and is refused.

    Raises:
        NotFoundError, ConflictError: as :func:`require_open`.
    """
    ask = require_open(unit, organisation_id, balance_id, call_id)
    # The answer is in the row, not only in the wake-up: if that is lost, the call asks again by
    # itself within a second, finds its deadline over, and :func:`decided` returns the reason.
    refused = msgspec.structs.replace(
        ask, deadline_ms=unit.now_ms, refused_by=actor.name, refused_reason=reason
    )
    unit.raises.save_ask(refused)
    details = {"call_id": call_id, "scope": ask.scope, "needed": ask.needed, "unit": ask.unit}
    if reason:
        details["reason"] = reason
    audit.record(unit, actor, "budget.refuse", ask.budget_id, details, organisation_id)
    unit.announce(PostCommitEvent("room", organisation_id, balance_ids=(balance_id,)))
    return refused


def refuse_all(
    unit: UnitOfWork,
    actor: Actor,
    organisation_id: str,
    budget_id: str,
    waiting: Sequence[records.BudgetAsk],
    reason: str,
) -> list[records.BudgetAsk]:
    """Refuse calls that wait for a raise of a budget, except those that were answered meanwhile.

    Raises:
        NotFoundError: no such budget.
        ConflictError: none of them waits any more.
    """
    budget = unit.catalogue.budget(budget_id)
    if budget is None or budget.organisation_id != organisation_id:
        raise NotFoundError("no such budget")
    refused = []
    for each in waiting:
        with contextlib.suppress(NotFoundError, ConflictError):
            refused.append(
                refuse(unit, actor, organisation_id, each.balance_id, each.call_id, reason)
            )
    if not refused:
        raise ConflictError("no such call waits for a raise of this budget")
    return refused


def lapse(unit: UnitOfWork) -> None:
    """Delete the questions of calls whose callers have gone."""
    unit.raises.drop_lapsed_asks(unit.now_ms - FORGET_MS)


def raise_budget(
    unit: UnitOfWork,
    actor: Actor,
    organisation_id: str,
    budget_id: str,
    *,
    by: int,
    raise_key: str,
    counted_in: records.BudgetUnit = "usd",
) -> records.Raised:
    """Raise a budget's limit by an amount, once for each key.

    Args:
        unit: the unit of work.
        actor: who raises it.
        organisation_id: of the budget.
        budget_id: the budget.
        by: how much, in nano-dollars, or in the unit that ``counted_in`` names.
        raise_key: identifies the raise; empty: every request is another raise.
        counted_in: the unit of the amount, which has to be the budget's.

    Raises:
        NotFoundError: no such budget.
        ConflictError: the key was used for another raise, the budget is in another unit, or the
            limit would pass what can be counted.
    """
    old = unit.catalogue.budget(budget_id)
    if old is None or old.organisation_id != organisation_id:
        raise NotFoundError("no such budget")
    # Before everything that may refuse: a repeat of a raise that was made, such as one whose answer
    # was lost, must succeed even if the budget has changed since.
    done = unit.raises.budget_raise(organisation_id, raise_key) if raise_key else None
    if done is not None:
        if (done.budget_id, done.by) != (budget_id, by):
            raise ConflictError("this key was used before for another raise")
        return records.Raised(budget=old, raised=done)
    if old.unit != counted_in:
        unit_of = {"usd": "dollars (by_nanousd)"}.get(old.unit, f"{old.unit} (by_{old.unit})")
        raise ConflictError(f"this budget is raised in {unit_of}")
    if old.limit + by > NANOUSD_MAX:
        raise ConflictError("the limit would pass what can be counted")
    new = msgspec.structs.replace(
        old,
        limit=old.limit + by,
        version=old.version + 1,
        updated_at_ms=unit.now_ms,
    )
    raised = records.BudgetRaise(
        raise_key=raise_key or unit.ids.uuid7(unit.now_ms), organisation_id=organisation_id,
        budget_id=budget_id, by=by, limit=new.limit,
        raised_at_ms=unit.now_ms, raised_by=actor.name, unit=old.unit,
    )  # fmt: skip
    unit.raises.add_raise(raised)
    unit.catalogue.save_budget(new)
    control.budget_changed(unit, organisation(unit, organisation_id), old, new)
    details = {"by": by, "limit": new.limit, "unit": old.unit, "key": raised.raise_key}
    audit.record(unit, actor, "budget.raise", budget_id, details, organisation_id)
    control.announce_rules(unit, organisation_id, "budget raised")
    return records.Raised(budget=new, raised=raised)
