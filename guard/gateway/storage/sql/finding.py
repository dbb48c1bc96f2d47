"""Queries of the search box, and of the page of one scope. Every query is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from guard.gateway.domain import records
from guard.gateway.domain.found import Found, ScopeEvents, Use
from guard.gateway.domain.spend_series import TAG
from guard.gateway.storage.sql.admin_rows import (
    SELECT_BALANCE_VIEWS,
    SELECT_RUNS,
    SELECT_WORKFLOWS,
    balance_view_from_row,
)
from guard.gateway.storage.sql.dashboard import LAST_ID, SCAN_MAX, has_tag
from guard.gateway.storage.sql.usage_report import COLUMNS
from guard.gateway.unit.connection import Connection
from guard.gateway.unit.rows import EVENTS

USES_MAX: Final = 5000
"""How many of a scope's newest events are summed by workflow and model."""

_NEWEST: Final = "ORDER BY event_seq DESC LIMIT ?"

_CALLS: Final = (
    "SELECT call_id, max(workflow_id), max(run_id), max(received_at_ms), sum(cost_nanousd)"
    " FROM events WHERE organisation_id = ? AND call_id >= ? AND call_id < ?"
    " GROUP BY call_id ORDER BY call_id LIMIT ?"
)
_REFUSED_CALLS: Final = (
    "SELECT call_id, max(workflow_id), max(run_id), max(at_ms), 0"
    " FROM refusals WHERE organisation_id = ? AND call_id >= ? AND call_id < ?"
    " GROUP BY call_id ORDER BY call_id LIMIT ?"
)


def find(connection: Connection, organisation_id: str, text: str, limit: int) -> list[Found]:
    """Return the ids that begin with a text: up to a number of each kind, in order."""
    if not text:
        return []
    within = organisation_id, text, text + LAST_ID
    found = [
        Found(kind="workflow", id=row[0], seen_ms=row[2], cost_nanousd=row[3])
        for row in connection.rows(
            f"{SELECT_WORKFLOWS} AND scope_id >= ? AND scope_id < ? ORDER BY scope_id LIMIT ?",
            *within, limit,
        )
    ]  # fmt: skip
    found += [
        Found(kind="run", id=row[0], workflow_id=row[1], seen_ms=row[3], cost_nanousd=row[4])
        for row in connection.rows(
            f"{SELECT_RUNS} AND scope_id >= ? AND scope_id < ? ORDER BY scope_id LIMIT ?",
            *within, limit,
        )
    ]  # fmt: skip
    found += _calls(connection, within, limit)
    kinds: tuple[tuple[Any, str, str], ...] = (
        ("user", "user", "scope_id"), ("agent", "agent", "scope_id"),
        ("model", "organisation", "model"),
    )  # fmt: skip
    for kind, stored, column in kinds:
        found += [
            Found(kind=kind, id=scope_id, cost_nanousd=cost)
            for scope_id, cost in connection.rows(
                f"SELECT {column} AS id, CAST(sum(cost_nanousd) AS BIGINT) FROM usage"
                " WHERE organisation_id = ? AND scope_kind = ? AND size_ms = 0 AND start_ms = 0"
                f" AND {column} >= ? AND {column} < ? GROUP BY id ORDER BY id LIMIT ?",
                organisation_id, stored, *within[1:], limit,
            )
        ]  # fmt: skip
    return found


def _calls(connection: Connection, within: tuple[str, ...], limit: int) -> list[Found]:
    """Return calls by their own ids, also refused ones; and events by theirs."""
    calls: dict[str, Found] = {}
    for sql in (_CALLS, _REFUSED_CALLS):
        for row in connection.rows(sql, *within, limit):
            calls.setdefault(row[0], _call("call", row))
    events = connection.rows(
        "SELECT event_id, workflow_id, run_id, received_at_ms, cost_nanousd FROM events"
        " WHERE organisation_id = ? AND event_id >= ? AND event_id < ? ORDER BY event_id LIMIT ?",
        *within, limit,
    )  # fmt: skip
    return [
        *sorted(calls.values(), key=lambda each: each.id)[:limit],
        *(_call("event", row) for row in events),
    ]


def _call(kind: Any, row: Any) -> Found:
    return Found(kind=kind, id=row[0], workflow_id=row[1], run_id=row[2], seen_ms=row[3],
                 cost_nanousd=row[4])  # fmt: skip


def events_of_scope(
    connection: Connection, organisation_id: str, group_by: str, scope_id: str, limit: int
) -> ScopeEvents:
    """Return the newest events of one scope, and their workflows, runs and models.

    A user's are found by an index; those of others among the newest ``SCAN_MAX`` events.
    """
    where, arguments = _where(organisation_id, group_by, scope_id)
    groups = connection.rows(
        "SELECT workflow_id, model, sum(cost_nanousd) AS cost,"
        " sum(CASE type WHEN 'llm' THEN 1 ELSE 0 END), count(*), min(received_at_ms)"
        " FROM (SELECT workflow_id, model, cost_nanousd, type, received_at_ms"
        f" FROM {where} {_NEWEST}) newest"
        " GROUP BY workflow_id, model ORDER BY cost DESC, workflow_id, model",
        *arguments, USES_MAX,
    )  # fmt: skip
    counted = sum(row[4] for row in groups)
    rows = connection.rows(f"SELECT {EVENTS.names()} FROM {where} {_NEWEST}", *arguments, limit)
    scanned = group_by != "user" and _has_more(connection, organisation_id)
    return ScopeEvents(
        events=[*map(EVENTS.read, rows)], uses=[Use(*row[:4]) for row in groups],
        counted=counted, since_ms=min((row[5] for row in groups), default=None),
        is_cut=counted == USES_MAX or scanned,
    )  # fmt: skip


def _where(organisation_id: str, group_by: str, scope_id: str) -> tuple[str, list[Any]]:
    """Return the events of a scope as a source for a query, and its arguments."""
    if group_by == "user":
        return "events WHERE organisation_id = ? AND user_id = ?", [organisation_id, scope_id]
    newest = f"(SELECT * FROM events WHERE organisation_id = ? {_NEWEST}) newest"
    if not group_by.startswith(TAG):
        return (
            f"{newest} WHERE {COLUMNS[group_by]} = ?",
            [organisation_id, SCAN_MAX, scope_id],
        )
    condition, pairs = has_tag(group_by.removeprefix(TAG), scope_id)
    return f"{newest} WHERE {condition}", [organisation_id, SCAN_MAX, *pairs]


def _has_more(connection: Connection, organisation_id: str) -> bool:
    rows = connection.rows(
        "SELECT 1 FROM events WHERE organisation_id = ? ORDER BY event_seq DESC LIMIT 1 OFFSET ?",
        organisation_id, SCAN_MAX,
    )  # fmt: skip
    return bool(rows)


def balances_of(
    connection: Connection, now_ms: int, organisation_id: str,
    scopes: Sequence[tuple[records.ScopeKind, str]], limit: int,
) -> list[records.BalanceView]:  # fmt: skip
    """Return the balances that scopes have in the current windows, the fullest first."""
    found: list[records.BalanceView] = []
    for kind, scope_id in scopes:
        rows = connection.rows(
            f"{SELECT_BALANCE_VIEWS} budgets u JOIN balances b USING (budget_id)"
            " WHERE u.organisation_id = ? AND u.scope_kind = ?"
            " AND b.scope_id = ? AND coalesce(b.ends_ms, ?) > ? LIMIT ?",
            organisation_id, kind, scope_id, 2**62, now_ms, limit,
        )  # fmt: skip
        found += [balance_view_from_row(row) for row in rows]
    found.sort(key=lambda b: -(b.committed + b.reserved) / max(b.limit, 1))
    return found[:limit]
