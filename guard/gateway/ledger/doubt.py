"""Charges in doubt: a late event, the holder's own word, or an operator ends the doubt.

When a holder does not renew what it holds, its room goes to others; what it had under way, or may
have begun, is charged (:func:`guard.gateway.ledger.charge.charge_unreported`). ``under_way`` of the
expired reservation is what is left of that charge. Whatever shows what the vendor has billed is
booked as such, and takes as much of the doubt back.
"""

from __future__ import annotations

import msgspec

from guard.core import wire
from guard.gateway.domain import models, records
from guard.gateway.domain.commands import Actor, PricedEvent
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.ledger import BudgetBalance, Reservation
from guard.gateway.ledger import adjustments, audit, metered
from guard.gateway.ledger.accounts import organisation, tags_over
from guard.gateway.unit.doubts import EXPIRED, FREED, ChargeInDoubt, find_doubt, resolved
from guard.gateway.unit.state import IN_DOUBT, OrganisationState, ScopeKeys
from guard.gateway.unit.unit_of_work import UnitOfWork


def reported(unit: UnitOfWork, reservation: Reservation, cost: int, *, is_all: bool) -> None:
    """Take back what a late event's own cost stands for from now on.

    Args:
        unit: the unit of work.
        reservation: the expired one that the event names.
        cost: the event's.
        is_all: whether nothing else was under way: it is the event of the one request.
    """
    charge = find_doubt(unit, reservation.organisation_id, EXPIRED + reservation.reservation_id)
    if charge is not None:
        # What a vendor's bill, or an operator, has decided only pays for events.
        left = 0 if is_all and charge.is_open else max(0, reservation.under_way - cost)
        _lower(unit, organisation(unit, reservation.organisation_id), reservation, charge, left)


def told(unit: UnitOfWork, reservation: Reservation, left: int) -> None:
    """Lower a charge in doubt, also one to come, to what its holder says is still under way."""
    if left >= reservation.under_way:
        return
    if reservation.state == "open":
        unit.change_reservation(reservation)
        reservation.under_way = left
        return
    charge = find_doubt(unit, reservation.organisation_id, EXPIRED + reservation.reservation_id)
    if charge is not None and charge.is_open:
        _lower(unit, organisation(unit, reservation.organisation_id), reservation, charge, left)


def settle(
    unit: UnitOfWork,
    actor: Actor,
    organisation_id: str,
    body: records.DoubtSettlement,
    event_id: str,
) -> records.Doubt:
    """End the doubt about a charge: it cost what was charged, or so much instead.

    Events that come later are paid from that, so that nothing is charged twice; of one that cost
    nothing, they are charged.

    Raises:
        NotFoundError: there is no such charge, or nothing of it is in doubt.
    """
    charge = find_doubt(unit, organisation_id, event_id)
    if charge is None or not charge.is_open:
        raise NotFoundError("no such charge in doubt")
    gone = None
    if charge.doubt.holder_gone:
        gone = unit.reservation(event_id.removeprefix(EXPIRED))
    in_doubt = charge.doubt.charged_nanousd if gone is None else gone.under_way
    if not in_doubt:
        raise NotFoundError("nothing of this charge is in doubt any more")
    cost = in_doubt if body.cost_nanousd is None else body.cost_nanousd
    org = organisation(unit, organisation_id)
    if gone is None:
        _adjust(unit, org, charge, -in_doubt, FREED + event_id, IN_DOUBT)
        resolved(unit, org.organisation_id, charge)
    else:
        _lower(unit, org, gone, charge, 0)
        gone.under_way = cost
    if cost:
        _adjust(unit, org, charge, cost, f"settled-{event_id}")
    details = {"in_doubt_nanousd": in_doubt, "cost_nanousd": cost}
    audit.record(unit, actor, "doubt.settle", event_id, details, organisation_id)
    return msgspec.structs.replace(charge.doubt, charged_nanousd=cost, doubt_nanousd=0)


def _lower(
    unit: UnitOfWork,
    org: OrganisationState,
    reservation: Reservation,
    charge: ChargeInDoubt,
    left: int,
) -> None:
    """Take back all of an expired reservation's charge but so much."""
    by = reservation.under_way - left
    if not by:
        return
    # The amount is part of the id: it falls with each step, so no two steps have the same one.
    name = f"lowered-{reservation.under_way}-{reservation.reservation_id}"
    unit.change_reservation(reservation)
    reservation.under_way = left
    _adjust(unit, org, charge, -by, name, IN_DOUBT if charge.is_open else "")
    if charge.is_open and not left:
        if reservation.metered:
            keys = _keys(unit, org, charge)
            metered.unpay(unit, org, keys, reservation, _priced(charge, 0, "", IN_DOUBT))
        resolved(unit, org.organisation_id, charge)
        reservation.state = "settled"  # over for good: its holder may not take it up again


def _adjust(
    unit: UnitOfWork,
    org: OrganisationState,
    charge: ChargeInDoubt,
    cost: int,
    event_id: str,
    flags: str = "",
) -> None:
    """Book a correction on the balances, and in the time, of a charge."""
    charged = []
    for balance in map(unit.balance, charge.balance_ids):
        rule = unit.catalogue.budget(balance.budget_id)
        if rule is not None:  # the balance of a budget that was removed stays as it was
            charged.append(BudgetBalance(rule, balance))
    priced = _priced(charge, cost, event_id, flags)
    of = charge.doubt
    keys = _keys(unit, org, charge)
    adjustments.book(unit, org, of.key_id, priced, of.charged_at_ms, keys, charged)


def _priced(charge: ChargeInDoubt, cost: int, event_id: str, flags: str) -> PricedEvent:
    of = charge.doubt
    event = wire.Event(
        event_id,
        adjustments.TYPE,
        of.charged_at_ms,
        workflow_id=of.workflow_id,
        run_id=of.run_id,
        chain_id=charge.chain_id,
        agent=of.agent,
        reservation_id=of.reservation_id,
        user=of.user,
        tags=charge.tags,
    )
    return PricedEvent(event, b"{}", cost, "settled", of.provider, of.model, flags=flags)


def _keys(unit: UnitOfWork, org: OrganisationState, charge: ChargeInDoubt) -> ScopeKeys:
    of = charge.doubt
    tags = tags_over(unit, org, charge.tags, of.key_id, of.run_id)
    names = models.names(of.model)
    return of.workflow_id, of.agent, charge.chain_id, of.user, of.key_id, tags, names
