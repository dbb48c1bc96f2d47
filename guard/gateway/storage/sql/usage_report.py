"""Usage summed by group: from the rows of quarter hours, and from events where a time cuts one."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Sequence
from typing import Any, Final

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.usage import DAY_MS, HOUR_MS, QUARTER_MS, pieces
from guard.gateway.domain.windows import UTC, zone_of
from guard.gateway.unit.connection import Connection
from guard.gateway.unit.rows import ORGANISATIONS
from guard.gateway.unit.state import IN_DOUBT
from guard.gateway.unit.usage import BY_EVENT

TOOL_NAME: Final = "CASE type WHEN 'tool' THEN json_extract(data, '$.tool_name') END"
COLUMNS: Final = {"workflow": "workflow_id", "agent": "agent", "chain": "chain_id",
                  "user": "user_id", "key": "key_id", "model": "model",
                  "run": "run_id", "tool": TOOL_NAME}  # fmt: skip
"""The column of an event that names its scope, by kind; a tool's name is in the event's data."""

_BY_TIME: Final = {
    "model": "nullif(model, '')",
    "provider": "nullif(provider, '')",
    "type": "type",
    "hour": f"at_ms - at_ms % {HOUR_MS}",
    "day": f"at_ms - at_ms % {DAY_MS}",
    "quarter": f"at_ms - at_ms % {QUARTER_MS}",
    "total": "NULL",
}
"""Groups by which an organisation's rows are divided, and the expression for each."""

OF_KEYS: Final = {"team": "team", "person": "person"}
"""Groups by which an organisation's keys are divided, and the column of a key for each."""

_TIMES: Final = {"hour": "%Y-%m-%dT%H:00Z", "day": "%Y-%m-%d", "quarter": ""}
_NUMBERS: Final = (
    "events, llm_calls, tool_calls, input_tokens, output_tokens, cost_nanousd, unpriced,"
    " doubt_nanousd"
)
SUMS: Final = ", ".join(
    f"CAST(coalesce(sum({name}), 0) AS BIGINT)" for name in _NUMBERS.split(", ")
)
_SUMS_AS: Final = ", ".join(
    f"CAST(coalesce(sum({name}), 0) AS BIGINT) AS {name}" for name in _NUMBERS.split(", ")
)
_COST: Final = 5
OF_EVENTS: Final = (
    "1 AS events, CASE type WHEN 'llm' THEN 1 ELSE 0 END AS llm_calls,"
    " CASE type WHEN 'tool' THEN 1 ELSE 0 END AS tool_calls, input_tokens, output_tokens,"
    " cost_nanousd, CASE WHEN flags LIKE '%unpriced%' THEN 1 ELSE 0 END AS unpriced,"
    f" CASE WHEN flags LIKE '%{IN_DOUBT}%' THEN cost_nanousd ELSE 0 END AS doubt_nanousd"
)
"""The numbers of an event as those of a row."""

_PARTS: Final = "coalesce(model, '') AS model, coalesce(provider, '') AS provider, type"
_CHARGED: Final = (
    "events INDEXED BY events_charged WHERE organisation_id = ? AND charged_at_ms >= ?"
    " AND charged_at_ms < ?"
)
_WITHIN: Final = (
    "usage WHERE organisation_id = ? AND scope_kind = ? AND size_ms = ? AND start_ms >= ?"
    " AND start_ms < ?"
)


def usage(
    connection: Connection,
    organisation_id: str,
    group_by: str,
    since_ms: int,
    until_ms: int,
    limit: int,
) -> list[records.UsageRow]:
    """Return usage summed by group, most expensive first, and of what costs the same most used.

    Runs and chains have no quarter hours, so those of a time are read from its events.
    """
    with connection.snapshot():  # all queries see the same rows and the same events
        zone = _zone(connection, organisation_id) if group_by == "day" else UTC
        if zone != UTC:
            rows = _days(connection, organisation_id, zone, since_ms, until_ms, limit)
        elif group_by in _BY_TIME:
            rows = _divided(connection, organisation_id, group_by, since_ms, until_ms, limit)
        else:
            rows = _scopes(connection, organisation_id, group_by, since_ms, until_ms, limit)
    return [usage_row(_shown(group_by, group), numbers) for group, *numbers in rows]


def usage_row(
    group: str | None, numbers: Sequence[int], model: str | None = None
) -> records.UsageRow:
    """Return a row of a report, from ``SUMS``."""
    events, llm_calls, tool_calls, input_tokens, output_tokens, cost, unpriced, doubt = numbers
    uncertain = max(0, min(doubt, cost))
    return records.UsageRow(
        group=group, model=model, events=events, llm_calls=llm_calls, tool_calls=tool_calls,
        input_tokens=input_tokens, output_tokens=output_tokens, cost_nanousd=cost,
        cost_cents=wire.cents(cost), unpriced=unpriced, uncertain_nanousd=uncertain,
        uncertain_cents=wire.cents(uncertain),
    )  # fmt: skip


def _shown(group_by: str, group: Any) -> Any:
    """Return a group as the report names it; times are numbers in the store."""
    if group_by not in _TIMES or not isinstance(group, int):
        return group
    return dt.datetime.fromtimestamp(group / 1000, dt.UTC).strftime(_TIMES[group_by])


def is_all(since_ms: int, until_ms: int) -> bool:
    """Tell whether a time is all of it."""
    return since_ms == 0 and until_ms >= 2**53


def _source(
    organisation_id: str, kind: str, columns: str, of_event: str, since_ms: int, until_ms: int
) -> tuple[str, list[Any]]:
    """Return the rows of a kind in a time as a source for a query, and its arguments.

    Args:
        organisation_id: whose rows.
        kind: of the scopes.
        columns: of the table, besides the numbers.
        of_event: the same of an event.
        since_ms, until_ms: the time.
    """
    parts, arguments = [], []
    for size_ms, start_ms, end_ms in pieces(since_ms, until_ms, (QUARTER_MS,)):
        if size_ms:
            parts.append(f"SELECT {columns}, start_ms AS at_ms, {_NUMBERS} FROM {_WITHIN}")
            arguments += [organisation_id, kind, size_ms, start_ms, end_ms]
        else:
            parts.append(f"SELECT {of_event}, charged_at_ms AS at_ms, {OF_EVENTS} FROM {_CHARGED}")
            arguments += [organisation_id, start_ms, end_ms]
    return f"({' UNION ALL '.join(parts)}) parts", arguments


def _zone(connection: Connection, organisation_id: str) -> str:
    rows = connection.rows(f"{ORGANISATIONS.select()} WHERE organisation_id = ?", organisation_id)
    return ORGANISATIONS.read(rows[0]).settings.zone if rows else UTC


def _days(
    connection: Connection, organisation_id: str, zone: str, since_ms: int, until_ms: int,
    limit: int,
) -> list[Any]:  # fmt: skip
    """Return the dearest days of a zone, which are sums of quarter hours."""
    found: dict[str, list[int]] = {}
    quarters = _divided(connection, organisation_id, "quarter", since_ms, until_ms, 2**31)
    for at_ms, *numbers in quarters:
        day = dt.datetime.fromtimestamp(at_ms / 1000, zone_of(zone)).strftime(_TIMES["day"])
        found[day] = [*map(operator.add, found.get(day, [0] * len(numbers)), numbers)]
    dearest = sorted(found.items(), key=lambda each: (-each[1][_COST], each[0]))
    return [(day, *numbers) for day, numbers in dearest[:limit]]


def _divided(
    connection: Connection, organisation_id: str, group_by: str, since_ms: int, until_ms: int,
    limit: int,
) -> list[Any]:  # fmt: skip
    if since_ms >= until_ms:
        return []
    columns = "model, provider, type"
    if is_all(since_ms, until_ms) and group_by not in _TIMES:
        source = f"(SELECT {columns}, 0 AS at_ms, {_NUMBERS} FROM {_WITHIN}) parts"
        arguments: list[Any] = [organisation_id, "organisation", 0, 0, 1]
    else:
        source, arguments = _source(
            organisation_id, "organisation", columns, _PARTS, since_ms, until_ms
        )
    return connection.rows(
        f"SELECT {_BY_TIME[group_by]} AS grp, {SUMS} FROM {source}"
        f" GROUP BY grp ORDER BY {_COST + 2} DESC, grp NULLS FIRST LIMIT ?",
        *arguments, limit,
    )  # fmt: skip


def _scopes(
    connection: Connection, organisation_id: str, kind: str, since_ms: int, until_ms: int,
    limit: int,
) -> list[Any]:  # fmt: skip
    """Return the dearest scopes of a kind; what belongs to none of them is a group as well."""
    if since_ms >= until_ms:
        return []
    attribute = OF_KEYS.get(kind)
    kind = "key" if attribute else kind
    nobody = f"nullif({COLUMNS[kind]}, '') AS scope_id"
    if is_all(since_ms, until_ms):
        source = f"(SELECT nullif(scope_id, '') AS scope_id, {_NUMBERS} FROM {_WITHIN}) parts"
        arguments: list[Any] = [organisation_id, kind, 0, 0, 1]
    elif kind in BY_EVENT:
        source = f"(SELECT {nobody}, {OF_EVENTS} FROM {_CHARGED}) parts"
        arguments = [organisation_id, since_ms, until_ms]
    else:
        source, arguments = _source(organisation_id, kind, "scope_id", nobody, since_ms, until_ms)
    if attribute:
        source = (
            f"(SELECT nullif(k.{attribute}, '') AS scope_id, {_NUMBERS} FROM {source}"
            " LEFT JOIN keys k ON k.key_id = parts.scope_id) parts"
        )
    # One walk for both: the groups, and what they come to together.
    nobody_is = "NULL" if kind in BY_EVENT else "NOT NULL"
    rows = connection.rows(
        f"WITH by_scope AS (SELECT scope_id AS grp, {_SUMS_AS} FROM {source} GROUP BY grp)"
        " SELECT * FROM (SELECT 0 AS is_sum, g.* FROM by_scope g WHERE grp IS NOT NULL"
        " AND events > 0 ORDER BY cost_nanousd DESC, events DESC, grp LIMIT ?) dearest UNION ALL"
        f" SELECT 1, NULL, {SUMS} FROM by_scope WHERE grp IS {nobody_is}",
        *arguments, limit,
    )  # fmt: skip
    found = [tuple(row[1:]) for row in rows if not row[0]]
    (rest,) = (tuple(row[2:]) for row in rows if row[0])
    if kind not in BY_EVENT:
        if not is_all(since_ms, until_ms):
            since_ms = max(since_ms, kept_since_ms(connection, organisation_id, kind))
        total = _divided(connection, organisation_id, "total", since_ms, until_ms, 1)
        of_all = total[0][1:] if total else rest
        rest = tuple(each - own for each, own in zip(of_all, rest, strict=True))
    if rest[0]:
        found.append((None, *rest))
    found.sort(key=lambda row: (-row[_COST + 1], -row[1], row[0] is not None, row[0] or ""))
    return found[:limit]


def kept_since_ms(connection: Connection, organisation_id: str, kind: str) -> int:
    """Return when the oldest quarter hour began that retention has left of the rows of a kind."""
    # Every event has a key, so the rows of keys reach as far back as those of any other kind.
    rows = connection.rows(
        "SELECT coalesce(min(start_ms), 0) FROM usage WHERE organisation_id = ?"
        f" AND scope_kind = ? AND size_ms = {QUARTER_MS}",
        organisation_id, "workflow" if kind == "workflow" else "key",
    )  # fmt: skip
    return int(rows[0][0])
