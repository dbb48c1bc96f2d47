"""Reconciliation: a vendor's bill corrects what was charged, by model and hour."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from guard.core import wire
from guard.core.model_names import family
from guard.gateway.domain import ledger, models, records, windows
from guard.gateway.domain.commands import Actor, PostCommitEvent, PricedEvent
from guard.gateway.domain.ledger import BudgetAccount
from guard.gateway.domain.records import Adjustment, Billed
from guard.gateway.ledger import accounts, audit, control
from guard.gateway.ledger.state import NO_SCOPES, ChargedHour, OrganisationState, ScopeKeys
from guard.gateway.ledger.unit_of_work import UnitOfWork

TYPE: Final = "adjustment"
"""Type of the events by which adjustments are booked."""


def reconcile(
    unit: UnitOfWork,
    actor: Actor,
    organisation_id: str,
    billed: Sequence[Billed],
    provider: str | None,
    source: str,
    dry_run: bool,
) -> list[Adjustment]:
    """Book, for each model and time, the difference between the bill and the charges.

    Booking the same bill again changes nothing, because no difference is left.

    Args:
        unit: the unit of work.
        actor: who does it.
        organisation_id: whose charges.
        billed: the rows of the vendor's bill; all of the same width.
        provider: whose charges are compared; ``None`` for those of all.
        source: names the vendor's file in the audit log.
        dry_run: only return what would be booked.
    """
    org = accounts.organisation(unit, organisation_id)
    if not billed:
        return []
    width_ms = billed[0].width_ms
    since_ms = min(row.start_ms for row in billed)
    until_ms = max(row.start_ms for row in billed) + width_ms
    charged: dict[tuple[int, str], list[ChargedHour]] = {}
    for hour in unit.charged_hours(organisation_id, since_ms, until_ms, provider):
        start_ms = hour.hour_ms - hour.hour_ms % width_ms
        charged.setdefault((start_ms, family(hour.model)), []).append(hour)
    found = list(_differences(billed, charged, unit.now_ms))
    if not dry_run:
        for adjustment, hours in found:
            if hours and (adjustment.adjustment_nanousd or adjustment.uncertain_nanousd):
                _book(unit, org, adjustment, hours)
        booked = [adjustment for adjustment, _ in found if adjustment.adjustment_nanousd]
        if booked:
            details = {
                "source": source,
                "adjustments": len(booked),
                "nanousd": sum(each.adjustment_nanousd for each in booked),
                "models": sorted({each.model for each in booked}),
                "since_ms": since_ms,
                "until_ms": until_ms,
            }
            audit.record(unit, actor, "usage.reconcile", source, details, organisation_id)
    return [adjustment for adjustment, _ in found]


def _differences(
    billed: Sequence[Billed], charged: dict[tuple[int, str], list[ChargedHour]], now_ms: int
) -> Iterator[tuple[Adjustment, list[ChargedHour]]]:
    totals: dict[tuple[int, str], int] = {}
    for row in billed:
        key = row.start_ms, family(row.model)
        totals[key] = totals.get(key, 0) + row.cost_nanousd
    spans: dict[str, list[int]] = {}
    for start_ms, name in sorted(totals):
        spans.setdefault(name, [start_ms, start_ms])[1] = start_ms
    # A model is billed from its first line to its last, whatever other models' lines are.
    between = {(at, name) for at, name in charged
               if name in spans and spans[name][0] <= at <= spans[name][1]}  # fmt: skip
    for key in sorted({*totals, *between}):
        start_ms, name = key
        hours = charged.get(key, [])
        cost = sum(hour.cost_nanousd for hour in hours)
        uncertain = min(sum(hour.uncertain_nanousd for hour in hours), max(cost, 0))
        width_ms = billed[0].width_ms
        total, note = totals.get(key), ""
        # 1. The vendor may still bill more for this time: not booked.
        if start_ms + width_ms > now_ms:
            note, hours = "has not ended", []
        # 2. Billed for something that did not pass through the gateway: not booked.
        elif not hours:
            note = "not charged here"
        # 3. The vendor bills nothing for this time, so the requests in doubt were not billed. What
        # is known to have been answered stays charged.
        elif total is None:
            total = cost - uncertain
        is_left = bool(note)
        yield (
            Adjustment(
                start_ms=start_ms,
                width_ms=width_ms,
                model=name,
                charged_nanousd=cost,
                uncertain_nanousd=uncertain,
                billed_nanousd=total or 0,
                adjustment_nanousd=0 if is_left or total is None else total - cost,
                note=note,
            ),
            hours,
        )


def _book(
    unit: UnitOfWork, org: OrganisationState, adjustment: Adjustment, hours: list[ChargedHour]
) -> None:
    for hour in hours:
        if hour.uncertain_nanousd:
            unit.resolve_doubt(org.organisation_id, hour)
    cost = adjustment.adjustment_nanousd
    if not cost:
        return
    # The whole difference is booked in the hour, and under the name of the model, with the most in
    # doubt: a negative one then makes no total of another hour or name negative.
    at = max(hours, key=lambda hour: (hour.uncertain_nanousd, hour.cost_nanousd))
    names = (*models.names(at.model),)
    keys: ScopeKeys = (*NO_SCOPES, names)
    charged = list(_accounts_at(unit, org, keys, at.hour_ms))
    data = {
        "billed_nanousd": adjustment.billed_nanousd,
        "charged_nanousd": adjustment.charged_nanousd,
        "uncertain_nanousd": adjustment.uncertain_nanousd,
        "width_ms": adjustment.width_ms,
    }
    priced = PricedEvent(
        wire.Event(_id(org, adjustment, hours), TYPE, at.hour_ms, data=data),
        wire.encode(data),
        cost=cost,
        price_source="reconciled",
        provider=at.provider or None,
        model=at.model,
    )
    ids = [account.balance.balance_id for account in charged]
    own = org.organisation_id
    # As with every charge, the insertion of the event is the protection against booking it twice.
    if not unit.add_event(own, "", priced, at.hour_ms, (), ids):
        return
    unit.count_usage(own, (None, None, None, None, "", (), names), at.hour_ms, priced)
    unit.change_balances([account.balance for account in charged])
    outcome = ledger.charge(charged, cost, None, ())
    control.announce_charge(unit, org, outcome)
    if cost < 0:
        control.lift_unspent(unit, org, charged)
        unit.announce(PostCommitEvent("room", own, balance_ids=tuple(ids)))


def _id(org: OrganisationState, adjustment: Adjustment, hours: Iterable[ChargedHour]) -> str:
    """Return an id that is the same for the same booking, and another for every later one."""
    # The number of charged events goes up by one with each booking.
    events = sum(hour.events for hour in hours)
    said = repr((org.organisation_id, adjustment, events)).encode()
    return str(uuid.UUID(bytes=hashlib.blake2b(said, digest_size=16).digest()))


def _accounts_at(
    unit: UnitOfWork, org: OrganisationState, keys: ScopeKeys, at_ms: int
) -> Iterator[BudgetAccount]:
    """Yield the balances over a past time: those of open periods, and stored ones of ended ones."""
    rules: list[tuple[records.BudgetRule, str]] = list(
        accounts.applying(accounts.index_of(unit.budgets(org.organisation_id)), keys)
    )
    for rule, scope_id in rules:
        start_ms, end_ms = windows.period_of(rule.window, at_ms)
        if end_ms is None or end_ms > unit.now_ms:
            yield BudgetAccount(rule, accounts.balance_of(unit, rule, scope_id, start_ms, end_ms))
        else:
            # No balance is made for a period that has ended: no call could be decided by it.
            stored = unit.find_balance(rule.budget_id, scope_id, start_ms)
            if stored is not None:
                yield BudgetAccount(rule, stored)
