"""What budgets' windows are, found by looking at a clock on the wall every minute.

Nothing here asks when a local time is: only what the local time is at a moment of UTC.
"""

from __future__ import annotations

import bisect
import datetime as dt
import functools
import zoneinfo
from collections.abc import Iterator

import attrs

MINUTE = 60_000
LENGTHS = {"5h": 5 * 60 * MINUTE, "30m": 30 * MINUTE, "2d": 2 * 24 * 60 * MINUTE}


class Wall:
    """The dates that a clock has shown in a zone: the first minute of each."""

    def __init__(self, zone: str, since_ms: int, until_ms: int) -> None:
        shown = zoneinfo.ZoneInfo(zone)
        self.dates: list[dt.date] = []
        self.first_ms: list[int] = []
        for at_ms in range(since_ms, until_ms, MINUTE):
            date = dt.datetime.fromtimestamp(at_ms // 1000, shown).date()
            # A clock that is put back over midnight shows a day again that is over.
            if not self.dates or date > self.dates[-1]:
                self.dates.append(date)
                self.first_ms.append(at_ms)

    def periods(self, window: str, week_begins: int) -> list[int]:
        """Return the first moment of each period that has begun while somebody looked."""
        named = [_period(window, date, week_begins) for date in self.dates]
        return [
            at_ms
            for at_ms, one, before in zip(self.first_ms[1:], named[1:], named, strict=False)
            if one != before
        ]


watched = functools.lru_cache(None)(Wall)


def _period(window: str, date: dt.date, week_begins: int) -> object:
    if window == "month":
        return date.year, date.month
    if window == "day":
        return date
    return (date.toordinal() - 1 - week_begins) // 7  # the first of January of the year 1: a Monday


@attrs.define
class Row:
    """One window of a budget; without an end it was not charged yet."""

    start_ms: int
    end_ms: int | None
    spent: int = 0


@attrs.define
class Budget:
    """A budget by the oracle: its windows, and where each charge belongs."""

    window: str
    edges: list[int]
    """Where periods begin in its present zone; none for a length."""
    rows: list[Row] = attrs.Factory(list)

    def row(self, at_ms: int) -> Row:
        """Return the window that a call of a moment is in."""
        last = self.rows[-1] if self.rows else None
        if last is not None and (last.end_ms is None or at_ms < last.end_ms):
            return last
        if self.window in LENGTHS:
            made = Row(at_ms, None)
        else:
            place = bisect.bisect_right(self.edges, at_ms)
            start_ms, end_ms, next_ms = self.edges[place - 1 : place + 2]
            if last is not None and last.end_ms is not None and last.end_ms > start_ms:
                if (end_ms - last.end_ms) * 2 < end_ms - start_ms - (end_ms - start_ms) % 2:
                    end_ms = next_ms
                start_ms = last.end_ms
            made = Row(start_ms, end_ms)
        self.rows.append(made)
        return made

    def charge(self, row: Row, at_ms: int, cost: int) -> None:
        """Charge a window; the first charge opens one of a length."""
        if row.end_ms is None:
            row.start_ms, row.end_ms = at_ms, at_ms + LENGTHS[self.window]
        row.spent += cost

    def used(self) -> Iterator[tuple[int, int | None, int]]:
        """Return the windows with their charges."""
        return ((row.start_ms, row.end_ms, row.spent) for row in self.rows)
