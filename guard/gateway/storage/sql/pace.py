"""What a scope has used lately, for a forecast of when its budget is used up."""

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
"""Events that are not summed yet, as many as are looked at."""

_SUMS: Final = (
    "sum(cost_nanousd), sum(input_tokens + output_tokens),"
    " sum(CASE WHEN type IN ('llm', 'tool') THEN {count} ELSE 0 END)"
)


def used_lately(
    reading: Connection, now_ms: int, organisation_id: str, kind: ScopeKind, scope_id: str
) -> list[usage.UsedLately]:
    """Return what a scope has used in each hour of the last day, oldest first.

    Hours without usage are left out. It is empty for tags, of which nothing is summed, and for
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
    column = COLUMNS[kind]
    return _hours(
        reading.rows(
            "SELECT hour_ms, sum(cost), sum(tokens), sum(calls) FROM ("  # noqa: S608 (constants of this module)
            "SELECT hour_ms, cost_nanousd AS cost, input_tokens + output_tokens AS tokens,"
            " llm_calls + tool_calls AS calls FROM scope_hours WHERE organisation_id = ?"
            " AND scope_kind = ? AND hour_ms >= ? AND hour_ms <= ? AND scope_id = ? UNION ALL"
            f" SELECT charged_at_ms - charged_at_ms % {usage.HOUR_MS}, cost_nanousd,"
            " input_tokens + output_tokens, CASE WHEN type IN ('llm', 'tool') THEN 1 ELSE 0 END"
            f" FROM (SELECT * FROM events WHERE event_seq > {HOURS.summed()}"
            f" ORDER BY event_seq LIMIT {_TAIL_MAX}) tail"
            f" WHERE organisation_id = ? AND {column} = ? AND charged_at_ms >= ?) parts"
            " GROUP BY hour_ms ORDER BY hour_ms",
            organisation_id, kind, since_ms, now_ms, scope_id,
            organisation_id, scope_id, since_ms,
        )
    )  # fmt: skip


def _hours(rows: Sequence[Any]) -> list[usage.UsedLately]:
    return [
        usage.UsedLately(since_ms=hour, cost_nanousd=cost, tokens=tokens, calls=calls)
        for hour, cost, tokens, calls in rows
    ]
