"""The charge: record events once each, and commit what they cost."""

from __future__ import annotations

from typing import Final

import msgspec

from guard.core import wire
from guard.gateway.domain import ledger, models, render
from guard.gateway.domain.commands import (
    EncodedAnswer,
    IngestCommand,
    Ingested,
    PricedEvent,
    RequestOrigin,
)
from guard.gateway.domain.ledger import BudgetBalance, Reservation
from guard.gateway.ledger import (
    chains,
    control,
    doubt,
    expiry,
    idempotency,
    metered,
    repeats,
    requests,
)
from guard.gateway.ledger.accounts import accounts_of, organisation, tags_over
from guard.gateway.unit.doubts import EXPIRED
from guard.gateway.unit.state import IN_DOUBT, OrganisationState, ScopeKeys
from guard.gateway.unit.unit_of_work import UnitOfWork

_DECISIONS = {"killed": "kill", "paused": "pause", "active": "allow"}


def ingest(unit: UnitOfWork, command: IngestCommand) -> EncodedAnswer:
    """Record and charge a batch of events, or a part of one.

    The answer is stored with the charges of the last part. If it is lost, the batch that is sent
    again gets it from there. A batch that was interrupted between two parts is sent again as well;
    its recorded events are found by their ids, and charge nothing twice.
    """
    request = command.request
    kept = idempotency.replay(unit, request)
    if kept is not None:
        return kept
    org = organisation(unit, request.organisation_id)
    recorded = record_events(unit, org, request, command.events, command.rejected, command.before)
    if not command.is_last:
        return EncodedAnswer(idempotency.UNDECIDED, b"", ingested=recorded)
    outcome, over = recorded.outcome, recorded.over
    reply = wire.EventsReply(outcome.accepted, outcome.duplicates, outcome.rejected)
    if recorded.last is not None:
        _add_verdict(unit, org, request, recorded.last, reply)
    if over is None:
        answer = EncodedAnswer(202, wire.encode(reply))
    else:
        answer = EncodedAnswer(422, render.over_budget(reply, over, recorded.over_workflow))
    idempotency.keep(unit, request, answer)
    return answer


def _add_verdict(
    unit: UnitOfWork,
    org: OrganisationState,
    request: RequestOrigin,
    last: wire.Event,
    reply: wire.EventsReply,
) -> None:
    """Add the state of the last event's workflow to the reply, for the SDK to stop by."""
    keys = (
        last.workflow_id, last.agent, last.chain_id, last.user, request.key_id,
        tags_over(unit, org, last.tags, request.key_id, last.run_id), (),
    )  # fmt: skip
    account = ledger.tightest(accounts_of(unit, org, keys))
    reply.budget = None if account is None else account.view()
    state = org.directives.state_of(last.workflow_id, last.run_id, unit.now_ms)
    reply.decision = _DECISIONS[state.state]
    if reply.decision == "allow" and account is not None:
        rule = account.rule
        spent_up = rule.mode == "hard" and not rule.asks and account.unspent() < 1
        reply.decision = "exhausted" if spent_up else "allow"


def record_events(
    unit: UnitOfWork,
    org: OrganisationState,
    request: RequestOrigin,
    events: list[PricedEvent],
    rejected: list[wire.RejectedEvent],
    before: Ingested | None = None,
) -> Ingested:
    """Record and charge events; each is charged at most once, however often it is reported.

    Args:
        unit: the unit of work.
        org: of the caller.
        request: the caller.
        events: to record.
        rejected: what was rejected already.
        before: the results of earlier parts, to which these are added.
    """
    before = before or Ingested(wire.EventsOutcome())
    outcome = wire.EventsOutcome(
        before.outcome.accepted, before.outcome.duplicates, [*before.outcome.rejected, *rejected]
    )
    last, over, over_workflow = before.last, None, before.over_workflow
    asking = request
    for priced in events:
        last = event = priced.event
        request = asking
        # 0. Work that a vendor finishes later is its maker's, whoever reports what it used.
        if event.type == "later":
            unit.later.begun(org.organisation_id, request.key_id, event)
            outcome.accepted += 1
            continue
        if priced.response_id is not None and priced.request_id is None:
            request, priced = _of_maker(unit, request, priced)
            event = priced.event
        # 1. It cannot be recorded. It is rejected by itself: one event must not fail the batch.
        if priced.cost and _overflows(unit, org, priced.cost):
            detail = "the organisation's total would pass what can be counted"
            outcome.rejected.append(wire.RejectedEvent(event.event_id, "GD-E001", detail))
            continue
        if event.type == "chain" and chains.is_foreign(unit, request, str(event.data["id"])):
            rejected_as = wire.RejectedEvent(event.event_id, "GD-W004", chains.FOREIGN)
            outcome.rejected.append(rejected_as)
            continue
        # 2. Its reservation, if it names one of the caller's. An event without a valid reservation
        # is charged all the same: the money has been spent.
        reservation = None
        flags: list[str] = []
        if event.reservation_id is not None:
            # A run also reports the events that a run within it has left behind, whose key is
            # revoked by then.
            reservation = expiry.own_reservation(
                unit, request, event.reservation_id, also_below=True
            )
            if reservation is None:
                flags.append("unknown_reservation")
            else:
                event = _inherited(event, reservation)
                if event is not priced.event:
                    priced = msgspec.structs.replace(priced, event=event)
                    last = event if request is asking else last
                if reservation.state != "open":
                    flags.append("late")
        # 3. Its cost: less than its bound where the organisation charges doubtful requests by what
        # is usual.
        priced = requests.likely(unit, org, priced, reservation)
        flags = [priced.flags, *flags] if priced.flags else flags
        # 4. Recorded and charged, or known already. What is counted besides comes after this: a
        # duplicate must not count as a repeat.
        charged = _record(unit, org, request, priced, reservation, flags)
        if charged is None:
            outcome.duplicates += 1
            continue
        outcome.accepted += 1
        if priced.repeats:
            repeats.reported(unit, org, request, priced)
        if charged.over and charged.over_account is not None and request is asking:
            over, over_workflow = charged.over_account, event.workflow_id
    return Ingested(outcome, last, before.over if over is None else over.view(), over_workflow)


def _of_maker(
    unit: UnitOfWork, request: RequestOrigin, priced: PricedEvent
) -> tuple[RequestOrigin, PricedEvent]:
    """Return a report of work as its maker's, who has the same event id for it, if it has one."""
    own, provider = request.organisation_id, priced.provider or ""
    found = unit.later.maker(own, provider, str(priced.response_id), priced.event)
    if found is None:
        return request, priced
    key_id, event = found
    maker = RequestOrigin(organisation_id=own, key_id=key_id)
    return maker, msgspec.structs.replace(priced, event=event)


def charge_unreported(unit: UnitOfWork, reservation: Reservation, amount: int) -> int:
    """Charge what a holder that is gone had under way and has not reported; return the charge.

    Args:
        unit: the unit of work.
        reservation: the reservation that it was made under, which has just expired.
        amount: the most that it can have cost.
    """
    org = organisation(unit, reservation.organisation_id)
    request = RequestOrigin(organisation_id=reservation.organisation_id, key_id=reservation.key_id)
    data = wire.LlmData(
        model=reservation.model or wire.UNKNOWN_MODEL,
        provider=reservation.provider,
        cost_nanousd=amount,
        estimated=True,
        estimate="bound",
        source="auto",
    )
    # The id is made from the reservation's, so it is recorded at most once for a reservation.
    event = wire.Event(
        f"{EXPIRED}{reservation.reservation_id}",
        "llm",
        unit.now_ms,
        reservation_id=reservation.reservation_id,
    )
    priced = PricedEvent(
        _inherited(event, reservation),
        wire.encode(data),
        cost=amount,
        price_source="vendor",
        provider=reservation.provider,
        model=reservation.model,
        flags=f"estimated {IN_DOUBT}",
    )
    # Only for a single request: a lease's amount can be that of several, which nothing is known of.
    if reservation.is_request:
        priced = requests.likely(unit, org, priced, reservation)
    if _overflows(unit, org, priced.cost):
        return 0
    charged = _record(unit, org, request, priced, reservation, [priced.flags])
    return 0 if charged is None else priced.cost


def _overflows(unit: UnitOfWork, org: OrganisationState, cost: int) -> bool:
    """Return whether the organisation's total, and so any sum within it, would become too large.

    Sums are stored as 64-bit integers.
    """
    spent, _ = unit.used_before(org.organisation_id, "organisation", "", 0, None)
    return spent + cost > wire.NANOUSD_MAX


_INHERITED: Final = ("workflow_id", "run_id", "chain_id", "agent", "user", "call_id")


def _inherited(event: wire.Event, reservation: Reservation) -> wire.Event:
    """Return the event with the ids that it leaves out, taken from its call's reservation.

    A copy: if this unit fails, the command runs again, and the reservation may be gone by then.
    """
    missing = {
        name: known
        for name in _INHERITED
        if not getattr(event, name) and (known := getattr(reservation, name))
    }
    return msgspec.structs.replace(event, **missing) if missing else event


def _record(
    unit: UnitOfWork,
    org: OrganisationState,
    request: RequestOrigin,
    priced: PricedEvent,
    reservation: Reservation | None,
    flags: list[str],
) -> ledger.Charge | None:
    """Store one event and charge it; ``None`` for a duplicate."""
    # Everything that reads comes first. Opening a balance sums up earlier events, so that this one
    # must not be among them yet; it is charged below.
    event, cost, own = priced.event, priced.cost, org.organisation_id
    accounts: list[BudgetBalance] = []
    asked = None if reservation is None else reservation.model
    named = models.names(priced.model, asked)
    keys = (
        event.workflow_id, event.agent, event.chain_id, event.user, request.key_id,
        tags_over(unit, org, event.tags, request.key_id, event.run_id, reservation), named,
    )  # fmt: skip
    if cost:
        accounts = _charged_accounts(unit, org, keys, reservation)
    counted = metered.over_event(unit, org, keys) if event.type == "llm" else ()
    charged_at_ms = _charged_at(unit, reservation)
    balance_ids = [account.balance.balance_id for account in accounts]
    # Before anything is charged: the insertion finds out whether it is a duplicate, and that is the
    # whole protection against charging twice.
    if not unit.add_event(own, request.key_id, priced, charged_at_ms, flags, balance_ids):
        return None
    if event.workflow_id is not None:
        unit.see_workflow(own, event.workflow_id)
    if event.run_id is not None:
        unit.see_run(own, event.run_id, event.workflow_id, spent=cost)
    unit.count_usage(own, keys, charged_at_ms, priced)
    if reservation is not None:
        # Also for an event without cost: it prolongs or ends the reservation.
        unit.change_reservation(reservation)
        reservation.answered_by = priced.model or reservation.answered_by
        # Before its own cost is committed, so that no limit is passed in between.
        if reservation.state != "open" and reservation.under_way:
            is_all = reservation.is_request and event.type == "llm"
            if cost or is_all:
                doubt.reported(unit, reservation, cost, is_all=is_all)
    charged = ledger.Charge()
    if cost:
        charged = _commit_cost(unit, org, request, event, cost, accounts, reservation)
    if event.type == "llm":
        metered.charge(unit, org, keys, counted, priced, reservation, charged_at_ms)
    # After the charge, so that the event that ends a chain still has the chain's allowance.
    if event.type == "chain":
        data = event.data
        step = wire.Chain(id=str(data["id"]), op=data.get("op", "continue"))
        chains.step(unit, org, step, event.workflow_id)
    if reservation is not None:
        _settle(unit, org, priced, reservation)
    return charged


def _settle(
    unit: UnitOfWork, org: OrganisationState, priced: PricedEvent, reservation: Reservation
) -> None:
    """Close the reservation that an event ends: a call's by its final span, a request's by its own.

    A lease is ended by its holder or by time, never by an event.
    """
    if priced.event.type == "llm" and (reservation.is_lease or reservation.is_request):
        requests.learn(unit, org, priced, reservation)
    if reservation.is_lease:
        if priced.ends_holder:  # from its journal: what it had under way comes as events
            doubt.told(unit, reservation, 0)
        return
    # An event is a sign of life, so that a long call does not expire while it reports.
    if reservation.state == "open":
        life_ms = expiry.lasts_ms(org, renewed=reservation.renewed)
        reservation.expires_at_ms = unit.now_ms + life_ms
    if priced.final or (reservation.is_request and priced.event.type == "llm"):
        expiry.close(unit, reservation, "settled")


def _charged_at(unit: UnitOfWork, reservation: Reservation | None) -> int:
    """Return the time at which an event counts: its call's, so that both are in one period.

    A lease may be much older than its calls. Its events count at the present time, but never after
    the end of the period of its balances.
    """
    if reservation is None:
        return unit.now_ms
    if not reservation.is_lease:
        return reservation.created_at_ms
    ends = [unit.balance(balance_id).ends_ms for balance_id in reservation.balance_ids]
    return min([unit.now_ms, *(end - 1 for end in ends if end is not None)])


def _commit_cost(
    unit: UnitOfWork,
    org: OrganisationState,
    request: RequestOrigin,
    event: wire.Event,
    cost: int,
    accounts: list[BudgetBalance],
    reservation: Reservation | None,
) -> ledger.Charge:
    # The balances of the reservation and those of the event can differ: budgets may have been added
    # since, and the model that answered may be another than the one that was asked for. The hold
    # is taken off the former, the cost is added to the latter.
    held_on = [] if reservation is None else [unit.balance(i) for i in reservation.balance_ids]
    allowance = None
    if event.chain_id is not None and chains.open_chain(unit, request, event.chain_id):
        allowance = org.settings.chain_over_permille
    unit.change_balances([account.balance for account in accounts])
    unit.change_balances(held_on)
    charged = ledger.charge(
        accounts,
        cost,
        reservation,
        held_on,
        now_ms=unit.now_ms,
        strict=org.settings.strict,
        chain_over_permille=allowance,
    )
    control.announce_charge(unit, org, charged)
    return charged


def _charged_accounts(
    unit: UnitOfWork, org: OrganisationState, keys: ScopeKeys, reservation: Reservation | None
) -> list[BudgetBalance]:
    """Return the accounts of the event's scopes, in the periods of its reservation if any."""
    accounts = accounts_of(unit, org, keys)
    if reservation is None:
        return accounts
    # A call that began before midnight is charged to the day in which its amount was reserved: the
    # hold and the cost have to be on the same balance.
    own = {}
    for balance_id in reservation.balance_ids:
        balance = unit.balance(balance_id)
        own[balance.budget_id, balance.scope_id] = balance
    return [
        BudgetBalance(a.rule, own.get((a.balance.budget_id, a.balance.scope_id), a.balance))
        for a in accounts
    ]
