"""Budget windows: which period a moment belongs to. All windows are UTC; weeks begin on Mondays."""

from __future__ import annotations

import datetime as dt
from typing import Final, Literal

Window = Literal["total", "hour", "day", "week", "month"]

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS
_MONDAY_MS: Final = 4 * DAY_MS


def period_of(window: Window, at_ms: int) -> tuple[int, int | None]:
    """Return the start and the end of the period that contains a moment, in Unix milliseconds.

    ``total`` has one period, which starts at 0 and never ends.

    >>> period_of("hour", 3_600_001)
    (3600000, 7200000)
    >>> period_of("week", 1_700_000_000_000)  # a Tuesday
    (1699833600000, 1700438400000)
    """
    if window == "total":
        return 0, None
    if window == "month":
        day = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
        start = day.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = (start + dt.timedelta(days=32)).replace(day=1)
        return int(start.timestamp()) * 1000, int(end.timestamp()) * 1000
    if window == "week":
        start_ms = at_ms - (at_ms - _MONDAY_MS) % WEEK_MS
        return start_ms, start_ms + WEEK_MS
    size = HOUR_MS if window == "hour" else DAY_MS
    start_ms = at_ms - at_ms % size
    return start_ms, start_ms + size
