"""The gate: decide one call, and reserve what it may cost."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import ledger, models, render
from guard.gateway.domain.commands import CallRefusal, EncodedAnswer, GateCommand
from guard.gateway.domain.ledger import BudgetAccount, Reservation
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


class _Decision(Struct, frozen=True):
    """What one run of a command has found out, beside the command, which may run again.

    Attributes:
        recalls: rather than refuse, ask the holders of leases for what they do not use.
        lease: the caller's own lease of this lane, which has given back what is unused.
        chain_id: of the call's chain.
        allowance: how far an open chain may go over a limit, in thousandths.
        answered_by: the model that is expected to answer, if another than the one asked for.
        rates: prices of the model, with what is assumed of an answer without a limit.
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


class _Amount(Struct, frozen=True):
    """What to reserve, how that is known, and what it must not shrink below if it is a guess."""

    nanousd: int
    basis: ledger.Basis
    least: int = 1

    @property
    def is_guess(self) -> bool:
        """Whether it is an estimate only, which refuses nothing while a budget has room."""
        return self.basis in ("default", "learned")

    @property
    def needed(self) -> int:
        """What a budget must have left."""
        return self.least if self.is_guess else self.nanousd


def gate(unit: UnitOfWork, command: GateCommand) -> EncodedAnswer:
    """Record the piggybacked events, then decide one call."""
    request, call = command.request, command.call
    kept = idempotency.replay(unit, request)
    if kept is not None and kept.status != idempotency.UNDECIDED:
        return kept
    # A repeat of an undecided question, as after a lost connection: what the first has given back
    # is not given back again, and no holder is asked for a recall twice.
    is_first = kept is None and not command.is_again
    org = organisation(unit, request.organisation_id)
    outcome = None
    if command.events or command.rejected:  # before deciding: what they cost counts already
        outcome = charge.record_events(unit, org, request, command.events, command.rejected).outcome
    requests.release_guess(unit, command)
    lease = leases.take_back(unit, command, give_back=is_first)
    decided = _decide(unit, org, command, lease, recalls=command.recalls and is_first)
    if isinstance(decided, CallRefusal) and decided.recall:
        # Committed all the same: the events are charged, and the lease has given back.
        idempotency.keep_undecided(unit, request)
        return EncodedAnswer(idempotency.UNDECIDED, b"", recall=decided.recall)
    if isinstance(decided, CallRefusal):
        if not command.is_ahead:
            unit.add_refusal(request, call, decided)
        answer = render.refused(decided, outcome)
        idempotency.keep(unit, request, answer)
    else:
        decided.events = outcome
        lease_id = None if decided.lease is None else decided.lease.lease_id
        # A pending approval is not kept: the repeat has to see what a person has answered.
        is_kept = decided.decision == "allow"
        answer = EncodedAnswer(200, wire.encode(decided), kept=is_kept, lease_id=lease_id)
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
    unit: UnitOfWork,
    org: OrganisationState,
    command: GateCommand,
    lease: Reservation | None,
    *,
    recalls: bool,
) -> wire.GateReply | CallRefusal:
    """Decide a call: operators first, then policies, a person, and budgets at last."""
    call = command.call
    stopped = control.stopped(unit, org, call.workflow_id, call.run_id)
    if stopped is not None:
        return stopped
    if command.refusal is not None:
        return command.refusal
    answered_by = requests.answered_by(unit, command)
    if answered_by is not None and command.judges_model is not None:
        refused = command.judges_model(answered_by)
        if refused is not None:
            return refused
    chain_id = None if call.chain is None else call.chain.id
    allowance = _allowance(unit, org, command)
    if command.approval is not None:
        waiting = approvals.required(unit, org, command, command.approval)
        if waiting is not None:
            return waiting
    rates = command.rates
    if rates is not None:
        rates = requests.with_assumptions(unit, org, command, rates)
    # By position: passing so many names costs several times as much.
    decided = _reserve(
        _Decision(unit, org, command, recalls, lease, chain_id, allowance, answered_by, rates)
    )
    if command.approval is not None and isinstance(decided, wire.GateReply):
        approvals.use(unit, org.organisation_id, command.request.key_id, call.call_id)
    return decided


def _allowance(unit: UnitOfWork, org: OrganisationState, command: GateCommand) -> int | None:
    """Return what the call's chain allows beyond a limit, after the call's step in it."""
    chain = command.call.chain
    if chain is None:
        return None
    if not command.is_ahead:
        return chains.step(unit, org, chain)
    is_open = chains.open_chain(unit, org.organisation_id, chain.id) is not None
    return org.settings.chain_over_permille if is_open else None


def _reserve(decision: _Decision) -> wire.GateReply | CallRefusal:
    """Reserve what the call may cost on every budget over it, or on none."""
    command, call = decision.command, decision.command.call
    # 1. It has no bound, and the settings require one: refused.
    amount = _amount(decision)
    if isinstance(amount, CallRefusal):
        return amount
    accounts, model = _accounts(decision), _model(call)
    # 2. It names no model, and the one that such calls used last has nothing left: refused.
    if model is None and call.kind != "llm" and not call.gates_requests:
        refused = _last_models_budget(decision)
        if refused is not None:
            return refused
    amount = _within_room(decision, accounts, amount)
    judgement = _judge(decision, accounts, amount)
    # 3. It does not fit: refused, or decided once more after a recall.
    if judgement.refused_by is not None:
        return _over_budget(decision, accounts, judgement, amount)
    # 4. An LLM request fits with less than is assumed of it: that is worth a recall as well.
    if decision.recalls and call.kind == "llm" and judgement.amount < amount.nanousd:
        held = _holders(decision, accounts, amount.nanousd)
        if held:
            return CallRefusal(status=402, error_code="GD-B004", title="", reason="", recall=held)
    # 5. No call waits, and there is no lease that may be topped up: refused.
    lease = leases.current(decision.unit, decision.lease, accounts)
    if command.is_ahead and (lease is None or not command.grants_lease):
        return _not_topped_up()
    # 6. It fits: reserved.
    return _granted(decision, accounts, lease, judgement, amount.basis)


def _accounts(decision: _Decision) -> list[BudgetAccount]:
    """Return every balance over the call."""
    call = decision.command.call
    named = models.names(decision.answered_by, _model(call))
    keys = (call.workflow_id, call.agent, decision.chain_id, call.user,
            decision.command.request.key_id, named)  # fmt: skip
    return accounts_of(decision.unit, decision.org, keys)


def _model(call: wire.GateRequest) -> str | None:
    return None if call.model == wire.UNKNOWN_MODEL else call.model


def _judge(decision: _Decision, accounts: list[BudgetAccount], amount: _Amount) -> ledger.Judgement:
    """Judge the amount; what has expired, and no sweep has closed yet, must refuse nothing."""

    def judge() -> ledger.Judgement:
        return ledger.judge(
            accounts,
            amount.nanousd,
            guess=amount.is_guess,
            least=amount.least,
            chain_over_permille=decision.allowance,
        )

    judgement = judge()
    if judgement.refused_by is not None and expiry.expire_reservations(decision.unit):
        judgement = judge()
    return judgement


def _granted(
    decision: _Decision,
    accounts: list[BudgetAccount],
    lease: Reservation | None,
    judgement: ledger.Judgement,
    basis: ledger.Basis,
) -> wire.GateReply:
    """Reserve what was judged to fit, for the call alone or with a lease's share on top.

    Args:
        decision: the decision.
        accounts: every balance over the call.
        lease: the lease to top up; ``None``: a new one, if leases are granted.
        judgement: what fits.
        basis: how the amount is known.
    """
    unit, org, command = decision.unit, decision.org, decision.command
    call, allowance = command.call, decision.allowance
    granted = judgement.amount
    if command.grants_lease and call.lease is not None:
        granted = leases.size(accounts, granted, call.lease.demand_nanousd, lease, allowance)
    unit.change_balances([account.balance for account in accounts])
    ledger.reserve(accounts, granted, allowance)
    # By position, as above.
    reservation = Reservation(
        unit.ids.unguessable(unit.now_ms),
        org.organisation_id,
        command.request.key_id,
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
        decision.chain_id,
        call.agent,
        _model(call),
        function_of(call),
        call.user,
    )
    granted_lease = None
    if command.grants_lease:
        reservation = leases.grant(unit, org, reservation, accounts, lease, granted)
        granted_lease = wire.LeaseGrant(
            lease_id=reservation.reservation_id,
            granted_nanousd=granted,
            ttl_ms=org.settings.lease_ttl_ms,
            policy_version=command.policy_version,
            calls=command.lease_calls,
            rates=decision.rates,
            overspent_nanousd=reservation.overspent,
        )
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
        rates=decision.rates if call.kind == "llm" else None,
    )


# -- refusals ----------------------------------------------------------------------------------


def _not_topped_up() -> CallRefusal:
    reason = "there is no such lease to top up; a call has to ask"
    return CallRefusal(status=404, error_code="GD-N001", title="Not topped up", reason=reason)


def _over_budget(
    decision: _Decision,
    accounts: list[BudgetAccount],
    judgement: ledger.Judgement,
    amount: _Amount,
    hint: str = "",
) -> CallRefusal:
    call, account = decision.command.call, judgement.refused_by
    assert account is not None
    in_chain = judgement.refused_by_chain or account.rule.scope_kind == "chain"
    return CallRefusal(
        status=402,
        error_code="GD-CH001" if in_chain else "GD-B004",
        title="Chain ceiling reached" if in_chain else "Budget exhausted",
        reason=f"budget exhausted: {account.label()}{hint}",
        action="budget",
        workflow_id=call.workflow_id,
        tool_name=call.tool_name,
        budget=account.view(),
        details={"requested_nanousd": amount.nanousd},
        recall=_holders(decision, accounts, amount.needed) if decision.recalls else {},
    )


def _holders(
    decision: _Decision, accounts: list[BudgetAccount], needed: int
) -> dict[str, list[str]]:
    """Return the leases of others that hold money where less than ``needed`` is left."""
    return leases.holders(decision.unit, accounts, needed, decision.lease, decision.allowance)


def _last_models_budget(decision: _Decision) -> CallRefusal | None:
    """Refuse a call that names no model when nothing is left for the model such calls used last.

    The model is a guess, so nothing is reserved on its budgets, and room of any size is enough.
    """
    unit, org, call = decision.unit, decision.org, decision.command.call
    model = last_model(unit, org.organisation_id, f"{call.kind}:{call.function}", call.workflow_id)
    if model is None:
        return None
    keys = (*NO_SCOPES, models.names(model))
    accounts = [a for a in accounts_of(unit, org, keys) if a.rule.scope_kind == "model"]
    any_room = _Amount(1, "default")
    judgement = _judge(decision, accounts, any_room)
    if judgement.refused_by is None:
        return None
    hint = "; such calls have used this model last: name it if it is another now"
    return _over_budget(decision, accounts, judgement, any_room, hint)


# -- how much ----------------------------------------------------------------------------------


def _amount(decision: _Decision) -> _Amount | CallRefusal:
    """Return what to reserve, before anything is known of the room."""
    unit, org, command = decision.unit, decision.org, decision.command
    call = command.call
    if command.is_ahead:
        return _Amount(1, "declared")
    if call.kind == "llm" and decision.rates is not None:
        cost = requests.worst_case(unit, org, command, decision.rates)
        if isinstance(cost, CallRefusal):
            return cost
        return _Amount(cost.amount, "learned" if cost.is_assumed else "worst_case", cost.least)
    if command.declared_nanousd is not None:
        return _Amount(command.declared_nanousd, "worst_case" if command.worst_case else "declared")
    for subject in subjects(function_of(call), call.workflow_id, call.model):
        known = unit.estimate(org.organisation_id, subject)
        if known is not None:
            return _Amount(known.amount(), "learned")
    return _Amount(org.settings.default_hold_nanousd, "default")


def _within_room(decision: _Decision, accounts: list[BudgetAccount], amount: _Amount) -> _Amount:
    """Return what to reserve of a guess where little room is left."""
    call, allowance = decision.command.call, decision.allowance
    if amount.basis == "default":
        return _Amount(_few_at_once(accounts, amount.nanousd, allowance), "default")
    if amount.basis != "learned" or not call.streams:
        return amount
    share = _share_of_a_stream(accounts, amount.nanousd, amount.least, allowance)
    # A request that has not begun needs its share; one under way takes what there is.
    return _Amount(share, "learned", share if call.max_input_tokens else amount.least)


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
