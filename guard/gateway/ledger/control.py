"""Directives (kill, pause, resume, revive) and the messages that charges cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from guard.core import wire
from guard.gateway.domain import alerts, ledger, records
from guard.gateway.domain.commands import Actor, CallRefusal, PostCommitEvent
from guard.gateway.domain.ledger import Balance, BudgetBalance
from guard.gateway.ledger import alerting, audit, webhooks
from guard.gateway.ledger.accounts import organisation
from guard.gateway.unit.state import OrganisationState
from guard.gateway.unit.unit_of_work import UnitOfWork

CONTROL_KEEP: Final = 5000
"""How many of an organisation's newest messages are kept for replay."""


def stopped(
    unit: UnitOfWork, org: OrganisationState, workflow_id: str | None, run_id: str | None
) -> CallRefusal | None:
    """Return the refusal of a killed or paused workflow, or ``None`` when it may run."""
    found = org.directives.state_of(workflow_id, run_id, unit.now_ms)
    if found.state == "active":
        return None
    killed = found.state == "killed"
    resume_after_ms = None
    if found.resume_at_ms is not None:
        resume_after_ms = max(0, found.resume_at_ms - unit.now_ms)
    subject = "run" if found.by_run else "workflow"
    return CallRefusal(
        status=403,
        error_code="GD-W002" if killed else "GD-W003",
        title=f"{subject.capitalize()} {found.state}",
        reason=found.reason or f"the {subject} is {found.state}",
        action="kill" if killed else "pause",
        workflow_id=workflow_id,
        resume_after_ms=resume_after_ms,
    )


def issue_directive(
    unit: UnitOfWork, actor: Actor, organisation_id: str, draft: wire.ControlMessage
) -> wire.ControlMessage:
    """Record a kill, pause, resume or revive and push it.

    Raises:
        NotFoundError: no such organisation.
    """
    message = publish(unit, organisation(unit, organisation_id), draft)
    target = draft.run_id or draft.workflow_id or "*"
    details = {"reason": draft.reason, "run": draft.run_id is not None, "seq": message.seq,
               "resume_after_ms": draft.resume_after_ms}  # fmt: skip
    audit.record(unit, actor, f"workflow.{draft.type}", target, details, organisation_id)
    # Of all directives only a kill is reported to channels.
    if draft.type == "kill":
        told = {"target": target, "is_run": draft.run_id is not None, "reason": draft.reason,
                "by": actor.name}  # fmt: skip
        webhooks.enqueue(unit, organisation_id, "workflow.kill", told)
    return message


def publish(
    unit: UnitOfWork,
    org: OrganisationState,
    draft: wire.ControlMessage,
    key_id: str | None = None,
) -> wire.ControlMessage:
    """Number a message, store it for replay, apply it, and deliver it after the commit."""
    # The unit has the organisation to itself, so messages are committed in the order of their
    # numbers: a client that has seen one has been sent all before it.
    message = msgspec.structs.replace(
        draft, seq=org.control_seq + 1, at_ms=unit.now_ms, epoch=unit.incarnation
    )
    unit.append_control(org, message, key_id)
    unit.announce(PostCommitEvent("control", org.organisation_id, message, key_id))
    return message


def compact(unit: UnitOfWork) -> None:
    """Drop old messages, so that a replay stays bounded.

    Active directives stay, whatever their age, and so do the newest messages of all kinds.
    """
    # Only when twice as many are stored, so that most sweeps delete nothing.
    for org in unit.organisation_states():
        if org.control_seq - org.compacted_seq >= 2 * CONTROL_KEEP:
            unit.drop_control(org, org.control_seq - CONTROL_KEEP)


def announce_catalogue(unit: UnitOfWork, organisation_id: str, reason: str) -> None:
    """Notify gateways and SDKs that a policy, a price or the settings changed."""
    unit.announce(PostCommitEvent("catalogue", organisation_id))
    announce_rules(unit, organisation_id, reason)


def announce_rules(unit: UnitOfWork, organisation_id: str, reason: str) -> None:
    """Notify SDKs that a policy, a price, a budget or the settings changed.

    An SDK then asks again, even for calls that its leases would cover: for all rules, so that one
    message is enough for all that a unit of work changes.
    """
    told = (e.message for e in unit.events if e.organisation_id == organisation_id)
    if any(message is not None and message.type == "policy" for message in told):
        return
    draft = wire.ControlMessage(seq=0, type="policy", workflow_id="*", reason=reason)
    publish(unit, organisation(unit, organisation_id), draft)


# -- budgets -----------------------------------------------------------------------------------


def announce_charge(unit: UnitOfWork, org: OrganisationState, charged: ledger.Charge) -> None:
    """Notify SDKs of exhausted budgets, and webhooks of crossed thresholds."""
    for account in charged.exhausted:
        unit.note_exhausted(account.balance.balance_id, org.organisation_id)
        tell_exhausted(unit, account)
        # SDKs stop by themselves on this message. Under a budget that asks they must not: the next
        # call has to ask, and waits for a raise.
        if not account.rule.asks:
            _announce_budget(unit, org, account, exhausted=True)
    for account, share in charged.crossed:
        body = {**_about(unit, account), "threshold": share}
        webhooks.enqueue(unit, org.organisation_id, "budget.threshold", body)


def tell_exhausted(unit: UnitOfWork, account: BudgetBalance) -> None:
    """Send notices that a budget is spent, or too small for a call; once for each limit."""
    rule, balance = account.rule, account.balance
    if rule.mode != "hard":
        return
    fact = alerts.Fact(
        type="budget.exhausted",
        key=f"exhausted:{balance.balance_id}:{rule.limit}",
        data={**_about(unit, account), "asks": rule.asks},
    )
    alerting.tell(unit, rule.organisation_id, fact)


def _about(unit: UnitOfWork, account: BudgetBalance) -> dict[str, Any]:
    """Return a notice's data about a budget."""
    view = account.view() if account.rule.unit == "usd" else account.counted()
    return {
        **key_name(unit, account),
        "budget_id": account.rule.budget_id,
        "scope": account.label(),
        "unit": account.rule.unit,
        "zone": account.balance.zone,
        "budget": msgspec.to_builtins(view),
    }


def key_name(unit: UnitOfWork, account: BudgetBalance) -> dict[str, Any]:
    """Return the name of a budget's key for a notice's data: people know no ids."""
    key = unit.directory.key(account.balance.scope_id) if account.rule.scope_kind == "key" else None
    return {} if key is None else {"key_name": key.name}


def _announce_budget(
    unit: UnitOfWork, org: OrganisationState, account: BudgetBalance, *, exhausted: bool
) -> None:
    """Push a budget's state to the workflows that it stops.

    Budgets of an agent, a chain, a user, a tag or a model stop only some calls of a workflow, and
    so do those of tokens and calls. They are left to the gate.
    """
    kind, scope_id = account.rule.scope_kind, account.balance.scope_id
    if kind not in ("organisation", "workflow", "key") or account.rule.unit != "usd":
        return
    whose = account.whose(scope_id, None)  # of all who are told, it is their own key's
    draft = wire.ControlMessage(
        seq=0,
        type="budget",
        workflow_id=scope_id if kind == "workflow" else "*",
        reason=f"budget {'exhausted' if exhausted else 'available'}: {whose}: {account.state()}",
        budget=account.view(),
        exhausted=exhausted,
    )
    publish(unit, org, draft, scope_id if kind == "key" else None)


def lift_ended(unit: UnitOfWork) -> None:
    """Lift the exhaustion of periods that have ended."""
    for balance, organisation_id in unit.ended_exhausted():
        org = organisation(unit, organisation_id)
        _lift(unit, org, unit.catalogue.budget(balance.budget_id), balance)


def lift_unspent(
    unit: UnitOfWork, org: OrganisationState, accounts: Sequence[BudgetBalance]
) -> None:
    """Lift the exhaustion of budgets that have room again, and wake who waits for room."""
    for account in accounts:
        balance = account.balance
        if balance.exhausted and balance.committed < account.rule.limit:
            _lift(unit, org, account.rule, balance)
    ids = tuple(account.balance.balance_id for account in accounts)
    unit.announce(PostCommitEvent("room", org.organisation_id, balance_ids=ids))


def _lift(
    unit: UnitOfWork, org: OrganisationState, rule: records.BudgetRule | None, balance: Balance
) -> None:
    unit.change_balances([balance])
    balance.exhausted = False
    unit.clear_exhausted(balance.balance_id)
    if rule is not None:
        _announce_budget(unit, org, BudgetBalance(rule, balance), exhausted=False)


def budget_changed(
    unit: UnitOfWork,
    org: OrganisationState,
    old: records.BudgetRule,
    new: records.BudgetRule | None,
) -> None:
    """Apply a change of a budget's limit or mode to its open periods.

    Args:
        unit: the unit of work.
        org: the organisation.
        old: the budget before the change.
        new: the budget after it; ``None``: it is removed.
    """
    rule = new or old
    for balance in unit.open_balances(rule.budget_id):
        spent_up = new is not None and new.mode == "hard" and balance.committed >= new.limit
        unit.change_balances([balance])
        # A limit that goes down cannot take back what was granted under the old one.
        balance.authorized_max = max(balance.authorized_max, rule.limit)
        # Runs that used up the kept share of the old limit may have room again.
        if old.wind_down_percent:
            unit.raises.end_wind_downs(balance.balance_id)
        was_told = balance.exhausted and not old.asks
        if balance.exhausted and not spent_up:
            _lift(unit, org, rule, balance)
        elif spent_up:
            if not balance.exhausted:
                balance.exhausted = True
                unit.note_exhausted(balance.balance_id, org.organisation_id)
            if was_told == rule.asks:  # one that asks stops nothing without a question
                account = BudgetBalance(rule, balance)
                _announce_budget(unit, org, account, exhausted=not rule.asks)
