"""The gate: decide one call, and reserve what it may cost."""

from __future__ import annotations

from typing import Final

from guard.core import wire
from guard.gateway.domain import ledger, models, render
from guard.gateway.domain.commands import Answer, GateCommand, Refusal
from guard.gateway.domain.ledger import Reservation
from guard.gateway.ledger import (
    approvals,
    chains,
    charge,
    control,
    expiry,
    idempotency,
    leases,
    requests,
)
from guard.gateway.ledger.accounts import accounts_of, organisation
from guard.gateway.ledger.estimates import function_of, last_model, subjects
from guard.gateway.ledger.state import NO_SCOPES, OrganisationState
from guard.gateway.ledger.unit_of_work import UnitOfWork

STREAMS: Final = 8
"""How many streams without a limit can share what is unspent of a budget."""

SMALL_ROOM: Final = 100
"""Multiple of an unknown call's reservation: with less room, few such calls run at once."""


def gate(unit: UnitOfWork, command: GateCommand) -> Answer:
    """Record the piggybacked events, then decide one call."""
    request, call = command.request, command.call
    kept = idempotency.replay(unit, request)
    if kept is not None and kept.status != idempotency.UNDECIDED:
        return kept
    is_first = kept is None and not command.is_again
    command.recalls = command.recalls and is_first
    org = organisation(unit, request.organisation_id)
    outcome = None
    if command.events or command.rejected:
        outcome, _ = charge.record_events(unit, org, request, command.events, command.rejected)
    requests.release_guess(unit, command)
    lease = leases.take_back(unit, command, give_back=is_first)
    decided = _decide(unit, org, command, lease)
    if isinstance(decided, Refusal) and decided.recall:
        idempotency.keep_undecided(unit, request)
        return Answer(idempotency.UNDECIDED, b"", recall=decided.recall)
    if isinstance(decided, Refusal):
        if not command.is_ahead:
            unit.add_refusal(request, call, decided)
        answer = render.refused(decided, outcome)
        idempotency.keep(unit, request, answer)
    else:
        decided.events = outcome
        answer = Answer(200, wire.encode(decided), kept=decided.decision == "allow")
        answer.lease_id = None if decided.lease is None else decided.lease.lease_id
        idempotency.keep(unit, request, answer, decided)
    if command.is_ahead:  # no call is made
        return answer
    own = org.organisation_id
    if call.workflow_id is not None:
        unit.count_workflow(own, call.workflow_id, spent=0, calls=1, events=0)
    if call.run_id is not None:
        unit.count_run(own, call.run_id, call.workflow_id, spent=0)
    return answer


def _decide(
    unit: UnitOfWork, org: OrganisationState, command: GateCommand, lease: Reservation | None
) -> wire.GateReply | Refusal:
    call = command.call
    stopped = control.stopped(unit, org, call.workflow_id, call.run_id)
    if stopped is not None:
        return stopped
    if command.refusal is not None:
        return command.refusal
    command.answered_by = requests.answered_by(unit, command)
    if command.answered_by is not None and command.judges_model is not None:
        refused = command.judges_model(command.answered_by)
        if refused is not None:
            return refused
    chain_id, allowance = None, None
    if call.chain is not None:
        chain_id = call.chain.id
        if command.is_ahead:
            is_open = chains.open_chain(unit, org.organisation_id, chain_id) is not None
            allowance = org.settings.chain_over_permille if is_open else None
        else:
            allowance = chains.step(unit, org, call.chain)
    if command.approval is not None:
        waiting = approvals.required(unit, org, command, command.approval)
        if waiting is not None:
            return waiting
    decided = _reserve(unit, org, command, lease, chain_id, allowance)
    if command.approval is not None and isinstance(decided, wire.GateReply):
        approvals.use(unit, org.organisation_id, command.request.key_id, call.call_id)
    return decided


def _reserve(
    unit: UnitOfWork,
    org: OrganisationState,
    command: GateCommand,
    lease: Reservation | None,
    chain_id: str | None,
    allowance: int | None,
) -> wire.GateReply | Refusal:
    call, key_id = command.call, command.request.key_id
    if command.rates is not None:
        command.rates = requests.with_assumptions(unit, org, command, command.rates)
    needed = _amount(unit, org, command) if not command.is_ahead else (1, "declared", 1)
    if isinstance(needed, Refusal):
        return needed
    amount, basis, least = needed
    model = None if call.model == wire.UNKNOWN_MODEL else call.model
    named = models.names(command.answered_by, model)
    keys = (call.workflow_id, call.agent, chain_id, call.user, key_id, named)
    accounts = accounts_of(unit, org, keys)
    if model is None and call.kind != "llm" and not call.gates_requests:
        spent_up = _last_models_budget(unit, org, command, lease, allowance)
        if spent_up is not None:
            return spent_up
    # A learned cost is only an estimate: it never causes a refusal while the budget has room.
    guess = basis in ("default", "learned")
    if basis == "default":
        amount = _few_at_once(accounts, amount, allowance)
    elif basis == "learned" and call.streams:
        amount = _share_of_a_stream(accounts, amount, least, allowance)
        if call.max_input_tokens:  # it has not begun; one under way takes what there is
            least = amount

    def judge() -> ledger.Judgement:
        return ledger.judge(
            accounts, amount, guess=guess, least=least, chain_over_permille=allowance
        )

    judgement = judge()
    if judgement.refused_by is not None and expiry.expire_reservations(unit):
        judgement = judge()
    if judgement.refused_by is not None:
        refused = _budget_refusal(call, judgement, amount)
        if command.recalls:
            refused.recall = leases.holders(
                unit, accounts, least if guess else amount, lease, allowance
            )
        return refused
    if command.recalls and call.kind == "llm" and judgement.amount < amount:
        # Worth a recall as well: it would go out with less than is assumed of it.
        held = leases.holders(unit, accounts, amount, lease, allowance)
        if held:
            return Refusal(status=402, error_code="GD-B004", title="", reason="", recall=held)
    granted = judgement.amount
    lease = leases.current(unit, lease, accounts)
    if command.is_ahead and (lease is None or not command.grants_lease):
        return not_topped_up()
    if command.grants_lease and call.lease is not None:
        granted = leases.size(accounts, granted, call.lease.demand_nanousd, lease, allowance)
    unit.change_balances([account.balance for account in accounts])
    ledger.reserve(accounts, granted, allowance)
    # By position: with this many names, passing them costs four times as much.
    reservation = Reservation(
        unit.ids.unguessable(unit.now_ms),
        org.organisation_id,
        key_id,
        call.call_id,
        tuple([account.balance.balance_id for account in accounts]),
        judgement.amount,
        judgement.amount,
        unit.now_ms,
        unit.now_ms + org.settings.reservation_ttl_ms,
        0,
        "open",
        basis,
        call.workflow_id,
        call.run_id,
        chain_id,
        call.agent,
        model,
        function_of(call),
        call.user,
    )
    granted_lease = None
    if command.grants_lease:
        reservation = leases.grant(unit, org, reservation, accounts, lease, granted)
        granted_lease = _lease_of(command, reservation, granted, org)
    else:
        unit.add_reservation(reservation)
    tightest = ledger.tightest(accounts)
    return wire.GateReply(
        decision="allow",
        call_id=call.call_id,
        reservation_id=reservation.reservation_id,
        reserved_nanousd=judgement.amount,
        expires_at_ms=reservation.expires_at_ms,
        budget=None if tightest is None else tightest.view(),
        warnings=judgement.warnings,
        lease=granted_lease,
        rates=command.rates if call.kind == "llm" else None,
    )


def not_topped_up() -> Refusal:
    """Return the answer to who asks ahead where a call has to ask itself."""
    reason = "there is no such lease to top up; a call has to ask"
    return Refusal(status=404, error_code="GD-N001", title="Not topped up", reason=reason)


def _lease_of(
    command: GateCommand, lease: Reservation, granted: int, org: OrganisationState
) -> wire.Lease:
    return wire.Lease(
        lease_id=lease.reservation_id,
        granted_nanousd=granted,
        ttl_ms=org.settings.lease_ttl_ms,
        policy_version=command.policy_version,
        calls=command.lease_calls,
        rates=command.rates,
        overspent_nanousd=lease.overspent,
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


def _last_models_budget(
    unit: UnitOfWork,
    org: OrganisationState,
    command: GateCommand,
    lease: Reservation | None,
    allowance: int | None,
) -> Refusal | None:
    """Refuse a call that names no model when nothing is left for the model such calls used last.

    The model is a guess, so nothing is reserved on its budgets, and room of any size is enough.
    """
    call = command.call
    function = f"{call.kind}:{call.function}"
    model = last_model(unit, org.organisation_id, function, call.workflow_id)
    if model is None:
        return None
    keys = (*NO_SCOPES, models.names(model))
    accounts = [a for a in accounts_of(unit, org, keys) if a.rule.scope_kind == "model"]
    judgement = ledger.judge(accounts, 1, guess=True, chain_over_permille=allowance)
    if judgement.refused_by is not None and expiry.expire_reservations(unit):
        judgement = ledger.judge(accounts, 1, guess=True, chain_over_permille=allowance)
    if judgement.refused_by is None:
        return None
    refused = _budget_refusal(call, judgement, 1)
    if command.recalls:
        refused.recall = leases.holders(unit, accounts, 1, lease, allowance)
    refused.reason += "; such calls have used this model last: name it if it is another now"
    return refused


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


def _share_of_a_stream(
    accounts: list[ledger.Account], amount: int, least: int, allowance: int | None
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


def _amount(
    unit: UnitOfWork, org: OrganisationState, command: GateCommand
) -> tuple[int, ledger.Basis, int] | Refusal:
    """Return what to reserve, how it is known, and what a guess must not shrink below."""
    call = command.call
    if call.kind == "llm" and command.rates is not None:
        cost = requests.worst_case(unit, org, command, command.rates)
        if isinstance(cost, Refusal):
            return cost
        return cost.amount, "learned" if cost.is_assumed else "worst_case", cost.least
    if command.declared_nanousd is not None:
        return command.declared_nanousd, "worst_case" if command.worst_case else "declared", 1
    for subject in subjects(function_of(call), call.workflow_id, call.model):
        known = unit.estimate(org.organisation_id, subject)
        if known is not None:
            return known.amount(), "learned", 1
    return org.settings.default_hold_nanousd, "default", 1
