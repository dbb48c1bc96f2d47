"""The line: which call waits for money that is only set aside, and for whom some is kept."""

from __future__ import annotations

from collections.abc import Mapping

from guard.core import wire
from guard.gateway.domain import ledger
from guard.gateway.domain.commands import EncodedAnswer, GateCommand
from guard.gateway.domain.ledger import BudgetAccount, Reservation
from guard.gateway.domain.waiting import RETRY_MS, Waiter, promised
from guard.gateway.ledger.amounts import Amount, GateDecision


def promised_room(
    decision: GateDecision, amount: Amount, around: Reservation | None
) -> Mapping[int, int]:
    """Return the room that goes to others first; less than zero where the call around has some."""
    command = decision.command
    if around is None and (not command.waiters or command.place is None):
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
    if around is not None:
        own = min(around.held, amount.nanousd)
        for balance_id in around.balance_ids:
            found[balance_id] = found.get(balance_id, 0) - own
    return found


def is_awaited(command: GateCommand, accounts: list[BudgetAccount]) -> bool:
    """Tell whether others wait for money of these balances."""
    if not command.waiters:
        return False
    ids = [account.balance.balance_id for account in accounts]
    return any(
        waiter.call_id != command.call.call_id and not waiter.balance_ids.isdisjoint(ids)
        for waiter in command.waiters
    )


def place_in_line(
    decision: GateDecision,
    accounts: list[BudgetAccount],
    amount: Amount,
    promised_to: Mapping[int, int],
) -> Waiter | None:
    """Return the place of a call that does not fit; ``None`` where waiting would be in vain.

    It waits where the unspent money would pay for it on each balance, and something is under way
    that may return some.
    """
    place, allowance = decision.command.place, decision.allowance
    if place is None or decision.unit.now_ms >= place.until_ms:
        return None
    short: list[int] = []
    for account in accounts:
        balance = account.balance
        others = promised_to.get(balance.balance_id, 0)
        if account.rule.mode != "hard" or account.room(allowance) - others >= amount.needed:
            continue
        if account.unspent(allowance) < amount.needed or balance.reserved + others <= 0:
            return None
        short.append(balance.balance_id)
    return place.waiter(decision.command.call.call_id, amount.needed, short)


def told_its_place(
    command: GateCommand, waiter: Waiter, now_ms: int, events: wire.EventsOutcome | None
) -> EncodedAnswer:
    """Return the answer to a call that has a place in line."""
    assert command.place is not None
    reply = wire.GateReply(
        decision="waiting",
        call_id=waiter.call_id,
        events=events,
        place=1 + sum(1 for other in command.waiters if other.turn < waiter.turn),
        retry_after_ms=RETRY_MS,
        idle_ms=max(0, now_ms - command.place.from_ms),
    )
    return EncodedAnswer(200, wire.encode(reply), kept=False, waits=waiter)


def told_its_turn(
    call_id: str, turn_in_ms: int, events: wire.EventsOutcome | None
) -> EncodedAnswer:
    """Return the answer to a call that is faster than a rate cap allows."""
    reply = wire.GateReply(
        decision="waiting", call_id=call_id, events=events, retry_after_ms=turn_in_ms
    )
    return EncodedAnswer(200, wire.encode(reply), kept=False)
