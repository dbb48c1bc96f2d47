"""The line: which calls wait for money that is set aside, and what is kept for earlier ones.

The line itself is in memory, in :mod:`guard.gateway.services.waiting_line`. A command carries a
copy of it, so the rules here stay pure: a command that runs twice decides by the same line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from guard.core import wire
from guard.gateway.domain import ledger
from guard.gateway.domain.commands import EncodedAnswer, GateCommand
from guard.gateway.domain.ledger import BudgetBalance, Reservation
from guard.gateway.domain.waiting import RETRY_MS, Waiter, promised
from guard.gateway.ledger import asks, expiry, metered
from guard.gateway.ledger.amounts import Amount, GateDecision
from guard.gateway.unit.unit_of_work import UnitOfWork


def calls_around(
    unit: UnitOfWork, command: GateCommand, accounts: list[BudgetBalance]
) -> list[Reservation]:
    """Return the open reservations of the calls around this one that hold money it needs."""
    call = command.call
    names = call.around
    # Older SDKs send no ``around``; a request names the call around it in ``held``.
    if call.kind == "llm" and call.held is not None and call.held not in names:
        names = [call.held, *names]
    if not names:
        return []
    # Not drawn on: a request's own bound, and a lease, whose holder spends it without asking.
    over = {account.balance.balance_id for account in accounts}
    found = (expiry.own_reservation(unit, command.request, name) for name in names)
    return [
        each
        for each in found
        if each is not None
        and each.state == "open"
        and each.held
        and not (each.is_request or each.is_lease)
        and not over.isdisjoint(each.balance_ids)
    ]


def give_back_drawn(unit: UnitOfWork, around: Iterable[Reservation], amount: int) -> None:
    """Give back from the calls around this one what this one reserves itself."""
    for reservation, part in ledger.drawn_on(around, amount)[0]:
        expiry.give_back(unit, reservation, part)


def read_meanwhile(unit: UnitOfWork, command: GateCommand) -> Mapping[int, int]:
    """Return, by balance, what is held by the streams that the asking task itself reads.

    None of it comes back while that task waits, so waiting for it would be a deadlock.
    """
    if not command.call.reads:
        return ledger.NOTHING_PROMISED
    found: dict[int, int] = {}
    for name, amount in command.call.reads.items():
        stream = expiry.own_reservation(unit, command.request, name)
        if stream is not None and stream.state == "open":
            for each in stream.balance_ids:
                found[each] = found.get(each, 0) + min(amount, stream.held)
    return found


def promised_room(
    decision: GateDecision,
    accounts: list[BudgetBalance],
    amount: Amount,
    around: Sequence[Reservation],
) -> Mapping[int, int]:
    """Return, by balance, the room that is promised to earlier calls in line.

    It is negative where the calls around this one hold money that this one may draw on.
    """
    command = decision.command
    if not around and (not command.waiters or command.place is None):
        return ledger.NOTHING_PROMISED
    found: dict[int, int] = {}
    if command.place is not None:
        found = promised(
            command.waiters,
            command.call.call_id,
            command.place.since_ms,
            amount.needed,
            decision.unit.now_ms,
        )
    drawn = ledger.drawn_on(around, amount.nanousd)[1]
    for account in accounts if drawn else ():
        balance_id = account.balance.balance_id
        own = drawn.get(balance_id, 0)
        # What is drawn on is not room, so it was promised to no waiting call. A promise counts only
        # as far as there is room for it, or it would eat up what is drawn on.
        if own:
            room = max(0, account.room(decision.allowance))
            found[balance_id] = min(found.get(balance_id, 0), room) - own
    return found


def is_awaited(command: GateCommand, accounts: list[BudgetBalance]) -> bool:
    """Return whether other calls wait for money of these balances, here or at other replicas."""
    if not (command.waiters or command.awaited):
        return False
    ids = [account.balance.balance_id for account in accounts]
    return not command.awaited.isdisjoint(ids) or any(
        waiter.call_id != command.call.call_id and not waiter.balance_ids.isdisjoint(ids)
        for waiter in command.waiters
    )


def place_in_line(
    decision: GateDecision,
    accounts: list[BudgetBalance],
    amount: Amount,
    promised_to: Mapping[int, int],
    read: Mapping[int, int],
    needs: Sequence[metered.Demand] = metered.NO_DEMANDS,
) -> Waiter | None:
    """Return the place of a call that does not fit; ``None`` where waiting would be in vain.

    On each balance that is short, the call can wait for one of two things: for money to come back,
    where all unspent money would pay for it and something that may return some is under way; or,
    where the budget asks, for an operator to raise the limit. It gets a place only if one of them
    holds on every balance.

    Args:
        decision: the decision.
        accounts: every balance over the call.
        amount: what does not fit.
        promised_to: by balance, the room that is promised to earlier calls.
        read: by balance, what is held by streams that the caller itself reads.
        needs: what it takes besides money.
    """
    place, allowance = decision.command.place, decision.allowance
    if place is None:
        return None
    # Both limits run from the last time that money came back: a line that moves does not end.
    longest_ms = decision.org.settings.wait_for_room_max_ms
    is_over = decision.unit.now_ms >= min(place.until_ms, place.from_ms + longest_ms)
    short: list[int] = []
    asked: list[tuple[BudgetBalance, int]] = []
    is_spent = False
    besides: dict[int, int] = {}
    wanted = [(account, amount.needed) for account in accounts]
    for need in needs:
        wanted += [(account, need.amount) for account in need.accounts]
        besides.update((account.balance.balance_id, need.amount) for account in need.accounts)
    for account, needed in wanted:
        balance = account.balance
        others = promised_to.get(balance.balance_id, 0)
        if account.rule.mode != "hard" or account.room(allowance) - others >= needed:
            continue
        own = read.get(balance.balance_id, 0)
        pays = account.unspent(allowance) - own >= needed
        # Waiting for money is in vain: only a raise can help, if the budget asks for one.
        if is_over or not pays or balance.reserved - own + others <= 0:
            if not asks.may_wait(decision, account):
                return None
            asked.append((account, needed))
            is_spent |= not pays
        short.append(balance.balance_id)
    # Only after every balance has been looked at: a call that is refused asks for no raise.
    asks.note(decision, asked)
    return place.waiter(
        decision.command.call.call_id,
        amount.needed,
        short,
        besides,
        asks=bool(asked),
        blocks=not is_spent,
    )


def place_answer(
    command: GateCommand, waiter: Waiter, now_ms: int, events: wire.EventsOutcome | None
) -> EncodedAnswer:
    """Return the answer to a call that has a place in line; it is not stored by itself."""
    assert command.place is not None
    reply = wire.GateReply(
        decision="waiting",
        call_id=waiter.call_id,
        events=events,
        place=1 + sum(1 for other in command.waiters if other.turn < waiter.turn),
        retry_after_ms=RETRY_MS,
        idle_ms=max(0, now_ms - command.place.from_ms),
        asks=waiter.asks,
    )
    return EncodedAnswer(200, wire.encode(reply), kept=False, waits=waiter)


def turn_answer(call_id: str, turn_in_ms: int, events: wire.EventsOutcome | None) -> EncodedAnswer:
    """Return the answer to a call that is faster than a rate cap allows."""
    reply = wire.GateReply(
        decision="waiting", call_id=call_id, events=events, retry_after_ms=turn_in_ms
    )
    return EncodedAnswer(200, wire.encode(reply), kept=False)
