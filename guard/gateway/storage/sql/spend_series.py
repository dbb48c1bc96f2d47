"""Spend over time by model, workflow, user, agent or tag: from sums, never from all events.

Steps of time begin and end with hours of UTC, so that the days of any time zone are whole hours.
Models and the organisation come from its rollups. Other scopes come from their sums by day and hour
and the events that are not summed yet: first the dearest are found, then only their hours are read.
"""

from __future__ import annotations

import bisect
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from guard.gateway.domain.spend_series import TAG, SpendOverTime, SpendSeries, rest
from guard.gateway.domain.usage import DAY_MS, HOUR_MS, pieces
from guard.gateway.storage.sql.connection import Connection
from guard.gateway.storage.sql.scope_days import BACKLOG_MAX, DAYS, HOURS, Sums, summed
from guard.gateway.storage.sql.scope_totals import COLUMNS
from guard.gateway.storage.sql.tag_sums import TAGS_FACT, pairs
from guard.gateway.storage.sql.uncertain import MODEL_USAGE, of_one, of_scopes

STEPS_MAX: Final = 400
_SUMS: Final = {DAY_MS: DAYS, HOUR_MS: HOURS}
_CALLS: Final = "CASE type WHEN 'llm' THEN events ELSE 0 END"


class _Cell(Struct):
    """What one scope has cost in one hour or day."""

    scope_id: str
    at_ms: int
    cost_nanousd: int
    llm_calls: int


class _Steps:
    """Steps of time, and which sums fit them."""

    def __init__(self, edges_ms: Sequence[int]) -> None:
        if not 2 <= len(edges_ms) <= STEPS_MAX + 1 or any(edge % HOUR_MS for edge in edges_ms):
            raise ValueError("steps are whole hours, and not too many")
        self.edges_ms = edges_ms
        self.since_ms, self.until_ms = edges_ms[0], edges_ms[-1]
        self.size_ms = HOUR_MS if any(edge % DAY_MS for edge in edges_ms) else DAY_MS

    def __len__(self) -> int:
        return len(self.edges_ms) - 1

    def values(self) -> tuple[str, list[int]]:
        """Return the steps as a table for SQL, and its arguments."""
        ends = list(zip(self.edges_ms, self.edges_ms[1:], strict=False))
        places = ", ".join(["(?, ?)"] * len(ends))
        return f"steps(start_ms, end_ms) AS (VALUES {places})", [at for each in ends for at in each]

    def series(self, scope_id: str | None, cells: Sequence[_Cell]) -> SpendSeries:
        """Sum the cells of one scope."""
        costs, calls = [0] * len(self), [0] * len(self)
        for cell in cells:
            at = bisect.bisect_right(self.edges_ms, cell.at_ms) - 1
            costs[at] += cell.cost_nanousd
            calls[at] += cell.llm_calls
        return SpendSeries(scope_id=scope_id, costs_nanousd=costs, llm_calls=calls)


def _parts(since_ms: int, until_ms: int, now_ms: int) -> Iterator[tuple[int, Sums, int, int]]:
    """Divide a time so that few rows are read: a day has one where its hours have up to 24.

    Returns:
        Whether to add or to take away, which sums, and their beginning and end.
    """
    if until_ms > now_ms:  # after now there is nothing: the whole day has as much
        until_ms = -(-until_ms // DAY_MS) * DAY_MS
    day_ms = since_ms - since_ms % DAY_MS
    if 0 < since_ms - day_ms < DAY_MS // 2 and day_ms + DAY_MS <= until_ms:
        yield -1, HOURS, day_ms, since_ms
        since_ms = day_ms
    for size_ms, start_ms, end_ms in pieces(since_ms, until_ms, (DAY_MS, HOUR_MS)):
        yield 1, _SUMS[size_ms], start_ms, end_ms


class _Scopes:
    """Where the spend of one kind of scope is read.

    Args:
        reading: where to read; inside a snapshot.
        organisation_id: the tenant.
        group_by: the kind of scope, or a tag.
    """

    def __init__(self, reading: Connection, organisation_id: str, group_by: str) -> None:
        self._reading = reading
        self._own = organisation_id
        self.kind = group_by
        self._tag = group_by.removeprefix(TAG) if group_by.startswith(TAG) else None
        self._column = "tags" if self._tag is not None else COLUMNS[group_by]
        self._facts = {
            sums: summed(sums.fact if self._tag is None else TAGS_FACT) for sums in (DAYS, HOURS)
        }
        self.waiting_events = max(map(self._waiting, (DAYS, HOURS)))
        if self.waiting_events <= BACKLOG_MAX:
            self.waiting_events = 0

    def _waiting(self, sums: Sums) -> int:
        sql = f"SELECT coalesce((SELECT max(event_seq) FROM events), 0) - {self._facts[sums]}"  # noqa: S608 (constants of this module)
        return int(self._reading.rows(sql)[0][0])

    def dearest(self, steps: _Steps, limit: int, now_ms: int) -> list[str]:
        """Return the ids of the dearest scopes."""
        costs: Counter[str] = Counter()
        for sign, sums, start_ms, end_ms in _parts(steps.since_ms, steps.until_ms, now_ms):
            rows = self._reading.rows(
                f"SELECT scope_id, sum(cost_nanousd) FROM {sums.table} WHERE organisation_id = ?"  # noqa: S608 (constants of this module)
                f" AND scope_kind = ? AND {sums.begin} >= ? AND {sums.begin} < ? GROUP BY scope_id",
                self._own, self.kind, start_ms, end_ms,
            )  # fmt: skip
            for scope_id, cost in rows:
                costs[scope_id] += sign * cost
            for cell in self._tail(sums, start_ms, end_ms):
                costs[cell.scope_id] += sign * cell.cost_nanousd
        spent = ((-cost, scope_id) for scope_id, cost in costs.items() if cost > 0)
        return [scope_id for _, scope_id in heapq.nsmallest(limit, spent)]

    def cells(self, steps: _Steps, scope_ids: Sequence[str]) -> list[_Cell]:
        """Return what some scopes have cost, by hour or day."""
        if not scope_ids:
            return []
        sums = _SUMS[steps.size_ms]
        named = f"named(scope_id) AS (VALUES {', '.join(['(?)'] * len(scope_ids))})"
        # Hours hold all scopes, so those of a few scopes are looked up one by one.
        rows = self._reading.rows(
            "WITH RECURSIVE times(at_ms) AS (SELECT CAST(? AS BIGINT)"  # noqa: S608 (constants of this module)
            f" UNION ALL SELECT at_ms + {sums.size_ms} FROM times"
            f" WHERE at_ms + {sums.size_ms} < ?), {named}"
            f" SELECT u.scope_id, u.{sums.begin}, u.cost_nanousd, u.llm_calls"
            f" FROM times CROSS JOIN named ON true CROSS JOIN {sums.table} u"
            f" ON u.organisation_id = ? AND u.scope_kind = ? AND u.{sums.begin} = times.at_ms"
            " AND u.scope_id = named.scope_id",
            steps.since_ms, steps.until_ms, *scope_ids, self._own, self.kind,
        )  # fmt: skip
        tail = self._tail(sums, steps.since_ms, steps.until_ms)
        return [*(_Cell(*row) for row in rows), *(c for c in tail if c.scope_id in scope_ids)]

    def _tail(self, sums: Sums, since_ms: int, until_ms: int) -> Iterator[_Cell]:
        """Read the events that are not summed yet."""
        if self.waiting_events:
            return
        rows = self._reading.rows(
            f"SELECT {self._column}, charged_at_ms - charged_at_ms % {HOUR_MS} AS hour_ms,"  # noqa: S608 (constants of this module)
            " sum(cost_nanousd), sum(CASE type WHEN 'llm' THEN 1 ELSE 0 END)"
            f" FROM events NOT INDEXED WHERE event_seq > {self._facts[sums]}"
            f" AND organisation_id = ? AND {self._column} IS NOT NULL"
            f" AND charged_at_ms >= ? AND charged_at_ms < ? GROUP BY {self._column}, hour_ms",
            self._own, since_ms, until_ms,
        )  # fmt: skip
        for scope_id, *numbers in rows:
            if self._tag is None:
                yield _Cell(scope_id, *numbers)
                continue
            for name, value in pairs(scope_id):
                if name == self._tag:
                    yield _Cell(value, *numbers)


def spend_by(
    reading: Connection, now_ms: int, organisation_id: str, group_by: str,
    edges_ms: Sequence[int], limit: int,
) -> SpendOverTime:  # fmt: skip
    """Return spend over time, divided by the dearest scopes of one kind and all others.

    Args:
        reading: where to read.
        now_ms: the time.
        organisation_id: the tenant.
        group_by: one of ``GROUPS``, or a tag.
        edges_ms: where steps begin, and the last one ends; whole hours.
        limit: how many scopes.
    """
    steps = _Steps(edges_ms)
    with reading.snapshot():
        if group_by == "model":
            models = _models(reading, organisation_id, steps)
            total = _total(steps, models.values())
            dear = sorted((each for name, each in models.items() if name and each.cost_nanousd),
                          key=lambda each: (-each.cost_nanousd, each.scope_id or ""))  # fmt: skip
            series, waiting = dear[:limit], 0
        else:
            total = _total(steps, _models(reading, organisation_id, steps).values())
            scopes = _Scopes(reading, organisation_id, group_by)
            names = scopes.dearest(steps, limit, now_ms)
            series, waiting = _of_scopes(scopes, steps, names), scopes.waiting_events
        _add_doubts(reading, organisation_id, group_by, steps, series)
        total.uncertain_nanousd = of_one(
            reading, organisation_id, "organisation", "", steps.since_ms, steps.until_ms
        )
    left = rest(total, series)
    return SpendOverTime(
        series=[*series, left] if left.cost_nanousd else series, total=total, waiting_events=waiting
    )


def spend_of(
    reading: Connection, organisation_id: str, group_by: str, scope_id: str, edges_ms: Sequence[int]
) -> SpendOverTime:
    """Return what one scope has cost over time."""
    steps = _Steps(edges_ms)
    with reading.snapshot():
        if group_by == "model":
            found = _models(reading, organisation_id, steps, scope_id)
            series, waiting = found.get(scope_id) or steps.series(scope_id, []), 0
        else:
            scopes = _Scopes(reading, organisation_id, group_by)
            (series,) = _of_scopes(scopes, steps, [scope_id])
            waiting = scopes.waiting_events
        _add_doubts(reading, organisation_id, group_by, steps, [series])
    return SpendOverTime(series=[series], total=series, waiting_events=waiting)


def _of_scopes(scopes: _Scopes, steps: _Steps, names: Sequence[str]) -> list[SpendSeries]:
    cells: dict[str, list[_Cell]] = defaultdict(list)
    for cell in scopes.cells(steps, names):
        cells[cell.scope_id].append(cell)
    return [steps.series(name, cells[name]) for name in names]


def _models(
    reading: Connection, organisation_id: str, steps: _Steps, model: str | None = None
) -> dict[str, SpendSeries]:
    """Return the series of each model; under the empty name, that of spend without a model."""
    table, arguments = steps.values()
    only = "" if model is None else " AND u.model = ?"
    rows = reading.rows(
        f"WITH {table} SELECT u.model, s.start_ms, sum(u.cost_nanousd), sum({_CALLS})"  # noqa: S608 (constants of this module)
        " FROM steps s CROSS JOIN organisation_rollups u ON u.organisation_id = ?"
        " AND u.size_ms = ? AND u.bucket_ms >= s.start_ms AND u.bucket_ms < s.end_ms"
        f"{only} GROUP BY s.start_ms, u.model",
        *arguments, organisation_id, steps.size_ms, *([] if model is None else [model]),
    )  # fmt: skip
    cells: dict[str, list[_Cell]] = defaultdict(list)
    for row in rows:
        cells[row[0]].append(_Cell(*row))
    return {name: steps.series(name, found) for name, found in cells.items()}


def _total(steps: _Steps, parts: Sequence[SpendSeries] | Any) -> SpendSeries:
    total = steps.series(None, [])
    for each in parts:
        for at in range(len(steps)):
            total.costs_nanousd[at] += each.costs_nanousd[at]
            total.llm_calls[at] += each.llm_calls[at]
    return total


def _add_doubts(
    reading: Connection, organisation_id: str, group_by: str, steps: _Steps,
    series: Sequence[SpendSeries],
) -> None:  # fmt: skip
    """Say of each scope how much of its cost was charged in doubt."""
    tag = group_by.removeprefix(TAG) if group_by.startswith(TAG) else None
    kind = "tag" if tag is not None else MODEL_USAGE if group_by == "model" else group_by
    names = {each.scope_id or "": each for each in series}
    ids = {(name if tag is None else f"{tag}={name}"): name for name in names}
    found = of_scopes(reading, organisation_id, kind, list(ids), steps.since_ms, steps.until_ms)
    for scope_id, cost in found.items():
        each = names[ids[scope_id]]
        each.uncertain_nanousd = min(cost, each.cost_nanousd)
