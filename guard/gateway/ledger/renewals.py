"""Reservations that their holder renews, so that they end soon after a holder that died."""

from __future__ import annotations

from guard.core import wire
from guard.gateway.domain import ledger
from guard.gateway.domain.commands import RequestOrigin
from guard.gateway.domain.ledger import BudgetBalance, Reservation
from guard.gateway.ledger import expiry, metered
from guard.gateway.ledger.accounts import organisation
from guard.gateway.unit.unit_of_work import UnitOfWork


def renew(
    unit: UnitOfWork, request: RequestOrigin, update: wire.LeaseUpdate
) -> wire.LeaseState | None:
    """Renew reservations; ``None`` when the update names none that its key has made.

    The answer lists those that are over, so that their holder stops renewing them.
    """
    first = _own(unit, request, update.lease_id)
    if first is None and not update.also:
        return None
    found = {update.lease_id: first}
    found.update((name, _own(unit, request, name)) for name in update.also)
    org = organisation(unit, request.organisation_id)
    until_ms = unit.now_ms + expiry.lasts_ms(org, renewed=True)
    over = []
    for name, reservation in found.items():
        if reservation is None or not _renew(unit, reservation, until_ms):
            over.append(name)
    if first is None or update.lease_id in over:
        state = "expired" if first is None else first.state
        return wire.LeaseState(update.lease_id, state, 0, 0, over)
    return wire.LeaseState(update.lease_id, "open", first.held, org.settings.lease_ttl_ms, over)


def _own(unit: UnitOfWork, request: RequestOrigin, name: str) -> Reservation | None:
    found = expiry.own_reservation(unit, request, name)
    return found if found is not None and found.renewed and not found.is_lease else None


def _renew(unit: UnitOfWork, reservation: Reservation, until_ms: int) -> bool:
    """Let a reservation last until a time; return whether it is open."""
    if reservation.state == "open":
        unit.change_reservation(reservation)
        reservation.expires_at_ms = until_ms
        return True
    return _hold_again(unit, reservation, until_ms)


def _hold_again(unit: UnitOfWork, reservation: Reservation, until_ms: int) -> bool:
    """Reopen an expired reservation whose holder is alive but could not be reached for a while.

    It gets back as much of its money as no other call has been granted meanwhile. Not reopened is
    one whose requests under way were charged at its expiry: that charge pays for them.
    """
    # ``guess`` below: the amount may shrink to what is left, but every budget must have some room.
    lost = reservation.amount - reservation.spent
    if reservation.state != "expired" or reservation.under_way or lost <= 0:
        return False
    accounts = []
    for balance_id in reservation.balance_ids:
        balance = unit.balance(balance_id)
        budget = unit.catalogue.budget(balance.budget_id)
        if budget is None:  # removed since: there is no limit to judge by
            return False
        accounts.append(BudgetBalance(budget, balance))
    judgement = ledger.judge(accounts, lost, guess=True)
    if judgement.refused_by is not None:
        return False
    unit.change_balances([account.balance for account in accounts])
    unit.change_reservation(reservation)
    ledger.reserve(accounts, judgement.amount)
    if reservation.metered:
        metered.hold_again(unit, reservation)
    reservation.held = judgement.amount
    reservation.amount = reservation.spent + judgement.amount
    reservation.expires_at_ms = until_ms
    unit.reopen(reservation)
    return True
