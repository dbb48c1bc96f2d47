"""The gate: decide one call, and reserve what it may cost."""

from __future__ import annotations

from typing import Final

from guard.core import wire
from guard.gateway.domain import ledger, models, render
from guard.gateway.domain.commands import Answer, GateCommand, Refusal
from guard.gateway.domain.ledger import Reservation
from guard.gateway.ledger import approvals, chains, charge, control, expiry, idempotency
from guard.gateway.ledger.accounts import accounts_of, organisation
from guard.gateway.ledger.estimates import subjects
from guard.gateway.ledger.state import OrganisationState
from guard.gateway.ledger.unit_of_work import UnitOfWork

SMALL_ROOM: Final = 100
"""Multiple of an unknown call's reservation: with less room, few such calls run at once."""


def gate(unit: UnitOfWork, command: GateCommand) -> Answer:
    """Record the piggybacked events, then decide one call."""
    request, call = command.request, command.call
    kept = idempotency.replay(unit, request)
    if kept is not None:
        return kept
    org = organisation(unit, request.organisation_id)
    outcome = None
    if command.events or command.rejected:
        outcome, _ = charge.record_events(unit, org, request, command.events, command.rejected)
    decided = _decide(unit, org, command)
    if isinstance(decided, Refusal):
        unit.add_refusal(request, call, decided)
        answer = render.refused(decided, outcome)
    else:
        decided.events = outcome
        answer = Answer(200, wire.encode(decided), kept=decided.decision == "allow")
    idempotency.keep(unit, request, answer)
    own = org.organisation_id
    if call.workflow_id is not None:
        unit.count_workflow(own, call.workflow_id, spent=0, calls=1, events=0)
    if call.run_id is not None:
        unit.count_run(own, call.run_id, call.workflow_id, spent=0)
    return answer


def _decide(
    unit: UnitOfWork, org: OrganisationState, command: GateCommand
) -> wire.GateReply | Refusal:
    call = command.call
    stopped = control.stopped(unit, org, call.workflow_id, call.run_id)
    if stopped is not None:
        return stopped
    if command.refusal is not None:
        return command.refusal
    chain_id, allowance = None, None
    if call.chain is not None:
        chain_id = call.chain.id
        allowance = chains.step(unit, org, call.chain)
    if command.approval is not None:
        waiting = approvals.required(unit, org, command, command.approval)
        if waiting is not None:
            return waiting
    decided = _reserve(unit, org, command, chain_id, allowance)
    if command.approval is not None and isinstance(decided, wire.GateReply):
        approvals.use(unit, org.organisation_id, command.request.key_id, call.call_id)
    return decided


def _reserve(
    unit: UnitOfWork,
    org: OrganisationState,
    command: GateCommand,
    chain_id: str | None,
    allowance: int | None,
) -> wire.GateReply | Refusal:
    call, key_id = command.call, command.request.key_id
    amount, basis = _amount(unit, org, command)
    model = None if call.model == wire.UNKNOWN_MODEL else call.model
    keys = (call.workflow_id, call.agent, chain_id, key_id, models.names(model))
    accounts = accounts_of(unit, org, keys)
    # A learned cost is only an estimate: it never causes a refusal while the budget has room.
    guess = basis in ("default", "learned")
    if basis == "default":
        amount = _few_at_once(accounts, amount, allowance)
    judgement = ledger.judge(accounts, amount, guess=guess, chain_over_permille=allowance)
    if judgement.refused_by is not None and expiry.expire_reservations(unit):
        judgement = ledger.judge(accounts, amount, guess=guess, chain_over_permille=allowance)
    if judgement.refused_by is not None:
        return _budget_refusal(call, judgement, amount)
    unit.change_balances([account.balance for account in accounts])
    ledger.reserve(accounts, judgement.amount, allowance)
    reservation = Reservation(
        reservation_id=unit.ids.unguessable(unit.now_ms),
        organisation_id=org.organisation_id,
        key_id=key_id,
        call_id=call.call_id,
        balance_ids=tuple([account.balance.balance_id for account in accounts]),
        amount=judgement.amount,
        held=judgement.amount,
        created_at_ms=unit.now_ms,
        expires_at_ms=unit.now_ms + org.settings.reservation_ttl_ms,
        basis=basis,
        workflow_id=call.workflow_id,
        run_id=call.run_id,
        chain_id=chain_id,
        agent=call.agent,
        model=model,
        function=f"{call.kind}:{call.function}",
    )
    unit.add_reservation(reservation)
    tightest = ledger.tightest(accounts)
    return wire.GateReply(
        decision="allow",
        call_id=call.call_id,
        reservation_id=reservation.reservation_id,
        reserved_nanousd=reservation.amount,
        expires_at_ms=reservation.expires_at_ms,
        budget=None if tightest is None else tightest.view(),
        warnings=judgement.warnings,
    )


def _budget_refusal(call: wire.GateRequest, judgement: ledger.Judgement, amount: int) -> Refusal:
    account = judgement.refused_by
    assert account is not None
    in_chain = judgement.refused_by_chain or account.rule.scope_kind == "chain"
    return Refusal(
        status=402,
        error_code="GD-CH001" if in_chain else "GD-B004",
        title="Chain ceiling reached" if in_chain else "Budget exhausted",
        reason=f"budget exhausted: {account.label()}",
        action="budget",
        workflow_id=call.workflow_id,
        tool_name=call.tool_name,
        budget=account.view(),
        details={"requested_nanousd": amount},
    )


def _few_at_once(accounts: list[ledger.Account], amount: int, allowance: int | None) -> int:
    """Return what to reserve for a call about which nothing is known.

    Where little room is left, a quarter of it. So few such calls run at once, and the cost of the
    first is known before the room is used up.
    """
    rooms = [account.room(allowance) for account in accounts if account.rule.mode == "hard"]
    room = min(rooms, default=None)
    if room is None or room >= SMALL_ROOM * amount:
        return amount
    return max(amount, -(-room // 4))


def _amount(
    unit: UnitOfWork, org: OrganisationState, command: GateCommand
) -> tuple[int, ledger.Basis]:
    if command.declared_nanousd is not None:
        return command.declared_nanousd, "worst_case" if command.worst_case else "declared"
    call = command.call
    for subject in subjects(f"{call.kind}:{call.function}", call.workflow_id, call.model):
        known = unit.estimate(org.organisation_id, subject)
        if known is not None:
            return known.amount(), "learned"
    return org.settings.default_hold_nanousd, "default"
