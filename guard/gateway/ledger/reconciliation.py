"""Reconciliation: a vendor's bill corrects what was charged, by model and hour."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from guard.core import wire
from guard.core.model_names import family
from guard.gateway.domain import models, records, windows
from guard.gateway.domain.commands import Actor, PricedEvent
from guard.gateway.domain.ledger import BudgetBalance
from guard.gateway.domain.records import Adjustment, Billed
from guard.gateway.ledger import accounts, adjustments, audit
from guard.gateway.unit.state import NO_SCOPES, ChargedHour, OrganisationState, ScopeKeys
from guard.gateway.unit.unit_of_work import UnitOfWork


class Judged(NamedTuple):
    """A model and time of a bill: its name, what is billed (``None``: no line), and the charges."""

    start_ms: int
    width_ms: int
    model: str
    billed_nanousd: int | None
    hours: Sequence[ChargedHour]


def span_of(rows: Sequence[Billed | Judged]) -> tuple[int, int]:
    """Return when some rows begin and end."""
    return min(row.start_ms for row in rows), max(row.start_ms + row.width_ms for row in rows)


def judged(billed: Sequence[Billed], charged: Iterable[ChargedHour]) -> list[Judged]:
    """Return each model and time of a bill, with its charges, in the order of time.

    Args:
        billed: the rows of the vendor's bill; all of the same width.
        charged: all charges between the first row and the last one.
    """
    width_ms = billed[0].width_ms
    hours = _by_row(charged, width_ms)
    totals: dict[tuple[int, str], int] = {}
    for row in billed:
        key = row.start_ms, family(row.model)
        totals[key] = totals.get(key, 0) + row.cost_nanousd
    spans: dict[str, list[int]] = {}
    for start_ms, name in sorted(totals):
        spans.setdefault(name, [start_ms, start_ms])[1] = start_ms
    # A model is billed from its first line to its last, whatever other models' lines are.
    between = {(at, name) for at, name in hours
               if name in spans and spans[name][0] <= at <= spans[name][1]}  # fmt: skip
    return [
        Judged(
            start_ms, width_ms, name, totals.get((start_ms, name)), hours.get((start_ms, name), ())
        )
        for start_ms, name in sorted({*totals, *between})
    ]


def book(
    unit: UnitOfWork,
    actor: Actor,
    organisation_id: str,
    part: Sequence[Judged],
    provider: str | None,
    source: str,
    number: int,
    parts: int,
) -> list[Adjustment]:
    """Book, for each model and time of a part of a bill, what the bill and the charges differ by.

    The charges are read anew. Booking the same part again changes nothing, because no difference is
    left: so a bill of which some parts were booked is completed by booking all of it again.

    Args:
        unit: the unit of work.
        actor: who does it.
        organisation_id: whose charges.
        part: what to book, as judged before.
        provider: whose charges are compared; ``None`` for those of all.
        source: names the vendor's file in the audit log.
        number: of the part, from 1, for the audit log.
        parts: how many the bill has.
    """
    org = accounts.organisation(unit, organisation_id)
    since_ms, until_ms = span_of(part)
    charged = _by_row(
        unit.charged_hours(organisation_id, since_ms, until_ms, provider), part[0].width_ms
    )
    made = []
    for row in part:
        row = row._replace(hours=charged.get((row.start_ms, row.model), ()))
        adjustment = adjustment_of(row, unit.now_ms)
        made.append(adjustment)
        if not adjustment.note and (adjustment.adjustment_nanousd or adjustment.uncertain_nanousd):
            _book(unit, org, adjustment, row.hours)
    booked = [each for each in made if each.adjustment_nanousd]
    if booked:
        details: dict[str, Any] = {
            "source": source,
            "adjustments": len(booked),
            "nanousd": sum(each.adjustment_nanousd for each in booked),
            "models": sorted({each.model for each in booked}),
            "since_ms": since_ms,
            "until_ms": until_ms,
        }
        if parts > 1:
            details |= {"part": number, "parts": parts}
        audit.record(unit, actor, "usage.reconcile", source, details, organisation_id)
    return made


def _by_row(
    charged: Iterable[ChargedHour], width_ms: int
) -> dict[tuple[int, str], list[ChargedHour]]:
    found: dict[tuple[int, str], list[ChargedHour]] = {}
    for hour in charged:
        start_ms = hour.hour_ms - hour.hour_ms % width_ms
        found.setdefault((start_ms, family(hour.model)), []).append(hour)
    return found


def adjustment_of(row: Judged, now_ms: int) -> Adjustment:
    """Return what a row of a bill and its charges differ by, or why nothing is booked for it."""
    cost = sum(hour.cost_nanousd for hour in row.hours)
    uncertain = min(sum(hour.uncertain_nanousd for hour in row.hours), max(cost, 0))
    total, note = row.billed_nanousd, ""
    # 1. The vendor may still bill more for this time: not booked.
    if row.start_ms + row.width_ms > now_ms:
        note = "has not ended"
    # 2. Billed for something that did not pass through the gateway: not booked.
    elif not row.hours:
        note = "not charged here"
    # 3. The vendor bills nothing for this time, so the requests in doubt were not billed. What is
    # known to have been answered stays charged.
    elif total is None:
        total = cost - uncertain
    return Adjustment(
        start_ms=row.start_ms,
        width_ms=row.width_ms,
        model=row.model,
        charged_nanousd=cost,
        uncertain_nanousd=uncertain,
        billed_nanousd=total or 0,
        adjustment_nanousd=0 if note or total is None else total - cost,
        note=note,
    )


def _book(
    unit: UnitOfWork, org: OrganisationState, adjustment: Adjustment, hours: Sequence[ChargedHour]
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
        wire.Event(_id(org, adjustment, hours), adjustments.TYPE, at.hour_ms, data=data),
        wire.encode(data),
        cost=cost,
        price_source="reconciled",
        provider=at.provider or None,
        model=at.model,
    )
    usage: ScopeKeys = (None, None, None, None, "", (), names)
    adjustments.book(unit, org, "", priced, at.hour_ms, usage, charged)


def _id(org: OrganisationState, adjustment: Adjustment, hours: Iterable[ChargedHour]) -> str:
    """Return an id that is the same for the same booking, and another for every later one."""
    # The number of charged events goes up by one with each booking.
    events = sum(hour.events for hour in hours)
    said = repr((org.organisation_id, adjustment, events)).encode()
    return str(uuid.UUID(bytes=hashlib.blake2b(said, digest_size=16).digest()))


def _accounts_at(
    unit: UnitOfWork, org: OrganisationState, keys: ScopeKeys, at_ms: int
) -> Iterator[BudgetBalance]:
    """Yield the balances over a past time: those of open periods, and stored ones of ended ones."""
    rules: list[tuple[records.BudgetRule, str]] = list(
        accounts.applying(accounts.index_of(unit.catalogue.budgets(org.organisation_id)), keys)
    )
    for rule, scope_id in rules:
        # No balance is made for a period that has ended: no call could be decided by it. A window
        # of a length that nothing was charged to has not begun.
        stored = unit.newest_balance(rule.budget_id, scope_id, at_ms)
        if windows.length_ms(rule.window) is None:
            if stored is None or not stored.covers(at_ms):
                stored = accounts.balance_of(unit, org, rule, scope_id)
        elif stored is not None and stored.ends_ms is None:
            continue
        if stored is not None and stored.covers(at_ms):
            yield BudgetBalance(rule, stored)
