"""Usage of each scope by day, summed from the stored events beside the requests.

A charge writes nothing here. The sweep sums the events that came since the last time, many at
once and in short steps; a report adds those that are not summed yet. So the sums are exact at each
moment, and a report over a month reads a row for each scope and day instead of each event.
"""

from __future__ import annotations

from typing import Any, Final

from guard.core.wire import NANOUSD_MAX
from guard.gateway.domain.usage import DAY_MS
from guard.gateway.storage.sql.connection import Connection
from guard.gateway.storage.sql.scope_totals import COLUMNS
from guard.gateway.storage.sql.tables import Tables

STEP_EVENTS: Final = 500
"""Events that one step sums. A step is one transaction."""

WAITING_MAX: Final = 4000
"""Events that wait until it is worth summing them; a report reads them one by one."""

KINDS: Final = ("workflow", "run", "agent", "chain", "user", "key")

_NUMBERS: Final = ("cost_nanousd", "events", "llm_calls", "tool_calls", "input_tokens",
                   "output_tokens", "unpriced")  # fmt: skip
_PLACES: Final = "<places>"
"""Where a report names scopes: one argument for each, because the engines read JSON differently."""

_SUMMED: Final = "(SELECT CAST(value AS BIGINT) FROM facts WHERE name = 'summed_event_seq')"
_ADD: Final = ", ".join(
    f"{n} = min(scope_days.{n} + excluded.{n}, {NANOUSD_MAX})" for n in _NUMBERS
)
_OF_EVENTS: Final = (
    "cost_nanousd, 1 AS events, CASE type WHEN 'llm' THEN 1 ELSE 0 END AS llm_calls,"
    " CASE type WHEN 'tool' THEN 1 ELSE 0 END AS tool_calls, input_tokens, output_tokens,"
    " CASE WHEN flags LIKE '%unpriced%' THEN 1 ELSE 0 END AS unpriced"
)
_SUMS: Final = ", ".join(f"sum({name})" for name in _NUMBERS)
_SUMS_AS: Final = ", ".join(f"sum({name}) AS {name}" for name in _NUMBERS)


def _step_sql(kind: str) -> str:
    column = COLUMNS[kind]
    # `+` hides the column from the planner, which would walk the table in its order otherwise.
    return (
        "INSERT INTO scope_days SELECT organisation_id,"  # noqa: S608 (constants of this module)
        f" CASE WHEN {column} IS NULL THEN 'no {kind}' ELSE '{kind}' END,"
        f" coalesce({column}, ''), charged_at_ms - charged_at_ms % {DAY_MS} AS day, {_SUMS}"
        f" FROM (SELECT organisation_id, {column}, charged_at_ms, {_OF_EVENTS} FROM events"
        " WHERE event_seq > ? AND event_seq <= ?) e"
        f" GROUP BY +organisation_id, +{column}, day"
        f" ON CONFLICT (organisation_id, scope_kind, scope_id, day_ms) DO UPDATE SET {_ADD}"
    )


_STEPS: Final = tuple(_step_sql(kind) for kind in KINDS)


class ScopeDays:
    """Used by the unit of work, inside its transactions.

    Attributes:
        is_due: whether enough events wait for a step.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.is_due = False

    def look(self) -> None:
        """See whether a step is due."""
        summed, newest = self._progress()
        self.is_due = newest - summed > WAITING_MAX

    def step(self) -> None:
        """Sum the next events, and note how far the sums go."""
        summed, newest = self._progress()
        end = min(summed + STEP_EVENTS, newest)
        for sql in _STEPS:
            self._tables.write(sql, (summed, end))
        self._tables.write(
            "UPDATE facts SET value = ? WHERE name = 'summed_event_seq'", (str(end),)
        )
        self.is_due = newest - end > STEP_EVENTS

    def _progress(self) -> tuple[int, int]:
        row = self._tables.row(
            f"SELECT {_SUMMED}, coalesce((SELECT min(event_seq) FROM events), 1) - 1,"  # noqa: S608 (constants of this module)
            " coalesce((SELECT max(event_seq) FROM events), 0)"
        )
        return max(row[0], row[1]), row[2]


def usage_between(
    reading: Connection, organisation_id: str, kind: str, since_ms: int, until_ms: int, limit: int
) -> list[tuple[Any, ...]]:
    """Return the usage of the dearest scopes of one kind: id, events, calls, tokens, costs.

    Whole days come from the sums; partial ones at both ends, and what is not summed yet, from the
    events. Of a hundred thousand scopes only the costs are summed, to find the dearest.
    """
    start_ms, end_ms = -(-since_ms // DAY_MS) * DAY_MS, until_ms // DAY_MS * DAY_MS
    if start_ms >= end_ms:
        start_ms = end_ms = until_ms
    own = organisation_id
    times = (own, start_ms, end_ms, own, since_ms, start_ms, own, end_ms, until_ms)
    dearest_sql, details_sql = _REPORTS[kind]
    with reading.snapshot():  # both queries see the same sums and the same events
        found = reading.rows(
            dearest_sql, own, kind, start_ms, end_ms, own, f"no {kind}", start_ms, end_ms,
            *times, limit,
        )  # fmt: skip
        names = [row[0] for row in found]
        if not names:
            return []
        places = ", ".join(["(?)"] * len(names))
        rows = reading.rows(
            details_sql.replace(_PLACES, places), *names, own, kind, start_ms, end_ms,
            own, f"no {kind}", start_ms, end_ms, *times,
        )  # fmt: skip
    details = {row[0]: row for row in rows}
    return [details[name] for name, _ in found]


def _report_sql(kind: str) -> tuple[str, str]:
    """Return SQL for the costs of all scopes, dearest first, and for the details of some."""
    column = COLUMNS[kind]

    def pieces(numbers_of_days: str, numbers: str, where: str) -> str:
        days = (
            f"SELECT {{}}, {numbers_of_days} FROM scope_days WHERE organisation_id = ?"  # noqa: S608 (constants of this module)
            " AND scope_kind = ? AND day_ms >= ? AND day_ms < ?"
        )
        events = (
            f"SELECT {column}, {numbers} FROM events {{}} organisation_id = ?"  # noqa: S608 (constants of this module)
            " AND charged_at_ms >= ? AND charged_at_ms < ?"
        )
        edge = events.format("INDEXED BY events_charged WHERE")
        if where:
            edge += f" AND ({column} IS NULL OR {column} {where})"
        tail = events.format(f"NOT INDEXED WHERE event_seq > {_SUMMED} AND")
        of_all = days.format("scope_id AS grp") + (f" AND scope_id {where}" if where else "")
        return " UNION ALL ".join(
            (of_all + " GROUP BY scope_id", days.format("NULL") + " GROUP BY scope_id",
             tail, edge, edge)
        )  # fmt: skip

    costs = pieces("sum(cost_nanousd) AS cost", "cost_nanousd", "")
    everything = pieces(_SUMS_AS, _OF_EVENTS, "IN (SELECT value FROM named)")
    dearest = (
        f"SELECT grp, sum(cost) AS cost FROM ({costs}) costs GROUP BY grp"  # noqa: S608 (constants of this module)
        " ORDER BY cost DESC, grp NULLS FIRST LIMIT ?"
    )
    details = (
        f"WITH named(value) AS (VALUES {_PLACES}) SELECT grp, sum(events), sum(llm_calls),"  # noqa: S608 (constants of this module)
        " sum(tool_calls), sum(input_tokens), sum(output_tokens), sum(cost_nanousd), sum(unpriced)"
        f" FROM ({everything}) parts GROUP BY grp"
    )
    return dearest, details


_REPORTS: Final = {kind: _report_sql(kind) for kind in KINDS}
