"""The end of a reservation, settled or released, and what it gives back before its end."""

from __future__ import annotations

from guard.core import wire
from guard.gateway.domain import ledger, render
from guard.gateway.domain.commands import (
    EncodedAnswer,
    PostCommitEvent,
    ReleaseCommand,
    RequestOrigin,
)
from guard.gateway.domain.key_hierarchy import lineage
from guard.gateway.domain.ledger import Reservation
from guard.gateway.ledger import approvals, doubt, estimates, idempotency, metered, rate_caps
from guard.gateway.ledger.accounts import organisation
from guard.gateway.unit.state import OrganisationState
from guard.gateway.unit.unit_of_work import UnitOfWork


def lasts_ms(org: OrganisationState, *, renewed: bool) -> int:
    """Return how long a reservation lasts after its holder's latest sign of life.

    What a holder renews ends for the holder at ``lease_ttl_ms``, and here a little later: its last
    bytes may have left just before its end.
    """
    settings = org.settings
    if not renewed:
        return settings.reservation_ttl_ms
    return settings.lease_ttl_ms + settings.lease_grace_ms


def close(unit: UnitOfWork, reservation: Reservation, state: ledger.ReservationState) -> int:
    """Close an open reservation, learn its cost, and return what was still reserved.

    A closed reservation is left alone, so a release, a final event and a sweep can come in any
    order, and more than once.
    """
    if reservation.state != "open":
        return 0
    balances = [unit.balance(balance_id) for balance_id in reservation.balance_ids]
    unit.change_balances(balances)
    unit.change_reservation(reservation)
    left = ledger.release(reservation, balances, state)
    rate_caps.take_back(unit, reservation, 0)
    if reservation.metered:
        metered.close(unit, organisation(unit, reservation.organisation_id), reservation, state)
    # On a closed reservation ``under_way`` means what was charged in doubt. Nothing was, so far:
    # ``expiring.expire`` sets it when it charges.
    reservation.under_way = 0
    if left:
        _announce_room(unit, reservation)
    if reservation.is_lease or reservation.is_request:
        return left  # not one call, or with a bound of its own
    # A released or expired call without cost was perhaps never made: it teaches nothing.
    if reservation.spent or state == "settled":  # a call without cost counts too
        own, spent, asked = reservation.organisation_id, reservation.spent, reservation.model
        answered_by = reservation.answered_by if asked is None else None
        for subject in estimates.subjects(reservation.function, reservation.workflow_id, asked):
            estimates.learn(unit, own, subject, spent, answered_by)
    return left


def give_back(unit: UnitOfWork, reservation: Reservation, amount: int) -> None:
    """Give back a part of what an open reservation holds, at most all of it; it stays open."""
    amount = min(amount, reservation.held)
    if not amount:
        return
    balances = [unit.balance(balance_id) for balance_id in reservation.balance_ids]
    unit.change_balances(balances)
    unit.change_reservation(reservation)
    ledger.give_back(reservation, balances, amount)
    _announce_room(unit, reservation)


def _announce_room(unit: UnitOfWork, reservation: Reservation) -> None:
    """Wake calls that wait in line for these balances, once this unit has committed."""
    own, balance_ids = reservation.organisation_id, reservation.balance_ids
    unit.announce(PostCommitEvent("room", own, balance_ids=balance_ids))


def own_reservation(
    unit: UnitOfWork, request: RequestOrigin, reservation_id: str, *, also_below: bool = False
) -> Reservation | None:
    """Return a reservation if it was made with the key, and for the workflow, of a request.

    Args:
        unit: the unit of work.
        request: the request.
        reservation_id: of the reservation.
        also_below: whether it may have been made with a key that belongs to the request's key.
    """
    # A caller may name any id, so this is the check that keeps keys out of one another's money.
    # Another key's reservation looks the same as none.
    found = unit.reservation(reservation_id)
    if (
        found is None
        or found.organisation_id != request.organisation_id
        or request.key_id not in (lineage(found.key_id) if also_below else (found.key_id,))
        or request.key_workflow_id not in (None, found.workflow_id)
    ):
        return None
    return found


def release(unit: UnitOfWork, command: ReleaseCommand) -> EncodedAnswer:
    """Release a reservation, or withdraw a request for approval.

    Repeating it changes nothing.
    """
    request = command.request
    kept = idempotency.replay(unit, request)
    if kept is not None:
        return kept
    reservation = own_reservation(unit, request, command.reservation_id)
    if reservation is not None:
        # Before it is closed: a recall that waits for this lease gets its answer by this.
        own_lease = None
        if reservation.is_lease and reservation.state == "open":
            own_lease = reservation.reservation_id
        left = close(unit, reservation, "settled" if reservation.spent else "released")
        doubt.told(unit, reservation, 0)  # if it had expired: its holder has not used it
        body = {
            "reservation_id": reservation.reservation_id,
            "state": reservation.state,
            "released_nanousd": left,
            "spent_nanousd": reservation.spent,
        }
        answer = EncodedAnswer(200, wire.encode(body), own_lease=own_lease)
    elif approvals.leave(unit, request, command.reservation_id, stays=command.stays):
        answer = render.withdrawn(command.reservation_id)
    else:  # not stored for repeats: nothing has changed
        return render.not_found("no such reservation")
    idempotency.keep(unit, request, answer)
    return answer
