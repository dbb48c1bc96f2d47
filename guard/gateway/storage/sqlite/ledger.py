"""Ledger commands on the writer's working set: gate, ingest, release, sweep."""

from __future__ import annotations

import heapq
import json
from typing import Final

from guard.core import wire
from guard.gateway.domain import ledger, render
from guard.gateway.domain.commands import (
    Answer,
    GateCommand,
    IngestCommand,
    PricedEvent,
    Refusal,
    ReleaseCommand,
    Request,
)
from guard.gateway.domain.ledger import Account, Reservation
from guard.gateway.storage.sqlite import control as sqlite_control
from guard.gateway.storage.sqlite.books import Books, Chain, Dims, OrgState

SWEEP_MAX: Final = 2000

_EVENT_SQL: Final = (
    "INSERT OR IGNORE INTO events (organisation_id, event_id, type, at_ms, received_at_ms,"
    " charged_at_ms, key_id, workflow_id, run_id, chain_id, agent, call_id, reservation_id,"
    " provider, model, response_id, input_tokens, output_tokens, cost_nanousd, price_source,"
    " flags, balance_ids, data, trace_id, span_id, parent_span_id)"
    " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)


def gate(books: Books, command: GateCommand) -> Answer:
    """Ingest what travelled along, then decide one call."""
    request, call = command.request, command.call
    kept = books.replay(request)
    if kept is not None:
        return kept
    org = books.orgs[request.organisation_id]
    outcome = None
    if command.events or command.rejected:
        outcome, _ = _ingest(books, org, request, command.events, command.rejected)
    decided = _decide(books, org, command)
    if isinstance(decided, Refusal):
        books.figures.refuse(books.now, request, call, decided)
        answer = render.refused(decided, outcome)
    else:
        decided.events = outcome
        answer = Answer(200, wire.encode(decided), kept=decided.decision == "allow")
    books.keep(request, answer)
    books.seen(org, call.workflow_id, call.run_id, calls=1)
    return answer


def _decide(books: Books, org: OrgState, command: GateCommand) -> wire.GateReply | Refusal:
    call, request = command.call, command.request
    stopped = sqlite_control.stopped(books, org, call.workflow_id, call.run_id)
    if stopped is not None:
        return stopped
    if command.refusal is not None:
        return command.refusal
    chain_id, allowance = None, None
    if call.chain is not None:
        chain_id = call.chain.id
        allowance = _chain_step(books, org, call.chain)
    if command.approval is not None:
        waiting = sqlite_control.approval(books, org, command)
        if waiting is not None:
            return waiting
    amount, basis = _amount(books, org, command)
    model = None if call.model == wire.UNKNOWN_MODEL else call.model
    accounts = books.accounts(org, (call.workflow_id, call.agent, chain_id, request.key_id, model))
    judgement = ledger.judge(
        accounts, amount, guess=basis == "default", chain_over_permille=allowance
    )
    if judgement.refused_by is not None and _sweep_reservations(books):
        judgement = ledger.judge(
            accounts, amount, guess=basis == "default", chain_over_permille=allowance
        )
    if judgement.refused_by is not None:
        return _budget_refusal(call, judgement, amount)
    ledger.hold(accounts, judgement.amount, allowance)
    reservation = Reservation(
        reservation_id=books.ids.uuid7(books.now),
        organisation_id=org.organisation_id,
        key_id=request.key_id,
        call_id=call.call_id,
        balance_ids=tuple(account.balance.balance_id for account in accounts),
        amount=judgement.amount,
        held=judgement.amount,
        created_at_ms=books.now,
        expires_at_ms=books.now + org.settings.reservation_ttl_ms,
        basis=basis,
        workflow_id=call.workflow_id,
        run_id=call.run_id,
        chain_id=chain_id,
        agent=call.agent,
        model=model,
        function=f"{call.kind}:{call.function}",
    )
    books.open_reservation(reservation)
    books.touch_balances(account.balance for account in accounts)
    over = ledger.tightest(accounts)
    return wire.GateReply(
        decision="allow",
        call_id=call.call_id,
        reservation_id=reservation.reservation_id,
        reserved_nanousd=reservation.amount,
        expires_at_ms=reservation.expires_at_ms,
        budget=None if over is None else over.view(),
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


def _amount(books: Books, org: OrgState, command: GateCommand) -> tuple[int, ledger.Basis]:
    if command.declared_nanousd is not None:
        return command.declared_nanousd, "worst_case" if command.worst_case else "declared"
    call = command.call
    for subject in _subjects(f"{call.kind}:{call.function}", call.workflow_id, call.model):
        known = books.estimate(org.organisation_id, subject)
        if known is not None:
            return known.amount(), "learned"
    return org.settings.default_hold_nanousd, "default"


def _subjects(function: str, workflow_id: str | None, model: str | None) -> list[str]:
    known = model if model and model != wire.UNKNOWN_MODEL else ""
    subjects = [json.dumps([workflow_id or "", function, known])]
    if known:
        subjects.append(json.dumps(["", "", known]))
    return subjects


def _chain_step(books: Books, org: OrgState, chain: wire.Chain) -> int | None:
    """Apply a chain operation; return the chain's allowance while it is open."""
    now, ttl_ms = books.now, org.settings.chain_ttl_ms
    known = books.chain(org.organisation_id, chain.id)
    if chain.op == "end":
        if known is None:
            return None
        books.set_chain(org.organisation_id, chain.id, Chain(known.opened_at_ms, now, True))
    elif chain.op == "start" or known is not None or not _was_closed(books, org, chain.id):
        opened = now if known is None else known.opened_at_ms
        books.set_chain(org.organisation_id, chain.id, Chain(opened, now + ttl_ms, False))
    else:
        return None
    return org.settings.chain_over_permille


def _was_closed(books: Books, org: OrgState, chain_id: str) -> bool:
    return (org.organisation_id, chain_id) in books.chains


# -- events ------------------------------------------------------------------------------------


def ingest(books: Books, command: IngestCommand) -> Answer:
    """Record and charge a batch of events."""
    kept = books.replay(command.request)
    if kept is not None:
        return kept
    org = books.orgs[command.request.organisation_id]
    outcome, over = _ingest(books, org, command.request, command.events, command.rejected)
    last = command.events[-1].event if command.events else None
    reply = wire.EventsReply(outcome.accepted, outcome.duplicates, outcome.rejected)
    if last is not None:
        dims = (last.workflow_id, last.agent, last.chain_id, command.request.key_id, None)
        account = ledger.tightest(books.accounts(org, dims))
        reply.budget = None if account is None else account.view()
        standing = org.control.standing(last.workflow_id, last.run_id, books.now)
        reply.decision = {"killed": "kill", "paused": "pause", "active": "allow"}[standing.state]
        if reply.decision == "allow" and account is not None:
            spent_up = account.rule.mode == "hard" and account.room() < 1
            reply.decision = "exhausted" if spent_up else "allow"
    if over is None:
        answer = Answer(202, wire.encode(reply))
    else:
        answer = Answer(422, render.over_budget(reply, over[0].view(), over[1]))
    books.keep(command.request, answer)
    return answer


def _ingest(
    books: Books,
    org: OrgState,
    request: Request,
    events: list[PricedEvent],
    rejected: list[wire.RejectedEvent],
) -> tuple[wire.EventsOutcome, tuple[Account, str | None] | None]:
    outcome = wire.EventsOutcome(rejected=list(rejected))
    over: tuple[Account, str | None] | None = None
    for priced in events:
        event = priced.event
        reservation = None
        flags = [priced.flags] if priced.flags else []
        if event.reservation_id is not None:
            reservation = books.reservation(event.reservation_id)
            if reservation is None or reservation.organisation_id != org.organisation_id:
                reservation = None
                flags.append("unknown_reservation")
            else:
                _inherit(event, reservation)
                if reservation.state != "open":
                    flags.append("late")
        charged = _record(books, org, request, priced, reservation, flags)
        if charged is None:
            outcome.duplicates += 1
            continue
        outcome.accepted += 1
        if charged.over and charged.over_account is not None:
            over = (charged.over_account, event.workflow_id)
    return outcome, over


def _inherit(event: wire.Event, reservation: Reservation) -> None:
    """Fill in what the event leaves out from the call that it belongs to."""
    event.workflow_id = event.workflow_id or reservation.workflow_id
    event.run_id = event.run_id or reservation.run_id
    event.chain_id = event.chain_id or reservation.chain_id
    event.agent = event.agent or reservation.agent
    event.call_id = event.call_id or reservation.call_id


def _record(
    books: Books,
    org: OrgState,
    request: Request,
    priced: PricedEvent,
    reservation: Reservation | None,
    flags: list[str],
) -> ledger.Charge | None:
    """Store one event and charge it; ``None`` when it was here before."""
    event, cost, now = priced.event, priced.cost, books.now
    accounts: list[Account] = []
    if cost:
        dims = (event.workflow_id, event.agent, event.chain_id, request.key_id, priced.model)
        accounts = _charged_accounts(books, org, dims, reservation)
    charged_at = now if reservation is None else reservation.created_at_ms
    cursor = books.connection.execute(
        _EVENT_SQL,
        (org.organisation_id, event.event_id, event.type, event.at_ms, now, charged_at,
         request.key_id, event.workflow_id, event.run_id, event.chain_id, event.agent,
         event.call_id, event.reservation_id, priced.provider, priced.model, priced.response_id,
         priced.input_tokens, priced.output_tokens, cost, priced.price_source, " ".join(flags),
         json.dumps([a.balance.balance_id for a in accounts]) if accounts else "[]",
         priced.data_json.decode(), event.trace_id, event.span_id, event.parent_span_id),
    )  # fmt: skip
    if cursor.rowcount == 0:
        return None
    books.seen(org, event.workflow_id, event.run_id, spent=cost, events=1)
    books.figures.count(org.organisation_id, charged_at, priced)
    charged = ledger.Charge()
    if cost:
        held_on = [] if reservation is None else [books.balance(i) for i in reservation.balance_ids]
        allowance = None
        if event.chain_id is not None and books.chain(org.organisation_id, event.chain_id):
            allowance = org.settings.chain_over_permille
        charged = ledger.charge(
            accounts,
            cost,
            reservation,
            held_on,
            strict=org.settings.strict,
            chain_over_permille=allowance,
        )
        books.touch_balances(account.balance for account in accounts)
        books.touch_balances(held_on)
        sqlite_control.announce_charge(books, org, charged)
    if event.type == "chain":
        _chain_event(books, org, priced)
    if reservation is not None:
        if reservation.state == "open":
            reservation.expires_at_ms = now + org.settings.reservation_ttl_ms
        if priced.final:
            _close(books, reservation, "settled")
        books.touch_reservation(reservation)
    return charged


def _charged_accounts(
    books: Books, org: OrgState, dims: Dims, reservation: Reservation | None
) -> list[Account]:
    """Return the event's own scopes, in the epochs of its reservation where it has one."""
    accounts = books.accounts(org, dims)
    if reservation is None:
        return accounts
    own = {}
    for balance_id in reservation.balance_ids:
        balance = books.balance(balance_id)
        own[balance.budget_id, balance.scope_id] = balance
    return [
        Account(a.rule, own.get((a.balance.budget_id, a.balance.scope_id), a.balance))
        for a in accounts
    ]


def _chain_event(books: Books, org: OrgState, priced: PricedEvent) -> None:
    data = priced.event.data
    chain = wire.Chain(id=str(data["id"]), op=data.get("op", "continue"))
    _chain_step(books, org, chain)


# -- the end of a reservation ------------------------------------------------------------------


def _close(books: Books, reservation: Reservation, state: ledger.ReservationState) -> int:
    balances = [books.balance(balance_id) for balance_id in reservation.balance_ids]
    was_open = reservation.state == "open"
    left = ledger.give_back(reservation, balances, state)
    if was_open:
        books.touch_balances(balances)
        books.touch_reservation(reservation)
        if reservation.spent:
            for subject in _subjects(
                reservation.function, reservation.workflow_id, reservation.model
            ):
                books.learn(reservation.organisation_id, subject, reservation.spent)
    return left


def release(books: Books, command: ReleaseCommand) -> Answer:
    """Give back what a reservation still holds, or withdraw the question for an approval.

    Repeating it changes nothing.
    """
    request = command.request
    kept = books.replay(request)
    if kept is not None:
        return kept
    reservation = books.reservation(command.reservation_id)
    if reservation is not None and reservation.organisation_id == request.organisation_id:
        left = _close(books, reservation, "settled" if reservation.spent else "released")
        body = {
            "reservation_id": reservation.reservation_id,
            "state": reservation.state,
            "released_nanousd": left,
            "spent_nanousd": reservation.spent,
        }
    elif sqlite_control.withdraw_approval(
        books, request.organisation_id, request.key_id, command.reservation_id
    ):
        body = {
            "reservation_id": command.reservation_id,
            "state": "withdrawn",
            "released_nanousd": 0,
            "spent_nanousd": 0,
        }
    else:
        return render.not_found("no such reservation")
    answer = Answer(200, wire.encode(body))
    books.keep(request, answer)
    return answer


def _sweep_reservations(books: Books) -> int:
    """Close what has run out, by the store's clock; return how many."""
    closed = 0
    heap = books.expiries
    while heap and heap[0][0] <= books.now and closed < SWEEP_MAX:
        _, reservation_id = heapq.heappop(heap)
        reservation = books.reservations.get(reservation_id)
        if reservation is None or reservation.state != "open":
            continue
        if reservation.expires_at_ms > books.now:
            heapq.heappush(heap, (reservation.expires_at_ms, reservation_id))
            continue
        _close(books, reservation, "expired")
        closed += 1
    return closed


def sweep(books: Books) -> int:
    """Do what time asks for: expire holds and approvals, reset windows, drop old replays."""
    closed = _sweep_reservations(books)
    sqlite_control.expire_approvals(books)
    sqlite_control.reset_windows(books)
    sqlite_control.compact(books)
    books.figures.prune(books.now, list(books.orgs))
    execute = books.connection.execute
    execute("DELETE FROM nonces WHERE expires_at_ms < ?", (books.now,))
    # Ids of one millisecond have no order across processes, so only their time is kept.
    oldest = next(iter(books.reservations), None) or books.ids.uuid7(books.now)
    millisecond = oldest[: len("xxxxxxxx-xxxx")]
    execute("INSERT OR REPLACE INTO facts VALUES ('oldest_open', ?)", (millisecond,))
    execute("INSERT OR REPLACE INTO facts VALUES ('clock_ms', ?)", (str(books.now),))
    return closed
