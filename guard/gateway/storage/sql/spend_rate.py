"""The recent usage of a scope, for a forecast of when its budget is used up."""

from __future__ import annotations

from typing import Final

from guard.gateway.domain import usage
from guard.gateway.domain.records import ScopeKind
from guard.gateway.unit.connection import Connection
from guard.gateway.unit.usage import BY_EVENT, OF_ONE, TIMES, place_of

_LATELY_MS: Final = usage.DAY_MS
_SUMS: Final = (
    f"start_ms - start_ms % {usage.HOUR_MS} AS hour_ms, CAST(sum(cost_nanousd) AS BIGINT),"
    " CAST(sum(input_tokens + output_tokens) AS BIGINT),"
    " CAST(sum(llm_calls + tool_calls) AS BIGINT)"
)
_GROUPED: Final = "GROUP BY hour_ms ORDER BY hour_ms"


def used_lately(
    connection: Connection, now_ms: int, organisation_id: str, kind: ScopeKind, scope_id: str
) -> list[usage.UsedLately]:
    """Return the usage of a scope in each hour of the last day, oldest first.

    Hours without usage are left out. The list is empty for chains, which have no hours, and for
    keys, whose rows lack the keys below them.
    """
    if kind in BY_EVENT or kind == "key":
        return []
    since_ms = now_ms - _LATELY_MS
    since_ms -= since_ms % usage.HOUR_MS
    if kind in ("organisation", "model"):
        rows = connection.rows(
            f"SELECT {_SUMS} FROM usage WHERE organisation_id = ? AND scope_kind = 'organisation'"
            f" AND size_ms = {usage.QUARTER_MS} AND start_ms >= ? AND start_ms <= ?"
            f"{'' if kind == 'organisation' else ' AND model = ?'} {_GROUPED}",
            organisation_id, since_ms, now_ms, *([] if kind == "organisation" else [scope_id]),
        )  # fmt: skip
    else:
        place = place_of(kind, scope_id)
        rows = connection.rows(
            f"{TIMES} SELECT {_SUMS}{OF_ONE} {_GROUPED}",
            organisation_id, *place, since_ms, now_ms + 1,
        )  # fmt: skip
    return [
        usage.UsedLately(since_ms=hour, cost_nanousd=cost, tokens=tokens, calls=calls)
        for hour, cost, tokens, calls in rows
    ]
