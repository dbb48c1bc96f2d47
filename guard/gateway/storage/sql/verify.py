"""Checks every balance against its entries, and the chain of the audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import msgspec

from guard.gateway.domain.ledger import MeteredHold
from guard.gateway.domain.records import LedgerReport
from guard.gateway.ledger import audit
from guard.gateway.unit.connection import Connection
from guard.gateway.unit.rows import AUDIT
from guard.gateway.unit.state import AuditRow

_CHARGED: Final = (
    "SELECT j.value, sum(e.cost_nanousd) FROM events e, json_each(e.balance_ids) j"
    " WHERE e.cost_nanousd <> 0 GROUP BY j.value"
)
_HELD: Final = (
    "SELECT j.value, sum(r.held) FROM reservations r, json_each(r.balance_ids) j"
    " WHERE r.state = 'open' GROUP BY j.value"
)
_LEASED: Final = (
    "SELECT j.value, count(*) FROM reservations r, json_each(r.balance_ids) j"
    " WHERE r.state = 'open' AND r.basis = 'lease' GROUP BY j.value"
)
_METERED_HELD: Final = "SELECT metered FROM reservations WHERE state = 'open' AND metered <> ''"


def verify_ledger(connection: Connection) -> LedgerReport:
    """Check, on one snapshot, that the balances agree with their entries.

    For every balance: ``committed`` is the opening plus the costs of its events, ``reserved`` is
    the sum of its open reservations, and ``committed + reserved <= authorized_max + overspend``.
    Closed reservations reserve nothing. What rate caps have lent is what open leases hold. Each
    event, and each vendor response, is stored once: unique indexes ensure that, and events are
    counted here as well.
    """

    def count(what: str) -> int:
        return int(connection.rows(f"SELECT count(*) FROM {what}")[0][0])

    with connection.snapshot():
        problems = _balance_problems(connection)
        leaks = count("reservations WHERE (state != 'open' AND held != 0) OR held < 0")
        if leaks:
            problems.append(f"{leaks} closed reservations still reserve something")
        if _lent(connection) != _held_calls(connection):
            problems.append("what rate caps have lent is not what open leases hold of them")
        events = count("events")
        twice = events - count("(SELECT DISTINCT organisation_id, event_id FROM events) once")
        if twice:
            problems.append(f"{twice} events charged twice")
        return LedgerReport(
            balances=count("balances"),
            reservations_open=count("reservations WHERE state = 'open'"),
            events=events,
            problems=problems,
        )


def _balance_problems(connection: Connection) -> list[str]:
    charged, held, leased = (
        {int(balance_id): int(total) for balance_id, total in connection.rows(sql)}
        for sql in (_CHARGED, _HELD, _LEASED)
    )
    for balance_id, amount in _metered_holds(connection):
        held[balance_id] = held.get(balance_id, 0) + amount
    problems: list[str] = []
    balances = connection.rows(
        "SELECT balance_id, opening, committed, reserved, overspend, authorized_max, leases"
        " FROM balances"
    )
    for balance_id, opening, committed, reserved, overspend, authorized_max, leases in balances:
        if leases != leased.get(balance_id, 0):
            problems.append(f"balance {balance_id}: leases is not the count of open leases")
        if committed != opening + charged.get(balance_id, 0):
            problems.append(f"balance {balance_id}: committed is not the sum of its events")
        if reserved != held.get(balance_id, 0):
            problems.append(f"balance {balance_id}: reserved is not the sum of open reservations")
        if reserved < 0 or committed < 0:
            problems.append(f"balance {balance_id}: negative")
        if committed + reserved > authorized_max + overspend:
            problems.append(f"balance {balance_id}: granted more than was authorized")
    return problems


_decode_holds: Final = msgspec.json.Decoder(tuple[MeteredHold, ...]).decode


def _metered_holds(connection: Connection) -> Iterator[tuple[int, int]]:
    """Yield the holds of open reservations on tokens and calls, by balance."""
    for (text,) in connection.rows(_METERED_HELD):
        for hold in _decode_holds(text):
            for balance_id in hold.balance_ids:
                yield balance_id, hold.held


def _lent(connection: Connection) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the calls that rate caps have lent, and to how many leases."""
    sql = "SELECT organisation_id, bucket, lent, loans FROM rate_windows WHERE lent <> 0"
    return {(own, bucket): (lent, loans) for own, bucket, lent, loans in connection.rows(sql)}


def _held_calls(connection: Connection) -> dict[tuple[str, str], tuple[int, int]]:
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for own, buckets, calls in connection.rows(
        "SELECT organisation_id, buckets, calls FROM reservations"
        " WHERE state = 'open' AND calls > 0"
    ):
        for bucket in json.loads(buckets):
            held, leases = found.get((own, bucket), (0, 0))
            found[own, bucket] = held + calls, leases + 1
    return found


def verify_audit(
    connection: Connection, noted: tuple[int, str] | None = None
) -> tuple[int, int | None]:
    """Check the hash chain of the audit log, on one snapshot of entries and anchor."""
    with connection.snapshot():
        anchor = _audit_anchor(connection)
        rows = connection.stream(f"{AUDIT.select()} ORDER BY seq")
        return audit.verify((AuditRow(*row) for row in rows), anchor, noted)


def _audit_anchor(connection: Connection) -> tuple[int, str] | None:
    rows = connection.rows("SELECT value FROM facts WHERE name = 'audit_anchor'")
    if not rows:
        return None
    try:
        seq, digest = json.loads(rows[0][0])
        return int(seq), str(digest)
    except (TypeError, ValueError):
        return 0, "unreadable"  # not the hash of any entry, so the check fails
