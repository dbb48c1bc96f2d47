"""Signed corrections of what was charged, booked as events of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from guard.gateway.domain import ledger
from guard.gateway.domain.commands import PricedEvent
from guard.gateway.domain.ledger import BudgetBalance
from guard.gateway.ledger import control
from guard.gateway.unit.state import OrganisationState, ScopeKeys
from guard.gateway.unit.unit_of_work import UnitOfWork

TYPE: Final = "adjustment"
"""Type of the events by which adjustments are booked."""


def book(
    unit: UnitOfWork,
    org: OrganisationState,
    key_id: str,
    priced: PricedEvent,
    at_ms: int,
    keys: ScopeKeys,
    charged: Sequence[BudgetBalance],
) -> None:
    """Book an adjustment; one that was booked before changes nothing.

    Args:
        unit: the unit of work.
        org: whose charges it corrects.
        key_id: whose; empty for no key's.
        priced: what it costs, with an id that is the same for the same adjustment.
        at_ms: the time at which it counts.
        keys: the scopes whose usage it changes.
        charged: the accounts that it changes.
    """
    own, ids = org.organisation_id, [account.balance.balance_id for account in charged]
    # As with every charge, the insertion of the event is the protection against booking it twice.
    if not unit.add_event(own, key_id, priced, at_ms, (priced.flags,), ids):
        return
    unit.count_usage(own, keys, at_ms, priced)
    unit.change_balances([account.balance for account in charged])
    outcome = ledger.charge(charged, priced.cost, None, (), now_ms=unit.now_ms)
    control.announce_charge(unit, org, outcome)
    if priced.cost < 0:
        control.lift_unspent(unit, org, charged)
