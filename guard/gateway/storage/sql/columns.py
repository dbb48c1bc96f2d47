"""The columns of rows that are read whole, in the order in which :mod:`.rows` takes them.

They are named one by one, never by a star: a newer gateway adds columns to tables while older ones
read them, and the server refuses a prepared query whose columns have changed.
"""

from __future__ import annotations

from typing import Final, LiteralString

COLUMNS: Final[dict[str, LiteralString]] = {
    "organisations": "organisation_id name created_at_ms settings",
    "keys": (
        "key_id organisation_id role name prefix key_hash workflow_id hmac_secret created_at_ms"
        " expires_at_ms revoked_at_ms"
    ),
    "operators": (
        "operator_id name organisation_id password_hash created_at_ms changed_at_ms operator_role"
    ),
    "budgets": (
        'budget_id organisation_id scope_kind scope_id "window" limit_nanousd mode epsilon_nanousd'
        " thresholds version created_at_ms updated_at_ms counts on_exhausted ask_ms"
        " wind_down_percent"
    ),
    "balances": (
        "balance_id budget_id scope_id period_start_ms ends_ms opening committed reserved overspend"
        " authorized_max level exhausted leases refused_nanousd"
    ),
    "reservations": (
        "reservation_id organisation_id key_id call_id balance_ids amount held created_at_ms"
        " expires_at_ms spent state basis workflow_id run_id chain_id agent model function user_id"
        " renewed under_way closing metered"
    ),
    "approvals": (
        "approval_id organisation_id key_id call_id subject status tool_name function workflow_id"
        " run_id agent requested_at_ms deadline_ms answered_at_ms answered_by reason note"
        " present_until_ms user_id arguments_digest"
    ),
    "webhooks": (
        "webhook_id organisation_id url types secret enabled created_at_ms channel_kind"
        " channel_options"
    ),
    "audit": "seq at_ms organisation_id actor action target details prev_hash hash",
}
"""By table. A column is added at the end."""


def columns(table: str, alias: LiteralString = "") -> LiteralString:
    """Return the columns of a table's rows, for a query in which it may have another name."""
    dot: LiteralString = f"{alias}." if alias else ""
    return ", ".join(f"{dot}{name}" for name in COLUMNS[table].split())


def _select(table: LiteralString) -> LiteralString:
    """Return the beginning of a query of whole rows."""
    return f"SELECT {columns(table)} FROM {table}"  # noqa: S608 (names of this module)


SELECT_ORGANISATIONS: Final = _select("organisations")
SELECT_KEYS: Final = _select("keys")
SELECT_OPERATORS: Final = _select("operators")
SELECT_BUDGETS: Final = _select("budgets")
SELECT_BALANCES: Final = _select("balances")
SELECT_RESERVATIONS: Final = _select("reservations")
SELECT_APPROVALS: Final = _select("approvals")
SELECT_WEBHOOKS: Final = _select("webhooks")
SELECT_AUDIT: Final = _select("audit")

BALANCES_AND_BUDGETS: Final = f"{columns('balances', 'b')}, {columns('budgets', 'u')}"
BALANCE_COLUMNS: Final = len(COLUMNS["balances"].split())
"""Where the columns of another table begin that are read beside a balance's."""
