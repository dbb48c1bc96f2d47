"""Checks every balance against its entries, and the chain of the audit log."""

from __future__ import annotations

import json
import sqlite3

from guard.gateway.domain.records import LedgerReport
from guard.gateway.ledger import audit
from guard.gateway.ledger.state import AuditRow
from guard.gateway.storage.sqlite.read_pool import Connection


def verify_ledger(connection: sqlite3.Connection) -> LedgerReport:
    """Check, on one snapshot, that the balances agree with their entries.

    For every balance: ``committed`` is the opening plus the costs of its events, ``reserved`` is
    the sum of its open reservations, and ``committed + reserved <= authorized_max + overspend``.
    Closed reservations reserve nothing. Each event, and each vendor response, is stored once
    (unique indexes; counted here all the same).
    """
    problems: list[str] = []
    connection.execute("BEGIN")
    try:
        execute = connection.execute
        charged = dict(
            execute(
                "SELECT j.value, sum(e.cost_nanousd) FROM events e, json_each(e.balance_ids) j"
                " WHERE e.cost_nanousd > 0 GROUP BY j.value"
            ).fetchall()
        )
        held = dict(
            execute(
                "SELECT j.value, sum(r.held) FROM reservations r, json_each(r.balance_ids) j"
                " WHERE r.state = 'open' GROUP BY j.value"
            ).fetchall()
        )
        leased = dict(
            execute(
                "SELECT j.value, count(*) FROM reservations r, json_each(r.balance_ids) j"
                " WHERE r.state = 'open' AND r.basis = 'lease' GROUP BY j.value"
            ).fetchall()
        )
        balances = execute(
            "SELECT balance_id, opening, committed, reserved, overspend, authorized_max, leases"
            " FROM balances"
        ).fetchall()
        for balance_id, opening, committed, reserved, overspend, authorized_max, leases in balances:
            if leases != leased.get(balance_id, 0):
                problems.append(f"balance {balance_id}: leases is not the count of open leases")
            if committed != opening + charged.get(balance_id, 0):
                problems.append(f"balance {balance_id}: committed is not the sum of its events")
            if reserved != held.get(balance_id, 0):
                problems.append(
                    f"balance {balance_id}: reserved is not the sum of open reservations"
                )
            if reserved < 0 or committed < 0:
                problems.append(f"balance {balance_id}: negative")
            if committed + reserved > authorized_max + overspend:
                problems.append(f"balance {balance_id}: granted more than was authorized")
        (leaks,) = execute(
            "SELECT count(*) FROM reservations WHERE (state != 'open' AND held != 0) OR held < 0"
        ).fetchone()
        if leaks:
            problems.append(f"{leaks} closed reservations still reserve something")
        (twice,) = execute(
            "SELECT count(*) - count(DISTINCT organisation_id || ' ' || event_id) FROM events"
        ).fetchone()
        if twice:
            problems.append(f"{twice} events charged twice")
        (open_count,) = execute("SELECT count(*) FROM reservations WHERE state = 'open'").fetchone()
        (events,) = execute("SELECT count(*) FROM events").fetchone()
    finally:
        connection.execute("ROLLBACK")
    return LedgerReport(
        balances=len(balances), reservations_open=open_count, events=events, problems=problems
    )


def verify_audit(
    reading: Connection, noted: tuple[int, str] | None = None
) -> tuple[int, int | None]:
    """Check the hash chain of the audit log, on one snapshot of entries and anchor."""
    execute = reading.sqlite.execute
    execute("BEGIN")
    try:
        anchor = _audit_anchor(reading)
        return audit.verify(
            (AuditRow(*row) for row in execute("SELECT * FROM audit ORDER BY seq")), anchor, noted
        )
    finally:
        execute("ROLLBACK")


def _audit_anchor(reading: Connection) -> tuple[int, str] | None:
    rows = reading.rows("SELECT value FROM facts WHERE name = 'audit_anchor'")
    if not rows:
        return None
    try:
        seq, digest = json.loads(rows[0][0])
        return int(seq), str(digest)
    except (TypeError, ValueError):
        return 0, "unreadable"  # the hash of nothing, so the check fails
