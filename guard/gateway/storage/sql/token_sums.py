"""How many tokens a scope has used in a period, for a budget that is set in the middle of it.

For all time it is read from one row. For a period it is added up from the hours or days that
reports use, and the events that are not summed yet. It is needed in a budget's first period only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from guard.core.wire import NANOUSD_MAX
from guard.gateway.domain.windows import DAY_MS, HOUR_MS
from guard.gateway.storage.sql.scope_days import DAYS, HOURS, KINDS
from guard.gateway.storage.sql.scope_totals import COLUMNS

Rows = Callable[..., list[Any]]

_TOKENS: Final = "CAST(coalesce(sum(input_tokens + output_tokens), 0) AS BIGINT)"


def used(
    rows: Rows,
    organisation_id: str,
    kind: str,
    scope_id: str,
    start_ms: int,
    end_ms: int | None,
) -> int:
    """Return the tokens of stored events; 0 for models by period, which are not summed.

    Args:
        rows: runs a query.
        organisation_id: whose scope it is.
        kind: which kind of scope.
        scope_id: the concrete id, empty for the organisation.
        start_ms: when the period begins.
        end_ms: when it ends; ``None`` for the one that never does.
    """
    if end_ms is None:
        found = rows(
            f"SELECT {_TOKENS} FROM scope_totals"  # noqa: S608 (constants of this module)
            " WHERE organisation_id = ? AND scope_kind = ? AND scope_id = ?",
            organisation_id, kind, scope_id,
        )  # fmt: skip
    elif kind == "organisation":
        size_ms = HOUR_MS if end_ms - start_ms == HOUR_MS else DAY_MS
        found = rows(
            f"SELECT {_TOKENS} FROM organisation_rollups WHERE organisation_id = ?"  # noqa: S608 (constants of this module)
            " AND size_ms = ? AND bucket_ms >= ? AND bucket_ms < ?",
            organisation_id, size_ms, start_ms, end_ms,
        )  # fmt: skip
    elif kind in KINDS:
        sums = HOURS if end_ms - start_ms <= DAY_MS else DAYS
        found = rows(
            f"SELECT {_TOKENS} FROM {sums.table} WHERE organisation_id = ? AND scope_kind = ?"  # noqa: S608 (constants of this module)
            f" AND scope_id = ? AND {sums.begin} >= ? AND {sums.begin} < ? UNION ALL"
            f" SELECT {_TOKENS} FROM events NOT INDEXED WHERE event_seq > {sums.summed()}"
            f" AND organisation_id = ? AND {COLUMNS[kind]} = ?"
            " AND charged_at_ms >= ? AND charged_at_ms < ?",
            organisation_id, kind, scope_id, start_ms, end_ms,
            organisation_id, scope_id, start_ms, end_ms,
        )  # fmt: skip
    else:
        return 0
    return min(sum(int(row[0]) for row in found), NANOUSD_MAX)
