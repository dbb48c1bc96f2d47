"""Checks every balance against the entries that it is the sum of."""

from __future__ import annotations

import sqlite3

from guard.gateway.domain.records import LedgerReport


def verify_ledger(connection: sqlite3.Connection) -> LedgerReport:
    """Check, on one snapshot, that the books add up.

    For every balance: ``committed`` is the opening plus the costs of its events, ``reserved`` is
    what its open reservations hold, and ``committed + reserved <= bound + overshoot``. No closed
    reservation holds anything. Each event, and each vendor response, is there once (unique
    indexes; counted here all the same).
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
        balances = execute(
            "SELECT balance_id, opening, committed, reserved, overshoot, bound FROM balances"
        ).fetchall()
        for balance_id, opening, committed, reserved, overshoot, bound in balances:
            if committed != opening + charged.get(balance_id, 0):
                problems.append(f"balance {balance_id}: committed is not the sum of its events")
            if reserved != held.get(balance_id, 0):
                problems.append(f"balance {balance_id}: reserved is not the sum of open holds")
            if reserved < 0 or committed < 0:
                problems.append(f"balance {balance_id}: negative")
            if committed + reserved > bound + overshoot:
                problems.append(f"balance {balance_id}: granted more than its bound")
        (leaks,) = execute(
            "SELECT count(*) FROM reservations WHERE (state != 'open' AND held != 0) OR held < 0"
        ).fetchone()
        if leaks:
            problems.append(f"{leaks} closed reservations hold something")
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
