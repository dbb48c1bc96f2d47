"""Rate caps: calls are counted in the transaction that decides about them.

A call counts under every cap when it is allowed, or gets a place in line; a refused one counts
under none. A lease holds calls of the caps over its lane in advance, as it holds money, and gives
them back with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from guard.core import wire
from guard.gateway.domain.ledger import Reservation
from guard.gateway.domain.rate_window import CapUse, RateWindow
from guard.gateway.unit.unit_of_work import UnitOfWork


def wait_ms(unit: UnitOfWork, organisation_id: str, uses: Iterable[CapUse]) -> int | None:
    """Return when a call may be made that is faster than one of its caps; ``None``: now."""
    now_ms = unit.now_ms
    waits = [_window(unit, organisation_id, use).wait_ms(use, now_ms) for use in uses]
    return max(waits, default=0) or None


def count(unit: UnitOfWork, organisation_id: str, uses: Iterable[CapUse]) -> None:
    """Count a call under each of its caps."""
    for use in uses:
        counted = _window(unit, organisation_id, use).plus(1, unit.now_ms)
        unit.rate_windows.save(organisation_id, use.bucket, counted)


def lend(
    unit: UnitOfWork, lease: Reservation, call: wire.GateRequest, uses: Sequence[CapUse]
) -> int:
    """Lend a lease the calls that its holder expects to need, or a share of what is left.

    Args:
        unit: the unit of work.
        lease: it has given back what it held of them.
        call: the question, which is allowed and counted.
        uses: the caps that count every call of the lease's lane.

    Returns:
        How many calls the lease allows, this one included if caps count it.
    """
    assert call.lease is not None
    own = lease.organisation_id
    # A request within a protected call is no call of its own under the caps.
    counted = 0 if call.within is not None and call.kind == "llm" else 1
    windows = [_window(unit, own, use) for use in uses]
    # An equal share for each lease, for this one and for the calls without a lease.
    shares = [
        (use.calls - each.made - each.lent) // (each.loans + 2)
        for use, each in zip(uses, windows, strict=True)
    ]
    calls = min(call.lease.demand_calls - counted, *shares)
    if calls < 1:
        return counted
    unit.change_reservation(lease)
    lease.calls, lease.buckets = calls, tuple([use.bucket for use in uses])
    for use, each in zip(uses, windows, strict=True):
        lent = replace(each, lent=each.lent + calls, loans=each.loans + 1)
        unit.rate_windows.save(own, use.bucket, lent)
    return counted + calls


def take_back(unit: UnitOfWork, lease: Reservation, unused: int) -> None:
    """Take the calls of a lease back: unused ones are free again, the others count as made now.

    When they were made is not known; the latest possible time is safe, and is the lease's end if
    that has passed.
    """
    if not lease.calls:
        return
    own, calls = lease.organisation_id, lease.calls
    used, at_ms = max(0, calls - unused), min(unit.now_ms, lease.expires_at_ms)
    for bucket in lease.buckets:
        window = unit.rate_windows.find(own, bucket)
        if window is not None:
            back = replace(window, lent=window.lent - calls, loans=window.loans - 1)
            unit.rate_windows.save(own, bucket, back.plus(used, at_ms))
    unit.change_reservation(lease)
    lease.calls, lease.buckets = 0, ()


def _window(unit: UnitOfWork, organisation_id: str, use: CapUse) -> RateWindow:
    found = unit.rate_windows.find(organisation_id, use.bucket) or RateWindow(use.per_ms)
    return found.at(unit.now_ms, use.per_ms)
