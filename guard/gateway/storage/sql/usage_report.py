"""Usage summed by group: from running totals and rollups, and from events only where necessary."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.usage import DAY_MS, HOUR_MS, pieces
from guard.gateway.storage.sql.connection import Connection
from guard.gateway.storage.sql.scope_days import usage_between
from guard.gateway.storage.sql.uncertain import of_groups

_BY_TIME: Final = {
    "model": "nullif(model, '')",
    "provider": "nullif(provider, '')",
    "type": "type",
    "hour": f"at_ms - at_ms % {HOUR_MS}",
    "day": f"at_ms - at_ms % {DAY_MS}",
    "total": "NULL",
}
"""Groups that an organisation's rollups know, and the expression for each."""

_TIMES: Final = {"hour": "%Y-%m-%dT%H:00Z", "day": "%Y-%m-%d"}

_SUMS: Final = (
    "coalesce(sum(events), 0), coalesce(sum(CASE type WHEN 'llm' THEN events ELSE 0 END), 0),"
    " coalesce(sum(CASE type WHEN 'tool' THEN events ELSE 0 END), 0),"
    " coalesce(sum(input_tokens), 0),"
    " coalesce(sum(output_tokens), 0), coalesce(sum(cost_nanousd), 0) AS cost,"
    " coalesce(sum(unpriced), 0)"
)
_ROLLUPS: Final = (
    "SELECT bucket_ms AS at_ms, type, provider, model, events, cost_nanousd, input_tokens,"
    " output_tokens, unpriced FROM organisation_rollups WHERE organisation_id = ? AND size_ms = ?"
    " AND bucket_ms >= ? AND bucket_ms < ?"
)
_EVENTS: Final = (
    "SELECT charged_at_ms AS at_ms, type, coalesce(provider, '') AS provider,"
    " coalesce(model, '') AS model, 1 AS events, cost_nanousd, input_tokens, output_tokens,"
    " CASE WHEN flags LIKE '%unpriced%' THEN 1 ELSE 0 END AS unpriced FROM events"
    " INDEXED BY events_charged WHERE organisation_id = ?"
    " AND charged_at_ms >= ? AND charged_at_ms < ?"
)


def usage(
    reading: Connection,
    organisation_id: str,
    group_by: str,
    since_ms: int,
    until_ms: int,
    limit: int,
) -> list[records.UsageRow]:
    """Return usage summed by group, most expensive first.

    Time, type, model and provider come from the organisation's rollups, plus the events of the
    partial hours at both ends. Workflows, runs, agents, chains, users and keys come from their
    running totals where the whole history is asked for, else from their days, plus the events of
    the partial days at both ends.
    """
    if group_by in _BY_TIME:
        rows = _by_time(reading, organisation_id, group_by, since_ms, until_ms, limit)
    elif since_ms == 0 and until_ms >= 2**53:
        rows = _in_all(reading, organisation_id, group_by, limit)
    else:
        rows = usage_between(reading, organisation_id, group_by, since_ms, until_ms, limit)
    groups = [row[0] for row in rows]
    doubts = of_groups(reading, organisation_id, group_by, groups, since_ms, until_ms)
    return [_row(group_by, row, max(0, min(doubts.get(row[0], 0), row[6]))) for row in rows]


def _row(group_by: str, row: Any, uncertain: int) -> records.UsageRow:
    return records.UsageRow(
        group=_shown(group_by, row[0]), events=row[1], llm_calls=row[2], tool_calls=row[3],
        input_tokens=row[4], output_tokens=row[5], cost_nanousd=row[6],
        cost_cents=wire.cents(row[6]), unpriced=row[7], uncertain_nanousd=uncertain,
        uncertain_cents=wire.cents(uncertain),
    )  # fmt: skip


def _shown(group_by: str, group: Any) -> Any:
    """Return a group as the report names it; times are numbers in the store."""
    if group_by not in _TIMES or group is None:
        return group
    return dt.datetime.fromtimestamp(group / 1000, dt.UTC).strftime(_TIMES[group_by])


def _by_time(
    reading: Connection, organisation_id: str, group_by: str, since_ms: int, until_ms: int,
    limit: int,
) -> list[Any]:  # fmt: skip
    sizes = (HOUR_MS,) if group_by == "hour" else (DAY_MS, HOUR_MS)
    parts, arguments = [], []
    for size_ms, start_ms, end_ms in pieces(since_ms, until_ms, sizes):
        parts.append(_ROLLUPS if size_ms else _EVENTS)
        arguments += [organisation_id, *([size_ms] if size_ms else []), start_ms, end_ms]
    if not parts:
        return []
    return reading.rows(
        f"SELECT {_BY_TIME[group_by]} AS grp, {_SUMS} FROM ({' UNION ALL '.join(parts)}) parts"  # noqa: S608 (constant text)
        " GROUP BY grp ORDER BY cost DESC, grp NULLS FIRST LIMIT ?",
        *arguments, limit,
    )  # fmt: skip


def _in_all(reading: Connection, organisation_id: str, kind: str, limit: int) -> list[Any]:
    return reading.rows(
        "SELECT CASE scope_kind WHEN ? THEN scope_id END AS grp, events, llm_calls, tool_calls,"
        " input_tokens, output_tokens, cost_nanousd, unpriced FROM scope_totals"
        " WHERE organisation_id = ? AND scope_kind IN (?, ?) AND events > 0"
        " ORDER BY cost_nanousd DESC, grp NULLS FIRST LIMIT ?",
        kind, organisation_id, kind, f"no {kind}", limit,
    )  # fmt: skip
