"""Budget windows: which period a moment belongs to. Pure.

Days, weeks and months are those of a time zone, so a day has 23, 24 or 25 hours. A window of a
length, such as ``5h``, opens with its first charge.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import zoneinfo
from typing import Annotated, Final

from msgspec import Meta, Struct

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
UTC: Final = "UTC"
WEEKDAYS: Final = (
    "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday",
)  # fmt: skip
CALENDAR: Final = ("hour", "day", "week", "month", "total")
LENGTH_MAX_MS: Final = 31 * DAY_MS

_UNITS_MS: Final = {"d": DAY_MS, "h": HOUR_MS, "m": HOUR_MS // 60}
_LENGTH: Final = re.compile(r"([1-9]\d{0,4})([dhm])")
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+\-]*(/[A-Za-z0-9_+\-]+){0,3}")
_ZONE_MAX: Final = 64

Window = Annotated[
    str,
    Meta(
        max_length=16,
        description="total, hour, day, week or month; or a length that opens with its first charge:"
        " 5h, 30m, 7d.",
        examples=["month", "5h"],
    ),
]
Zone = Annotated[str, Meta(max_length=_ZONE_MAX)]
"""The name of an IANA time zone."""


class Calendar(Struct, frozen=True):
    """Whose days they are, and with which day a week begins (0: Monday)."""

    zone: str = UTC
    week_begins: int = 0


IN_UTC: Final = Calendar()


def checked_window(text: str) -> str:
    """Return a window as it is stored: ``24h`` is ``1d``.

    Raises:
        ValueError: there is no such window.
    """
    if text in CALENDAR:
        return text
    length = length_ms(text)
    if length is None or length > LENGTH_MAX_MS:
        raise ValueError(
            "window is total, hour, day, week, month, or a length such as 5h, up to 31d, which"
            " opens with its first charge"
        )
    return next(f"{length // of}{unit}" for unit, of in _UNITS_MS.items() if length % of == 0)


def length_ms(window: str) -> int | None:
    """Return the length of a window that opens with its first charge; ``None`` for others.

    >>> length_ms("5h"), length_ms("day")
    (18000000, None)
    """
    found = _LENGTH.fullmatch(window)
    return None if found is None else int(found[1]) * _UNITS_MS[found[2]]


def checked_zone(name: str) -> str:
    """Return the name of a time zone.

    Raises:
        ValueError: there is no such zone.
    """
    if not _is_known(name):
        raise ValueError(
            f"there is no time zone {name!r}: give an IANA name, such as Europe/Berlin or UTC"
        )
    return name


def zone_of(name: str) -> zoneinfo.ZoneInfo:
    """Return a time zone; UTC for one that this machine does not know."""
    return zoneinfo.ZoneInfo(name if _is_known(name) else UTC)


@functools.lru_cache(1024)
def _is_known(name: str) -> bool:
    if len(name) > _ZONE_MAX or not _ZONE.fullmatch(name):
        return False
    try:
        zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return False
    return True


def moment(at_ms: int, zone: str = UTC) -> str:
    """Return a time in a zone, for a person.

    >>> moment(0), moment(0, "Asia/Kolkata")
    ('1970-01-01 00:00 UTC', '1970-01-01 05:30 in Asia/Kolkata')
    """
    at = dt.datetime.fromtimestamp(at_ms / 1000, zone_of(zone))
    return f"{at:%Y-%m-%d %H:%M} {UTC if zone == UTC else f'in {zone}'}"


def period_of(window: str, at_ms: int, calendar: Calendar = IN_UTC) -> tuple[int, int | None]:
    """Return the start and the end of the period that contains a moment, in Unix milliseconds.

    ``total`` has one period, which starts at 0 and never ends. Hours are those of UTC in every
    zone. A window of a length begins at the moment, and has no end before its first charge.

    >>> period_of("hour", 3_600_001)
    (3600000, 7200000)
    >>> period_of("week", 1_700_000_000_000)  # a Tuesday
    (1699833600000, 1700438400000)
    """
    if window == "total":
        return 0, None
    if length_ms(window) is not None:
        return at_ms, None
    if window == "hour":
        start_ms = at_ms - at_ms % HOUR_MS
        return start_ms, start_ms + HOUR_MS
    day = dt.datetime.fromtimestamp(at_ms / 1000, zone_of(calendar.zone)).date()
    first = _first_day(window, day, calendar)
    following = _following(window, first)
    start_ms, end_ms = (day_begins(each, calendar.zone) for each in (first, following))
    # Clocks that go back over midnight repeat the end of a day in the next one, which goes on.
    if at_ms >= end_ms:
        start_ms, end_ms = end_ms, day_begins(_following(window, following), calendar.zone)
    return start_ms, end_ms


def _first_day(window: str, day: dt.date, calendar: Calendar) -> dt.date:
    if window == "month":
        return day.replace(day=1)
    into_week = (day.weekday() - calendar.week_begins) % 7 if window == "week" else 0
    return day - dt.timedelta(days=into_week)


def _following(window: str, first: dt.date) -> dt.date:
    if window == "month":
        return (first + dt.timedelta(days=32)).replace(day=1)
    return first + dt.timedelta(days=7 if window == "week" else 1)


@functools.lru_cache(4096)
def day_begins(day: dt.date, zone: str) -> int:
    """Return the first moment at which a day, or one after it, is the date in a zone."""
    midnight = dt.datetime.combine(day, dt.time(), tzinfo=zone_of(zone))
    # Where clocks skip midnight, or the whole day, the one without ``fold`` is after the change.
    after_ms = int(midnight.timestamp()) * 1000
    before_ms = min(after_ms, int(midnight.replace(fold=1).timestamp()) * 1000)
    return next(
        at_ms
        for at_ms in range(before_ms, after_ms + 1, HOUR_MS // 4)
        if at_ms == after_ms
        or dt.datetime.fromtimestamp(at_ms / 1000, midnight.tzinfo).date() >= day
    )
