"""Usage of each scope by day and by hour, summed from the stored events in the background.

A charge writes nothing here. The sweep sums the events that came since the last time, many at
once and in short steps; a report adds those that are not summed yet. So reports are exact at any
moment, although they do not read each event: one over a month reads a row for each scope and day,
one since yesterday noon a row for each scope and hour.
"""

from __future__ import annotations

import abc
import functools
from typing import Any, Final, LiteralString

from msgspec import Struct

from guard.core.wire import NANOUSD_MAX
from guard.gateway.domain.usage import DAY_MS, HOUR_MS, pieces
from guard.gateway.storage.sql.connection import Connection
from guard.gateway.storage.sql.scope_totals import COLUMNS
from guard.gateway.storage.sql.tables import Tables

STEP_EVENTS: Final = 500
"""Events that one step sums. A step is one transaction."""

WAITING_MAX: Final = 4000
"""So many events may wait to be summed; a report reads them one by one."""

KINDS: Final = ("workflow", "run", "agent", "chain", "user", "key")

NUMBERS: Final = ("cost_nanousd", "events", "llm_calls", "tool_calls", "input_tokens",
                   "output_tokens", "unpriced")  # fmt: skip
_PLACES: Final = "<places>"
"""Where a report names scopes: one argument for each, because the engines read JSON differently."""

BACKLOG_MAX: Final = 50_000
"""Where more events wait for their hours, as after an update, reports use the days only."""


class Sums(Struct, frozen=True):
    """A table of sums by scope and period.

    Attributes:
        table: its name.
        begin: the column of a period's beginning.
        size_ms: of a period.
        fact: the name of the fact with the number of the newest summed event.
    """

    table: LiteralString
    begin: LiteralString
    size_ms: int
    fact: LiteralString

    def summed(self) -> str:
        """Return SQL for the number of the newest event that is summed."""
        return summed(self.fact)


def summed(fact: LiteralString) -> str:
    """Return SQL for the number of the newest event that some sums have."""
    return f"(SELECT CAST(value AS BIGINT) FROM facts WHERE name = '{fact}')"  # noqa: S608 (names of constants)


DAYS: Final = Sums("scope_days", "day_ms", DAY_MS, "summed_event_seq")
HOURS: Final = Sums("scope_hours", "hour_ms", HOUR_MS, "summed_hours_seq")
_TABLES: Final = {each.size_ms: each for each in (DAYS, HOURS)}

OF_EVENTS: Final = (
    "cost_nanousd, 1 AS events, CASE type WHEN 'llm' THEN 1 ELSE 0 END AS llm_calls,"
    " CASE type WHEN 'tool' THEN 1 ELSE 0 END AS tool_calls, input_tokens, output_tokens,"
    " CASE WHEN flags LIKE '%unpriced%' THEN 1 ELSE 0 END AS unpriced"
)
_SUMS_SHOWN: Final = (
    "sum(events), sum(llm_calls), sum(tool_calls), sum(input_tokens), sum(output_tokens),"
    " sum(cost_nanousd) AS cost, sum(unpriced)"
)
_SUMS: Final = ", ".join(f"sum({name})" for name in NUMBERS)
_SUMS_AS: Final = ", ".join(f"sum({name}) AS {name}" for name in NUMBERS)


def _step_sql(sums: Sums, kind: str) -> str:
    column, size_ms = COLUMNS[kind], sums.size_ms
    names = "organisation_id, scope_kind, scope_id"
    added = ", ".join(f"{n} = min({sums.table}.{n} + excluded.{n}, {NANOUSD_MAX})" for n in NUMBERS)
    # `+` hides the column from the planner, which would walk the table in its order otherwise.
    return (
        f"INSERT INTO {sums.table} ({names}, {sums.begin}, {', '.join(NUMBERS)})"  # noqa: S608 (constants of this module)
        f" SELECT organisation_id, CASE WHEN {column} IS NULL THEN 'no {kind}' ELSE '{kind}' END,"
        f" coalesce({column}, ''), charged_at_ms - charged_at_ms % {size_ms} AS period, {_SUMS}"
        f" FROM (SELECT organisation_id, {column}, charged_at_ms, {OF_EVENTS} FROM events"
        " WHERE event_seq > ? AND event_seq <= ?) e"
        f" GROUP BY +organisation_id, +{column}, period"
        f" ON CONFLICT ({names}, {sums.begin}) DO UPDATE SET {added}"
    )


class EventSums(abc.ABC):
    """Keeps sums of events; used by the unit of work, inside its transactions.

    Args:
        tables: where events and sums are.
        fact: the name of the fact with the number of the newest summed event.

    Attributes:
        is_due: whether enough events wait for a step.
    """

    def __init__(self, tables: Tables, fact: LiteralString) -> None:
        self._tables = tables
        self._fact: LiteralString = fact
        self.is_due = False

    @abc.abstractmethod
    def add(self, after: int, end: int) -> None:
        """Sum the events whose numbers are above ``after``, up to ``end``."""

    def look(self) -> None:
        """Set ``is_due`` from the number of events that wait."""
        summed, newest = self._progress()
        self.is_due = newest - summed > WAITING_MAX

    def step(self, events: int = STEP_EVENTS) -> None:
        """Sum the next events, and store how far the sums go, in the same transaction."""
        summed, newest = self._progress()
        end = min(summed + events, newest)
        self.add(summed, end)
        self._tables.save_fact(self._fact, str(end))
        self.is_due = newest - end > STEP_EVENTS

    def _progress(self) -> tuple[int, int]:
        row = self._tables.row(
            f"SELECT {summed(self._fact)}, coalesce((SELECT min(event_seq) FROM events), 1) - 1,"  # noqa: S608 (constants of this module)
            " coalesce((SELECT max(event_seq) FROM events), 0)"
        )
        return max(row[0], row[1]), row[2]


class ScopeSums(EventSums):
    """Sums of each scope, in one table."""

    def __init__(self, tables: Tables, sums: Sums) -> None:
        super().__init__(tables, sums.fact)
        self._steps = [_step_sql(sums, kind) for kind in KINDS]

    def add(self, after: int, end: int) -> None:
        """Sum the events whose numbers are above ``after``, up to ``end``."""
        for sql in self._steps:
            self._tables.write(sql, (after, end))


def usage_between(
    reading: Connection, organisation_id: str, kind: str, since_ms: int, until_ms: int, limit: int
) -> list[tuple[Any, ...]]:
    """Return the usage of the dearest scopes of one kind: id, events, calls, tokens, costs.

    Whole days and hours come from the sums; the rest of an hour at both ends, and events that are
    not summed yet, from the events. Over more than a day only the costs of all scopes are summed,
    to find the dearest; their other numbers are read afterwards.
    """
    with reading.snapshot():  # all queries see the same sums and the same events
        (waiting,) = reading.rows(
            f"SELECT coalesce((SELECT max(event_seq) FROM events), 0) - {HOURS.summed()}"  # noqa: S608 (constants of this module)
        )[0]
        sizes = (DAY_MS, HOUR_MS) if waiting <= BACKLOG_MAX else (DAY_MS,)
        parts = pieces(since_ms, until_ms, sizes)
        if not parts:
            return []
        once_sql, dearest_sql, details_sql = _report_sql(kind, tuple(part[0] for part in parts))
        arguments: list[Any] = []
        for size_ms, start_ms, end_ms in parts:
            times = (organisation_id, start_ms, end_ms)
            if size_ms:
                for name in (kind, f"no {kind}"):
                    arguments += [organisation_id, name, start_ms, end_ms]
            arguments += times
        if all(end_ms - start_ms <= DAY_MS for _, start_ms, end_ms in parts):
            return reading.rows(once_sql, *arguments, limit)
        found = reading.rows(dearest_sql, *arguments, limit)
        names = [row[0] for row in found]
        if not names:
            return []
        places = ", ".join(["(?)"] * len(names))
        rows = reading.rows(details_sql.replace(_PLACES, places), *names, *arguments)
    details = {row[0]: row for row in rows}
    return [details[name] for name, _ in found]


@functools.lru_cache(maxsize=128)
def _report_sql(kind: str, sizes: tuple[int, ...]) -> tuple[str, str, str]:
    """Return SQL for all of the dearest scopes at once; for their costs; for the details of some.

    Args:
        kind: of the scopes.
        sizes: the width of the sums of each piece of the time; 0 where its events are read.
    """
    column = COLUMNS[kind]

    def of_sums(sums: Sums, numbers_of_sums: str, numbers: str, where: str) -> str:
        rows = (
            f"SELECT {{}}, {numbers_of_sums} FROM {sums.table} WHERE organisation_id = ?"  # noqa: S608 (constants of this module)
            f" AND scope_kind = ? AND {sums.begin} >= ? AND {sums.begin} < ?"
        )
        named = rows.format("scope_id AS grp") + (f" AND scope_id {where}" if where else "")
        tail = of_events(numbers, "", f"NOT INDEXED WHERE event_seq > {sums.summed()} AND")
        nobody = rows.format("NULL") + " GROUP BY scope_id"
        return " UNION ALL ".join((f"{named} GROUP BY scope_id", nobody, tail))

    def of_events(numbers: str, where: str, which: str) -> str:
        found = (
            f"SELECT {column} AS grp, {numbers} FROM events {which} organisation_id = ?"  # noqa: S608 (constants of this module)
            " AND charged_at_ms >= ? AND charged_at_ms < ?"
        )
        return f"{found} AND ({column} IS NULL OR {column} {where})" if where else found

    def all_of(numbers_of_sums: str, numbers: str, where: str) -> str:
        return " UNION ALL ".join(
            of_sums(_TABLES[size_ms], numbers_of_sums, numbers, where)
            if size_ms
            else of_events(numbers, where, "INDEXED BY events_charged WHERE")
            for size_ms in sizes
        )

    costs = all_of("sum(cost_nanousd) AS cost", "cost_nanousd AS cost", "")
    everything = all_of(_SUMS_AS, OF_EVENTS, "")
    of_named = all_of(_SUMS_AS, OF_EVENTS, "IN (SELECT value FROM named)")
    once = (
        f"SELECT grp, {_SUMS_SHOWN} FROM ({everything}) parts GROUP BY grp"  # noqa: S608 (constants of this module)
        " ORDER BY cost DESC, grp NULLS FIRST LIMIT ?"
    )
    dearest = (
        f"SELECT grp, sum(cost) AS cost FROM ({costs}) costs GROUP BY grp"  # noqa: S608 (constants of this module)
        " ORDER BY cost DESC, grp NULLS FIRST LIMIT ?"
    )
    details = (
        f"WITH named(value) AS (VALUES {_PLACES}) SELECT grp, {_SUMS_SHOWN}"  # noqa: S608 (constants of this module)
        f" FROM ({of_named}) parts GROUP BY grp"
    )
    return once, dearest, details
