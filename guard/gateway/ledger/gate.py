"""The gate: decide one call, and reserve what it may cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from guard.core import wire
from guard.gateway.domain import ledger, models, policy, render
from guard.gateway.domain.commands import CallRefusal, EncodedAnswer, GateCommand, Ingested
from guard.gateway.domain.ledger import BudgetBalance, Reservation
from guard.gateway.domain.waiting import Waiter
from guard.gateway.ledger import (
    amounts,
    approvals,
    asks,
    chains,
    charge,
    control,
    expiring,
    expiry,
    idempotency,
    lease_sizes,
    leases,
    line,
    metered,
    rate_caps,
    repeats,
    requests,
    wind_down,
)
from guard.gateway.ledger.accounts import accounts_of, organisation, tags_over
from guard.gateway.ledger.amounts import Amount, GateDecision
from guard.gateway.ledger.estimates import function_of, last_model
from guard.gateway.unit.state import NO_SCOPES, OrganisationState, ScopeKeys
from guard.gateway.unit.unit_of_work import UnitOfWork
from guard.gateway.unit.usage import doubt_of

RETURNS_MS: Final = 3000
"""How long a lease covers no new calls after a grant or a recall while other calls wait in line.

What it does not use goes back at once instead.
"""


def gate(unit: UnitOfWork, command: GateCommand) -> EncodedAnswer:
    """Record the piggybacked events, then decide one call."""
    # Everything below runs in one transaction, behind a savepoint: an exception undoes the events'
    # charges as well. The caller sees the answer only after the commit.
    request, call = command.request, command.call
    # 1. A repeat of a request that was answered, as after a lost answer: the same answer.
    kept = idempotency.replay(unit, request)
    if kept is not None and kept.status != idempotency.UNDECIDED:
        return kept
    # 2. A request that was taken in before and not decided: the second run of a recall, or a repeat
    # after the gateway died or the connection was lost in between. The first run's give-back was
    # committed, so it must not be applied twice, and the holders are not asked again. Its events
    # need no such care: each is recorded once, by its id.
    is_first = kept is None and not command.is_rerun
    org = organisation(unit, request.organisation_id)
    outcome = command.before
    if command.events or command.rejected:  # before deciding: what they cost counts already
        before = None if outcome is None else Ingested(outcome)
        outcome = charge.record_events(
            unit, org, request, command.events, command.rejected, before
        ).outcome
    # 3. It is faster than a rate cap: it asks again later, and gives nothing back until then.
    pacing = [use for use in command.caps if use.waits]
    if pacing and command.refusal is None:
        turn_in_ms = rate_caps.wait_ms(unit, org.organisation_id, pacing)
        if turn_in_ms is not None:
            leases.take_back(unit, command, give_back=False)
            return line.turn_answer(call.call_id, turn_in_ms, outcome)
    # 4. What the caller holds and does not need is given back first, so that the decision can use
    # it: a lease is decided as if it were new.
    requests.release_guess(unit, command)
    lease = leases.take_back(unit, command, give_back=is_first)
    answer = _answer(unit, org, command, lease, outcome, is_first=is_first)
    if lease is not None:
        answer = msgspec.structs.replace(answer, own_lease=lease.reservation_id)
    return answer


def _answer(
    unit: UnitOfWork,
    org: OrganisationState,
    command: GateCommand,
    lease: Reservation | None,
    outcome: wire.EventsOutcome | None,
    *,
    is_first: bool,
) -> EncodedAnswer:
    """Decide a call, count it, and keep the answer for repeats."""
    request, call = command.request, command.call
    decided = _decide(unit, org, command, lease, recalls=command.recalls and is_first)
    # 1. Holders of leases are asked first, outside of the transaction; then the command runs again.
    if isinstance(decided, CallRefusal) and decided.recall:
        # Committed all the same: the events are charged, and the lease has given back.
        idempotency.keep_undecided(unit, request)
        return EncodedAnswer(idempotency.UNDECIDED, b"", recall=decided.recall)
    # 2. It waits in line: counted once, before it is allowed.
    if isinstance(decided, Waiter):
        rate_caps.count(unit, org.organisation_id, command.caps)
        answer = line.place_answer(command, decided, unit.now_ms, outcome)
        # A waiting call asks every second, so a row is written only where a repeat would do harm.
        # 2.1. Its first run, or a repeat, is still to come: whoever is told to wait asks anew under
        # another key, so what they set aside would be nobody's.
        if not is_first:
            idempotency.keep(unit, request, msgspec.structs.replace(answer, kept=True))
        # 2.2. It has given something back.
        elif call.lease is not None and call.lease.lease_id and call.lease.unused_nanousd:
            idempotency.keep_undecided(unit, request)
        return answer
    # 3. It is refused. A refused top-up is not recorded as a refusal: no call was stopped by it.
    if isinstance(decided, CallRefusal):
        if not command.is_top_up:
            unit.add_refusal(request, call, decided)
        answer = render.refused(decided, outcome)
        idempotency.keep(unit, request, answer)
    # 4. It is allowed, or waits for a person.
    else:
        decided.events = outcome
        lease_id = None if decided.lease is None else decided.lease.lease_id
        # A pending approval is not kept: the repeat has to see what a person has answered.
        is_kept = decided.decision == "allow"
        answer = EncodedAnswer(200, wire.encode(decided), kept=is_kept, lease_id=lease_id)
        idempotency.keep(unit, request, answer, decided)
    if command.repeats and isinstance(decided, wire.GateReply) and decided.decision == "allow":
        repeats.allowed(unit, org, command)
        if call.named:  # it was counted in its workflow when it was allowed
            return answer
    # Refused calls count in their workflow, too. Not counted: a top-up, for which no call is made;
    # more money for a request that was counted when it began; and a call that names a workflow
    # other than its key's, which must not change that workflow's totals.
    if command.is_top_up or call.grows or command.is_foreign:
        return answer
    own = org.organisation_id
    if call.workflow_id is not None:
        # A call that waits for a person asks again and again, and counts when it is decided. Its
        # workflow is known from the first question on, so that it can be seen and killed.
        waits = isinstance(decided, wire.GateReply) and decided.decision == "pending"
        calls = 0 if waits else 1
        unit.see_workflow(own, call.workflow_id, calls)
    if call.run_id is not None:
        unit.see_run(own, call.run_id, call.workflow_id)
    return answer


def _decide(
    unit: UnitOfWork,
    org: OrganisationState,
    command: GateCommand,
    lease: Reservation | None,
    *,
    recalls: bool,
) -> wire.GateReply | CallRefusal | Waiter:
    """Decide a call: operators first, then policies, a person, and budgets last.

    The order is from what costs nothing to what takes money: a call that is refused by an earlier
    step has reserved nothing that would have to be undone.
    """
    call = command.call
    # 1. An operator, or a rule, has killed or paused its workflow or run.
    stopped = control.stopped(unit, org, call.workflow_id, call.run_id)
    if stopped is not None:
        return stopped
    # 2. Policies and prices refuse it. That was evaluated on the loop, with the rules that were in
    # force when the command was made.
    if command.refusal is not None:
        return command.refusal
    if command.caps:
        capping = (use for use in command.caps if not use.waits)
        wait_ms = rate_caps.wait_ms(unit, org.organisation_id, capping)
        if wait_ms is not None:
            return policy.rate_refusal(call, wait_ms)
    # 3. A policy refuses the model that is expected to answer. The store knows which that is, so
    # this could not be evaluated before.
    answered_by = requests.answered_by(unit, command)
    if answered_by is not None and command.judges_model is not None:
        refused = command.judges_model(answered_by)
        if refused is not None:
            return refused
    # 4. Its run has made the same call too often.
    if command.repeats:
        refused = repeats.judge(unit, org, command)
        if refused is not None:
            return refused
        # It was allowed where a model named its tool: only its repeats are judged here.
        if call.named:
            return wire.GateReply("allow", call.call_id)
    chain_id = None if call.chain is None else call.chain.id
    allowance = _allowance(unit, org, command)
    # 5. A person has to approve it. Before money is reserved, which would be held while it waits.
    if command.approval is not None:
        waiting = approvals.required(unit, org, command, command.approval)
        if waiting is not None:
            return waiting
    # 6. Budgets.
    prices = command.rates
    if prices is not None:
        if answered_by is not None:
            prices = requests.answered_rates(command, prices, answered_by)
        prices = requests.with_assumptions(unit, org, command, prices)
    # By position: passing so many names costs several times as much.
    decided = _reserve(
        GateDecision(unit, org, command, recalls, lease, chain_id, allowance, answered_by, prices)
    )
    if isinstance(decided, wire.GateReply):
        # Used up only here: an approved call that a budget refuses keeps its approval.
        if command.approval is not None:
            approvals.use(unit, org.organisation_id, command.request.key_id, call.call_id)
        if chain_id is not None and chains.is_foreign(unit, command.request, chain_id):
            decided.warnings.append(f"{chains.FOREIGN}: it counts as none")
    return decided


def _allowance(unit: UnitOfWork, org: OrganisationState, command: GateCommand) -> int | None:
    """Apply the call's step in its chain; return the share of a limit that the chain adds.

    In thousandths; ``None`` outside of an open chain.
    """
    chain, request = command.call.chain, command.request
    if chain is None or chains.is_foreign(unit, request, chain.id):
        return None
    # A top-up is no step: it must neither open a chain nor end one.
    if not command.is_top_up:
        return chains.step(unit, org, chain, command.call.workflow_id)
    is_open = chains.open_chain(unit, request, chain.id) is not None
    return org.settings.chain_over_permille if is_open else None


def _reserve(decision: GateDecision) -> wire.GateReply | CallRefusal | Waiter:
    """Reserve what the call may cost on every budget over it, or on none."""
    command, call = decision.command, decision.command.call
    # 1. It has no bound, and the settings require one: refused.
    amount = amounts.bound_of(decision)
    if isinstance(amount, CallRefusal):
        return amount
    keys, model = _keys(decision), _model(call)
    accounts = _accounts(decision, keys)
    if call.unnumbered:
        refused = requests.unnumbered(decision.org, command, accounts, decision.rates)
        if refused is not None:
            return refused
    # 2. It names no model, and the one that such calls used last has nothing left: refused.
    if model is None and call.kind != "llm" and not call.gates_requests:
        refused = _last_models_budget(decision)
        if refused is not None:
            return refused
    # 3. How much it takes, in this order: its output is limited to what all unspent money would
    # pay for; a guess shrinks where little room is left; tokens may limit the output further,
    # which lowers the money again.
    read = line.read_meanwhile(decision.unit, command)
    payable = amounts.payable(decision, accounts, amount, read)
    amount = amounts.within_room(decision, accounts, payable)
    amount, needs = _needs(decision, keys, amount)
    around = line.calls_around(decision.unit, command, accounts)
    promised_room = line.promised_room(decision, accounts, amount, around)
    judgement = _judge(decision, accounts, amount, promised_room, needs)
    # 4. It does not fit: it waits, or is refused, perhaps after a recall.
    if judgement.refused_by is not None:
        waiter = line.place_in_line(decision, accounts, amount, promised_room, read, needs)
        # A call that waits must hold nothing: two calls that each hold what the other one waits
        # for would wait until their time is over.
        for outer in () if waiter is None else around:
            expiry.give_back(decision.unit, outer, outer.held)
        refusal = _over_budget(decision, accounts, judgement, amount)
        # A recall comes before a place in line: it takes a fraction of a second.
        if waiter is not None and not refusal.recall:
            return waiter
        if not refusal.recall and not command.is_top_up:
            unit = judgement.refused_by.rule.unit
            short = wind_down.begins(decision, accounts, amount, needs) if unit != "calls" else []
            if wind_down.may_be_last(decision, short):
                return _last(decision, short)
            # Final: what the call has asked operators is dropped, and the refusal is remembered.
            wind_down.note(decision, short)
            answered = asks.decided(decision, _all(accounts, needs), refused=True)
            if answered:
                refusal = msgspec.structs.replace(refusal, reason=refusal.reason + answered)
            needed = amount.needed if unit == "usd" else judgement.amount
            _note_refused(decision.unit, judgement.refused_by, needed)
            refusal = _with_doubt(decision, refusal, judgement.refused_by, needed)
            if short:
                refusal.details["winding_down"] = True
        return refusal
    # 5. An LLM request fits with less than is assumed of it: that is worth a recall as well.
    if decision.recalls and call.kind == "llm" and judgement.amount < amount.nanousd:
        held = _holders(decision, accounts, amount.nanousd)
        if held:
            return CallRefusal(status=402, error_code="GD-B004", title="", reason="", recall=held)
    # 6. No call waits, and there is no lease that may be topped up: refused.
    lease = leases.current(decision.unit, decision.lease, accounts)
    may_lease = command.grants_lease and not needs and not decision.org.is_tagged
    if command.is_top_up and (lease is None or not may_lease):
        return _not_topped_up()
    # 7. It fits: reserved.
    asks.decided(decision, _all(accounts, needs), refused=False)
    line.give_back_drawn(decision.unit, around, judgement.amount)
    return _granted(decision, accounts, lease, judgement, amount, needs)


def _last(
    decision: GateDecision, short: list[BudgetBalance]
) -> wire.GateReply | CallRefusal | Waiter:
    """Decide a request as the last one of its run, which may use the share for winding down."""
    decided = _reserve(msgspec.structs.replace(decision, is_last=True))
    if isinstance(decided, wire.GateReply):
        wind_down.note(decision, short, is_last=True)
        decided.winding_down = True
    return decided


def _note_refused(unit: UnitOfWork, account: BudgetBalance, amount: int) -> None:
    """Remember the smallest amount that a budget has refused; readers show it as exhausted."""
    # Written only when it changes, so that a storm of refusals does not write the balance again
    # and again.
    if not account.has_refused_less(amount):
        unit.change_balances([account.balance])
        is_first = not account.balance.refused
        account.balance.refused = amount
        if is_first:
            control.tell_exhausted(unit, account)


def _keys(decision: GateDecision) -> ScopeKeys:
    """Return the ids that decide which budgets are over the call."""
    call = decision.command.call
    named = models.names(decision.answered_by, _model(call), *call.models)
    key_id = decision.command.request.key_id
    tags = tags_over(decision.unit, decision.org, call.tags, key_id, call.run_id)
    return call.workflow_id, call.agent, decision.chain_id, call.user, key_id, tags, named


def _accounts(decision: GateDecision, keys: ScopeKeys) -> list[BudgetBalance]:
    """Return every balance of money over the call, less any kept share that it may not use."""
    accounts = accounts_of(decision.unit, decision.org, keys)
    return accounts if decision.is_last else wind_down.without_kept(accounts, decision.command.call)


def _all(accounts: list[BudgetBalance], needs: Sequence[metered.Demand]) -> Iterable[BudgetBalance]:
    """Return the balances of every unit over a call."""
    return itertools.chain(accounts, *(need.accounts for need in needs)) if needs else accounts


def _needs(
    decision: GateDecision, keys: ScopeKeys, amount: Amount
) -> tuple[Amount, Sequence[metered.Demand]]:
    """Return the call's money, and what it takes of budgets of tokens and calls.

    The money is lower than before where a budget of tokens limits the output.
    """
    call = decision.command.call
    found = metered.over_call(decision.unit, decision.org, call, keys)
    if not found:
        return amount, metered.NO_DEMANDS
    needs = []
    for need in found:
        if need.meter.unit == "tokens":
            usable = need.accounts
            if not decision.is_last:
                usable = wind_down.without_kept(usable, call)
            amount, tokens = amounts.tokens_of(decision, usable, amount)
            need = msgspec.structs.replace(need, accounts=usable, amount=tokens)
        needs.append(need)
    return amount, needs


def _model(call: wire.GateRequest) -> str | None:
    return None if call.model == wire.UNKNOWN_MODEL else call.model


def _judge(
    decision: GateDecision,
    accounts: list[BudgetBalance],
    amount: Amount,
    promised: Mapping[int, int] = ledger.NOTHING_PROMISED,
    needs: Sequence[metered.Demand] = metered.NO_DEMANDS,
) -> ledger.Judgement:
    """Judge the amount, without refusing it for reservations that have expired already."""

    def judge() -> ledger.Judgement:
        found = ledger.judge(
            accounts,
            amount.nanousd,
            guess=amount.is_guess,
            least=amount.least,
            chain_over_permille=decision.allowance,
            promised=promised,
        )
        if needs and found.refused_by is None:
            return metered.judge(needs, found, decision.allowance, promised)
        return found

    # Sweeps are periodic. Expiring here only on a refusal keeps the usual decision cheap. The
    # accounts stay valid: expiry changes the same balance objects.
    judgement = judge()
    if judgement.refused_by is not None and expiring.expire_reservations(decision.unit):
        judgement = judge()
    return judgement


def _granted(
    decision: GateDecision,
    accounts: list[BudgetBalance],
    lease: Reservation | None,
    judgement: ledger.Judgement,
    amount: Amount,
    needs: Sequence[metered.Demand] = metered.NO_DEMANDS,
) -> wire.GateReply:
    """Reserve what was judged to fit, for the call alone or as a part of a lease.

    Args:
        decision: the decision.
        accounts: every balance over the call.
        lease: the lease to top up; ``None``: a new one, if leases are granted.
        judgement: what fits.
        amount: what was asked for.
        needs: what the call takes besides money; no lease holds that.
    """
    unit, org, command = decision.unit, decision.org, decision.command
    call = command.call
    granted = judgement.amount
    rate_caps.count(unit, org.organisation_id, command.caps)
    # No lease where the next call of the lane may be under other budgets (tags are not part of a
    # lane), or where this call may use money that the next one may not.
    is_alone = bool(needs) or decision.is_last or call.winding_down or org.is_tagged
    may_lease = command.grants_lease and not is_alone
    # While calls wait for this money, a lease gets only what its call needs: more would be spent
    # on later calls, ahead of those in line.
    is_awaited = line.is_awaited(command, accounts)
    if call.lease is not None and may_lease and not (is_awaited or command.small_lease):
        granted = lease_sizes.size(decision, accounts, granted, call.lease.demand_nanousd, lease)
    unit.change_balances([account.balance for account in accounts])
    ledger.reserve(accounts, granted, decision.allowance)
    # By position, as in ``_decide``.
    reservation = Reservation(
        unit.ids.unguessable(unit.now_ms),
        org.organisation_id,
        command.request.key_id,
        call.call_id,
        tuple([account.balance.balance_id for account in accounts]),
        judgement.amount,
        judgement.amount,
        unit.now_ms,
        unit.now_ms + expiry.lasts_ms(org, renewed=call.renewed),
        0,
        "open",
        amount.basis,
        call.workflow_id,
        call.run_id,
        decision.chain_id,
        call.agent,
        _model(call),
        function_of(call),
        call.user,
        call.renewed,
        judgement.amount if call.kind == "llm" and not (call.local and granted == 1) else 0,
    )
    granted_lease = None
    if needs:
        metered.reserve(unit, org, needs, reservation, decision.allowance)
    # With a lease, the reservation above is only a draft of its lane: it is added to the lease
    # that there is, or becomes the new one.
    if may_lease:
        reservation = leases.grant(unit, org, reservation, accounts, lease, granted)
        caps = command.lane_caps
        granted_lease = wire.LeaseGrant(
            lease_id=reservation.reservation_id,
            granted_nanousd=granted,
            ttl_ms=org.settings.lease_ttl_ms,
            policy_version=command.policy_version,
            calls=rate_caps.lend(unit, reservation, call, caps) if caps else None,
            rates=decision.rates,
            overspent_nanousd=reservation.overspent,
            returns_ms=RETURNS_MS if is_awaited else 0,
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
        max_output_tokens=amount.output_tokens,
        renew_ms=org.settings.lease_ttl_ms if call.renewed and granted_lease is None else 0,
    )


# -- refusals ----------------------------------------------------------------------------------


def _not_topped_up() -> CallRefusal:
    reason = "there is no such lease to top up; a call has to ask"
    return CallRefusal(status=404, error_code="GD-N001", title="Not topped up", reason=reason)


def _over_budget(
    decision: GateDecision,
    accounts: list[BudgetBalance],
    judgement: ledger.Judgement,
    amount: Amount,
    hint: str = "",
) -> CallRefusal:
    call, account = decision.command.call, judgement.refused_by
    assert account is not None
    whose = account.whose(decision.command.request.key_id, call.key_limit)
    if account.rule.unit != "usd":
        return _over_metered(decision, account, whose, judgement.amount)
    fits = _fitting(decision, accounts)
    in_chain = judgement.refused_by_chain or account.rule.scope_kind == "chain"
    return CallRefusal(
        status=402,
        error_code="GD-CH001" if in_chain else "GD-B004",
        title="Chain ceiling reached" if in_chain else "Budget exhausted",
        reason=f"budget exhausted: {whose}: {account.state()}; {fits}{account.ends()}{hint}",
        action="budget",
        workflow_id=call.workflow_id,
        tool_name=call.tool_name,
        budget=account.view(),
        details={"requested_nanousd": amount.nanousd},
        recall=_holders(decision, accounts, amount.needed) if decision.recalls else {},
    )


def _with_doubt(
    decision: GateDecision, refusal: CallRefusal, account: BudgetBalance, needed: int
) -> CallRefusal:
    """Say how much is in doubt, and what ends that, where the call would fit without it."""
    if account.room(decision.allowance) + account.balance.committed < needed:
        return refusal
    in_doubt = doubt_of(decision.unit, account)
    if not in_doubt or account.room(decision.allowance) + in_doubt < needed:
        return refusal
    return msgspec.structs.replace(
        refusal,
        reason=f"{refusal.reason}; {account.shown(in_doubt)} of it is charged in doubt, for what "
        "was under way when an answer or a process was lost: an operator sees it with guard "
        "gateway doubt list, and settles or frees it",
        details={**refusal.details, "in_doubt": in_doubt},
    )


def _over_metered(
    decision: GateDecision, account: BudgetBalance, whose: str, needed: int
) -> CallRefusal:
    """Return the refusal of a call by a budget of tokens or calls with too little left."""
    call, rule = decision.command.call, account.rule
    text = f"{whose}: {account.state()}"
    if rule.unit == "tokens":
        room = max(0, account.room(decision.allowance))
        text += f"; it could use {needed:,}, and {room:,} would fit"
    details = msgspec.to_builtins(account.counted())
    return CallRefusal(
        status=402,
        error_code="GD-CH001" if rule.scope_kind == "chain" else "GD-B004",
        title="Chain ceiling reached" if rule.scope_kind == "chain" else "Budget exhausted",
        reason=f"budget exhausted: {text}{account.ends()}",
        action="budget",
        workflow_id=call.workflow_id,
        tool_name=call.tool_name,
        details={"counted": details, f"requested_{rule.unit}": needed},
    )


def _fitting(decision: GateDecision, accounts: list[BudgetBalance]) -> str:
    """Return, for a refusal's text, how much of the call would fit at present."""
    unit, command, prices = decision.unit, decision.command, decision.rates
    call = command.call
    rooms = [each.room(decision.allowance) for each in accounts if each.rule.mode == "hard"]
    room = min(rooms, default=0)
    if room <= 0:
        return "nothing would fit"
    if call.kind == "llm" and prices is not None:
        least = call.answers + call.beside_output_tokens
        limited = requests.limited(unit, decision.org, command, prices, room, least)
        if limited is not None and limited[1] > 0:
            return f"with at most {limited[1]} output tokens it would fit"
    return f"at most {wire.dollars(room)} would fit"


def _holders(
    decision: GateDecision, accounts: list[BudgetBalance], needed: int
) -> dict[str, list[str]]:
    """Return the leases of others that hold money where less than ``needed`` is left."""
    return leases.holders(decision.unit, accounts, needed, decision.lease, decision.allowance)


def _last_models_budget(decision: GateDecision) -> CallRefusal | None:
    """Refuse a call without a model when the budgets of the model such calls used last are spent.

    The model is a guess, so nothing is reserved on its budgets, and any room at all is enough.
    """
    unit, org, call = decision.unit, decision.org, decision.command.call
    model = last_model(unit, org.organisation_id, f"{call.kind}:{call.function}", call.workflow_id)
    if model is None:
        return None
    keys = (*NO_SCOPES, models.names(model))
    accounts = [
        a for a in accounts_of(unit, org, keys) if a.rule.scope_kind == "model" and not a.rule.asks
    ]
    any_room = Amount(1, "default")
    judgement = _judge(decision, accounts, any_room)
    if judgement.refused_by is None:
        return None
    hint = "; such calls have used this model last: name it if it is another now"
    return _over_budget(decision, accounts, judgement, any_room, hint)
