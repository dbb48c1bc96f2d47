"""What has expired: its holder is taken for gone, and what it had under way is charged.

A holder without a journal says what it has under way, since nobody else would know of it. What was
charged for that pays for events that come after all, so that nothing is charged twice.
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
    winding,
)
from guard.gateway.ledger.unit_of_work import UnitOfWork

SWEEP_MAX: Final = 2000


def expire(unit: UnitOfWork, reservation: Reservation) -> None:
    """Close an open reservation whose time has passed, and charge what was under way."""
    amount = min(reservation.under_way, reservation.held)
    expiry.close(unit, reservation, "expired")
    if amount:
        reservation.under_way = charge.charge_unreported(unit, reservation, amount)
        if reservation.metered and reservation.under_way:
            metered.prepay(reservation)


def expire_reservations(unit: UnitOfWork) -> int:
    """Close reservations past their expiry, by the store's clock; return how many."""
    expired = unit.expired_reservations(SWEEP_MAX)
    # An event may still come: it is charged then, flagged as late, and can go over the limit.
    for reservation in expired:
        expire(unit, reservation)
    return len(expired)


def sweep(unit: UnitOfWork) -> int:
    """Expire reservations and approvals, lift ended exhaustions, delete old data.

    All commands of the store wait meanwhile, so it takes a bounded number of reservations and
    approvals, and leaves the rest to the next sweep.
    """
    closed = expire_reservations(unit)
    approvals.expire(unit)
    asks.lapse(unit)
    alerting.lapse(unit)
    winding.lapse(unit)
    repeats.lapse(unit)
    control.lift_ended(unit)
    control.compact(unit)
    unit.housekeep()
    return closed
