"""One organisation with many rows of everything, written straight into a store of either engine."""

from __future__ import annotations

from typing import Any, Final

from guard.gateway.unit.unit_of_work import UnitOfWork

_NUMBERS: Final = (
    "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows}) SELECT"
)
_FAR: Final = 2**52

_FILL: Final = (
    # A budget for each workflow, with its balance, under one for all that is nearly used up.
    ("INSERT INTO budgets (budget_id, organisation_id, scope_kind, scope_id, \"window\","
    " limit_amount, mode, epsilon_nanousd, thresholds, version, created_at_ms, updated_at_ms)"
    " {numbers} 'b' || n, '{own}', 'workflow', 'w' || n, 'total', 1000000,"
    " 'hard', 0, '[0.5]', 1, 1, 1 FROM n"),
    ("INSERT INTO balances (budget_id, scope_id, period_start_ms, opening, committed, reserved,"
    " overspend, authorized_max, level, exhausted, leases) {numbers} 'b' || n, 'w' || n, 0, 0, 0,"
    " 1000, 0, 1000000, 0, 0, 1 FROM n"),
    ("INSERT INTO budgets (budget_id, organisation_id, scope_kind, scope_id, \"window\","
    " limit_amount, mode, epsilon_nanousd, thresholds, version, created_at_ms, updated_at_ms)"
    " VALUES ('all', '{own}', 'organisation', '', 'total', {rows} * 1000"
    " + 100000, 'hard', 0, '[]', 1, 1, 1)"),
    ("INSERT INTO balances (budget_id, scope_id, period_start_ms, opening, committed, reserved,"
    " overspend, authorized_max, level, exhausted, leases) VALUES ('all', '', 0, 0, 0,"
    " {rows} * 1000, 0, {rows} * 1000 + 100000, 0, 0, {rows})"),
    # A call that asks for more of each budget, and a raise of each.
    ("INSERT INTO budget_asks {numbers} n, 'ask' || n, '{own}', {now}, '{{}}' FROM n"),
    ("INSERT INTO budget_raises {numbers} '{own}', 'raise' || n, 'b' || n, 1, 1, {now}, 'o',"
    " 'usd' FROM n"),
    # A lease for each workflow.
    ("INSERT INTO reservations {numbers} 'l' || n, '{own}', 'k', 'c' || n,"
    " '[' || (SELECT balance_id FROM balances WHERE budget_id = 'all') || ', '"
    "  || (SELECT balance_id FROM balances WHERE budget_id = 'b' || n) || ']',"
    " 1000, 1000, {now}, {now} + 3600000, 0, 'open', 'lease', 'w' || n, NULL, NULL, NULL, NULL,"
    " 'f', NULL, 0, 0, 0, NULL, 0, NULL FROM n"),
    ("INSERT INTO usage {numbers} '{own}', 'workflow', 0, 0, 'w' || n, '', '', '', 0, 0, 0, 0, 0,"
    " 0, 0, 0, 0, 0, 1, 1, NULL FROM n"),
    ("INSERT INTO usage {numbers} '{own}', 'run', 0, 0, 'r' || n, '', '', '', 0, 0, 0, 0, 0,"
    " 0, 0, 0, 0, 0, 1, 1, 'w' || n FROM n"),
    # Approvals that wait, and as many that were used.
    ("INSERT INTO approvals {numbers} 'a' || n, '{own}', 'k', 'ac' || n, 's', 'pending', 't', 'f',"
    " 'w' || n, NULL, NULL, 1, {far}, NULL, NULL, '', '{{}}', NULL, NULL, NULL FROM n"),
    ("INSERT INTO approvals {numbers} 'u' || n, '{own}', 'k', 'uc' || n, 's', 'used', 't', 'f',"
    " 'w' || n, NULL, NULL, 1, {far}, 1, 'o', '', '{{}}', NULL, NULL, NULL FROM n"),
    ("INSERT INTO webhooks {numbers} 'h' || n, '{own}', 'https://hooks.example/' || n,"
    " '[\"budget.threshold\"]', 's', 1, 1, 'webhook', '{{}}' FROM n"),
    ("INSERT INTO deliveries {numbers} 'd' || n, 'h1', '{own}', 't', '{{}}', 1, 1, 0, NULL, 0,"
    " NULL, '' FROM n"),
    # Kills of workflows, and the messages that they were.
    ("INSERT INTO directives {numbers} '{own}', 'k' || n, '', 'life',"
    " '{{\"seq\": ' || n || ', \"type\": \"kill\", \"workflow_id\": \"k' || n || '\"}}', NULL, 1"
    " FROM n"),
    ("INSERT INTO control {numbers} '{own}', n, NULL, 'kill',"
    " '{{\"seq\": ' || n || ', \"type\": \"kill\", \"workflow_id\": \"k' || n || '\"}}' FROM n"),
    "UPDATE organisations SET control_seq = {rows} WHERE organisation_id = '{own}'",
)  # fmt: skip


def fill(unit: UnitOfWork, organisation_id: str, rows: int) -> None:
    """Give an organisation ``rows`` budgets, leases, workflows, approvals, webhooks and so on.

    The unit is not in a transaction; what it has cached is no longer true.
    """
    words: dict[str, Any] = {"own": organisation_id, "rows": rows, "now": unit.now_ms, "far": _FAR}
    numbers = _NUMBERS.format(rows=rows)
    unit.connection.execute("BEGIN")
    for sql in _FILL:
        unit.connection.execute(sql.format(numbers=numbers, **words))
    unit.connection.execute("COMMIT")
    unit.connection.execute("ANALYZE")
