"""Spend over time by one of ``GROUPS`` or a tag: from quarter hours, never from events."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from guard.gateway.domain.spend_series import SpendOverTime, SpendSeries, rest
from guard.gateway.domain.usage import QUARTER_MS
from guard.gateway.storage.sql.usage_report import OF_KEYS
from guard.gateway.unit.connection import Connection
from guard.gateway.unit.usage import TAG

STEPS_MAX: Final = 400
_IN_TIME: Final = (
    f"FROM usage WHERE organisation_id = ? AND scope_kind = ? AND size_ms = {QUARTER_MS}"
    " AND start_ms >= ? AND start_ms < ?"
)
_NAMES_MAX: Final = 500
"""Scopes that one query names."""


class _Steps:
    """Steps of time, which begin and end with quarter hours."""

    def __init__(self, edges_ms: Sequence[int]) -> None:
        if not 2 <= len(edges_ms) <= STEPS_MAX + 1 or any(edge % QUARTER_MS for edge in edges_ms):
            raise ValueError("steps are whole quarter hours, and not too many")
        self.edges_ms = edges_ms
        self.since_ms, self.until_ms = edges_ms[0], edges_ms[-1]

    def series(self, scope_id: str | None, cells: Iterable[Sequence[int]]) -> SpendSeries:
        """Sum the quarter hours of one scope: when each began, its cost, requests and doubt."""
        found = SpendSeries(
            scope_id=scope_id,
            costs_nanousd=[0] * (len(self.edges_ms) - 1),
            llm_calls=[0] * (len(self.edges_ms) - 1),
        )
        for at_ms, cost, calls, doubt in cells:
            at = bisect.bisect_right(self.edges_ms, at_ms) - 1
            found.costs_nanousd[at] += cost
            found.llm_calls[at] += calls
            found.uncertain_nanousd += doubt
        found.uncertain_nanousd = max(0, min(found.uncertain_nanousd, found.cost_nanousd))
        return found


def spend_by(
    connection: Connection, organisation_id: str, group_by: str, edges_ms: Sequence[int], limit: int
) -> SpendOverTime:
    """Return spend over time, divided by the dearest scopes of one kind and all others.

    Args:
        connection: where to read.
        organisation_id: the tenant.
        group_by: one of ``GROUPS``, or a tag.
        edges_ms: where steps begin, and the last one ends; whole quarter hours.
        limit: how many scopes.
    """
    steps = _Steps(edges_ms)
    with connection.snapshot():
        total = steps.series(None, _cells(connection, organisation_id, steps))
        kind, column = _place(group_by)
        column = column or "scope_id"
        dearest = connection.rows(
            f"SELECT {column} AS grp, sum(cost_nanousd) AS cost {_IN_TIME}"
            " GROUP BY grp HAVING sum(cost_nanousd) > 0 ORDER BY cost DESC, grp LIMIT ?",
            organisation_id, kind, steps.since_ms, steps.until_ms, limit + 1,
        )  # fmt: skip
        names = [name for name, _ in dearest if name][:limit]
        series = _series(connection, organisation_id, group_by, steps, names)
    left = rest(total, series)
    return SpendOverTime(series=[*series, left] if left.cost_nanousd else series, total=total)


def spend_of(
    connection: Connection, organisation_id: str, group_by: str, scope_id: str,
    edges_ms: Sequence[int],
) -> SpendOverTime:  # fmt: skip
    """Return what one scope has cost over time."""
    (series,) = _series(connection, organisation_id, group_by, _Steps(edges_ms), [scope_id])
    return SpendOverTime(series=[series], total=series)


def spend_of_each(
    connection: Connection, organisation_id: str, group_by: str, scope_ids: Sequence[str],
    edges_ms: Sequence[int], limit: int,
) -> SpendOverTime:  # fmt: skip
    """Return what some scopes have cost over time, together and divided by the dearest of them.

    Args:
        connection: where to read.
        organisation_id: the tenant.
        group_by: their kind, one of ``GROUPS``, or a tag.
        scope_ids: of the scopes.
        edges_ms: where steps begin, and the last one ends; whole quarter hours.
        limit: how many are named; the others are one series.
    """
    steps, cells = _Steps(edges_ms), defaultdict[str, list[Any]](list)
    for name, *cell in _cells_of_all(connection, organisation_id, group_by, steps, scope_ids):
        cells[name].append(cell)
    total = steps.series(None, [cell for each in cells.values() for cell in each])
    found = [steps.series(name, own) for name, own in sorted(cells.items())]
    dearest = sorted(found, key=lambda each: -each.cost_nanousd)[:limit]
    left = rest(total, dearest)
    return SpendOverTime(series=[*dearest, left] if left.cost_nanousd else dearest, total=total)


def _place(group_by: str) -> tuple[str, str]:
    """Return the kind of the rows of a group, and what divides them if it is not their scope."""
    if group_by in OF_KEYS:
        column = OF_KEYS[group_by]
        return "key", f"(SELECT k.{column} FROM keys k WHERE k.key_id = usage.scope_id)"
    return ("organisation", "model") if group_by == "model" else (group_by, "")


def _cells(connection: Connection, organisation_id: str, steps: _Steps) -> list[Any]:
    return connection.rows(
        "SELECT start_ms, sum(cost_nanousd), sum(CASE type WHEN 'llm' THEN events ELSE 0 END),"
        f" sum(doubt_nanousd) {_IN_TIME} GROUP BY start_ms",
        organisation_id, "organisation", steps.since_ms, steps.until_ms,
    )  # fmt: skip


def _series(
    connection: Connection, organisation_id: str, group_by: str, steps: _Steps, names: Sequence[str]
) -> list[SpendSeries]:
    cells: dict[str, list[Any]] = defaultdict(list)
    for name, *cell in _cells_of_all(connection, organisation_id, group_by, steps, names):
        cells[name].append(cell)
    return [steps.series(name, cells[name]) for name in names]


def _cells_of_all(
    connection: Connection, organisation_id: str, group_by: str, steps: _Steps, names: Sequence[str]
) -> Iterator[Any]:
    """Yield the quarter hours of any number of scopes."""
    for start in range(0, len(names), _NAMES_MAX):
        some = names[start : start + _NAMES_MAX]
        yield from _cells_of(connection, organisation_id, group_by, steps, some)


def _cells_of(
    connection: Connection, organisation_id: str, group_by: str, steps: _Steps, names: Sequence[str]
) -> list[Any]:
    """Return the quarter hours of some scopes."""
    sums = "start_ms, sum(cost_nanousd), sum(llm_calls), sum(doubt_nanousd)"
    kind, column = _place(group_by)
    if column:
        return connection.rows(
            f"SELECT {column} AS grp, {sums} {_IN_TIME}"
            f" AND {column} IN ({', '.join('?' * len(names))}) GROUP BY grp, start_ms",
            organisation_id, kind, steps.since_ms, steps.until_ms, *names,
        )  # fmt: skip
    # Rows of a time hold all scopes, so those of a few are looked up one by one, from the
    # organisation's first use in the range on.
    ((first_ms,),) = connection.rows(
        f"SELECT min(start_ms) {_IN_TIME}",
        organisation_id, "organisation", steps.since_ms, steps.until_ms,
    )  # fmt: skip
    if first_ms is None:
        return []
    named = f"named(name) AS (VALUES {', '.join(['(?)'] * len(names))})"
    return connection.rows(
        "WITH RECURSIVE times(at_ms) AS (SELECT CAST(? AS BIGINT) UNION ALL"
        f" SELECT at_ms + {QUARTER_MS} FROM times WHERE at_ms + {QUARTER_MS} < ?), {named}"
        f" SELECT u.scope_id, {sums} FROM times CROSS JOIN named ON true CROSS JOIN usage u"
        f" ON u.organisation_id = ? AND u.scope_kind = ? AND u.size_ms = {QUARTER_MS}"
        " AND u.start_ms = times.at_ms AND u.scope_id = named.name GROUP BY u.scope_id, start_ms",
        first_ms, steps.until_ms, *names, organisation_id, group_by,
    )  # fmt: skip


def tag_names(connection: Connection, organisation_id: str, limit: int) -> list[str]:
    """Return the names of tags that were used, in their order."""
    found: list[str] = []
    kind: str | None = TAG
    while len(found) < limit:
        (kind,) = connection.rows(  # the next one, by the index: there are far more rows than tags
            "SELECT min(scope_kind) FROM usage WHERE organisation_id = ? AND scope_kind > ?"
            " AND scope_kind < 'tag;'",
            organisation_id, kind,
        )[0]  # fmt: skip
        if kind is None:
            break
        found.append(kind.removeprefix(TAG))
    return found
