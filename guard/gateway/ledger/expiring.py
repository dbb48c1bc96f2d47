"""Expiry: closes the reservations of holders that are gone, and charges what they had under way.

Room comes back by the clock, money under way does not: what LLM requests may have cost is charged
in doubt, until an event, the holder or an operator says what they did cost (``doubt``).
"""

from __future__ import annotations

from typing import Final

from guard.gateway.domain.ledger import Reservation
from guard.gateway.ledger import (
    alerting,
    approvals,
    asks,
    charge,
    control,
    expiry,
    metered,
    repeats,
    wind_down,
)
from guard.gateway.unit.unit_of_work import UnitOfWork

PART_MAX: Final = 100
"""Reservations that one unit of work expires; what is due beyond them is left to the next one."""


def expire(unit: UnitOfWork, reservation: Reservation) -> None:
    """Close an open reservation whose time has passed, and charge what was under way."""
    # Read before the close, which clears both. What events have used up of the money, and what was
    # given back, is not held any more, and so not under way: hence the smaller of the two.
    amount = min(reservation.under_way, reservation.held)
    # Closed before it is charged, so that the charge is recorded like an event that came late: it
    # neither prolongs the reservation nor draws on it.
    expiry.close(unit, reservation, "expired")
    if amount:
        reservation.under_way = charge.charge_unreported(unit, reservation, amount)
        if reservation.metered and reservation.under_way:
            metered.prepay(reservation)


def expire_reservations(unit: UnitOfWork) -> int:
    """Close some reservations past their expiry, by the store's clock; return how many."""
    expired = unit.expired_reservations(PART_MAX)
    # An event may still come: it is charged then, flagged as late, and can go over the limit.
    # Keeping the money of a dead process reserved would refuse other calls instead.
    for reservation in expired:
        expire(unit, reservation)
    return len(expired)


def sweep(unit: UnitOfWork) -> int:
    """Expire reservations and approvals, lift ended exhaustions, delete old data.

    All commands of the store wait while it runs, so it handles a bounded number of reservations and
    approvals and leaves the rest to the next unit of work.
    """
    closed = expire_reservations(unit)
    approvals.expire(unit)
    asks.lapse(unit)
    alerting.lapse(unit)
    wind_down.lapse(unit)
    repeats.lapse(unit)
    control.lift_ended(unit)
    control.compact(unit)
    unit.housekeep()
    return closed
