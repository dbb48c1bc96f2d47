"""The recent usage of a scope, for a forecast of when its budget is used up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from guard.gateway.domain import usage
from guard.gateway.domain.records import ScopeKind
from guard.gateway.storage.sql.connection import Connection
from guard.gateway.storage.sql.dashboard import spend_over_time
from guard.gateway.storage.sql.scope_days import HOURS, KINDS
from guard.gateway.storage.sql.scope_totals import COLUMNS

_LATELY_MS: Final = usage.DAY_MS
_TAIL_MAX: Final = 20_000
"""How many of the events that are not summed yet are read."""

_SUMS: Final = (
    "sum(cost_nanousd), sum(input_tokens + output_tokens),"
    " sum(CASE WHEN type IN ('llm', 'tool') THEN {count} ELSE 0 END)"
)

# The sums are stored by hour, then by scope, so those of one scope are looked up hour by hour.
# Events that are not summed yet are added.
_OF_SCOPE: Final = (
    "SELECT period, sum(cost), sum(tokens), sum(calls) FROM ("  # noqa: S608 (constants of this module)
    "SELECT hour_ms AS period, cost_nanousd AS cost, input_tokens + output_tokens AS tokens,"
    " llm_calls + tool_calls AS calls FROM (WITH RECURSIVE times (at_ms) AS (SELECT ?3 UNION ALL"
    f" SELECT at_ms + {usage.HOUR_MS} FROM times WHERE at_ms + {usage.HOUR_MS} <= ?4)"
    " SELECT s.* FROM times CROSS JOIN scope_hours s ON s.organisation_id = ?1"
    " AND s.scope_kind = ?2 AND s.hour_ms = at_ms AND s.scope_id = ?5) hours UNION ALL"
    f" SELECT charged_at_ms - charged_at_ms % {usage.HOUR_MS}, cost_nanousd,"
    " input_tokens + output_tokens, CASE WHEN type IN ('llm', 'tool') THEN 1 ELSE 0 END"
    " FROM (SELECT organisation_id, charged_at_ms, cost_nanousd, input_tokens, output_tokens, type,"
    f" {{column}} AS scope_id FROM events WHERE event_seq > {HOURS.summed()}"
    f" ORDER BY event_seq LIMIT {_TAIL_MAX}) tail"
    " WHERE organisation_id = ?1 AND scope_id = ?5 AND charged_at_ms >= ?3) parts"
    " GROUP BY period ORDER BY period"
)


def used_lately(
    reading: Connection, now_ms: int, organisation_id: str, kind: ScopeKind, scope_id: str
) -> list[usage.UsedLately]:
    """Return the usage of a scope in each hour of the last day, oldest first.

    Hours without usage are left out. The list is empty for tags, which are not summed, and for
    keys, whose sums lack the keys below them.
    """
    since_ms = now_ms - _LATELY_MS
    since_ms -= since_ms % usage.HOUR_MS
    if kind in ("organisation", "workflow"):
        workflow_id = scope_id if kind == "workflow" else None
        points = spend_over_time(
            reading, organisation_id, usage.HOUR_MS, since_ms, now_ms + 1, usage.HOUR_MS,
            workflow_id,
        )  # fmt: skip
        return [
            usage.UsedLately(
                since_ms=point.start_ms, cost_nanousd=point.cost_nanousd,
                tokens=point.input_tokens + point.output_tokens,
                calls=point.llm_calls + point.tool_calls,
            )
            for point in points
        ]  # fmt: skip
    if kind == "model":
        return _hours(
            reading.rows(
                f"SELECT bucket_ms, {_SUMS.format(count='events')} FROM organisation_rollups"  # noqa: S608 (constants of this module)
                " WHERE organisation_id = ? AND size_ms = ? AND bucket_ms >= ? AND bucket_ms <= ?"
                " AND model = ? GROUP BY bucket_ms ORDER BY bucket_ms",
                organisation_id, usage.HOUR_MS, since_ms, now_ms, scope_id,
            )
        )  # fmt: skip
    if kind not in KINDS or kind == "key":
        return []
    return _hours(
        reading.rows(
            _OF_SCOPE.format(column=COLUMNS[kind]),
            organisation_id, kind, since_ms, now_ms, scope_id,
        )
    )  # fmt: skip


def _hours(rows: Sequence[Any]) -> list[usage.UsedLately]:
    return [
        usage.UsedLately(since_ms=hour, cost_nanousd=cost, tokens=tokens, calls=calls)
        for hour, cost, tokens, calls in rows
    ]
