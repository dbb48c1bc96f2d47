"""Ranges of time in the viewer's time zone, divided into hours, days or weeks. Pure.

Sums are kept by hours of UTC, so a day of any zone is a number of them: 24, and 23 or 25 where
clocks are changed. In a zone that is not whole hours from UTC, days begin with the hour of UTC in
which its midnight is; a note says so.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
import zoneinfo
from typing import Final

from msgspec import Struct

from guard.gateway.domain.usage import DAY_MS, HOUR_MS

KEPT_DAYS: Final = 400
"""How long sums by hour are kept, and the longest range."""

UTC: Final = "UTC"
COOKIE: Final = "guard_zone"
PRESETS: Final = {"24h": "24 hours", "7d": "7 days", "30d": "30 days", "90d": "90 days"}
_DAYS_MAX: Final = 100
_WEEK: Final = 7
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+\-]*(/[A-Za-z0-9_+\-]+){0,3}")


class Step(Struct):
    """One bar of a chart, and one row of its table."""

    start_ms: int
    end_ms: int
    label: str
    tick: str
    begins: str
    """In ISO 8601, with the zone's offset."""


class TimeRange(Struct, kw_only=True):
    """What a page shows the spend of.

    Attributes:
        preset: its name; empty for one between two days.
        label: says how long it is.
        first: its first day, for the form.
        last: its last day.
        zone: whose days they are.
        steps: without a gap.
        notes: remarks for the viewer.
        error: why it is not the one that was asked for.
    """

    preset: str
    label: str
    first: str
    last: str
    zone: str
    steps: list[Step]
    notes: list[str]
    error: str = ""

    def edges(self) -> list[int]:
        """Return where the steps begin, and where the last one ends."""
        return [*(step.start_ms for step in self.steps), self.steps[-1].end_ms]

    def query(self) -> dict[str, str]:
        """Return the query of a link to the same range."""
        return {"range": self.preset} if self.preset else {"from": self.first, "to": self.last}


def zone_of(name: str | None) -> zoneinfo.ZoneInfo:
    """Return the zone that a browser names, else UTC."""
    if name and len(name) <= 64 and _ZONE.fullmatch(name):
        try:
            return zoneinfo.ZoneInfo(name)
        except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
            pass
    return zoneinfo.ZoneInfo(UTC)


def time_range(
    preset: str, first: str, last: str, zone: zoneinfo.ZoneInfo, now_ms: int, default: str = "7d"
) -> TimeRange:
    """Return the range that a query asks for.

    Args:
        preset: its name, if it has one; it goes before the days.
        first: a day, in ISO 8601.
        last: the same; today where it is empty.
        zone: of the viewer.
        now_ms: the time.
        default: the preset if nothing is asked for.
    """
    error = ""
    if preset not in PRESETS and (first or last):
        try:
            return _between(*_days(first, last, zone, now_ms), zone, now_ms)
        except ValueError as exc:
            error = f"{exc}. These are the last {PRESETS[default]}."
    preset = preset if preset in PRESETS else default
    found = _hours(zone, now_ms) if preset == "24h" else _last_days(preset, zone, now_ms)
    found.preset, found.label, found.error = preset, f"last {PRESETS[preset]}", error
    return found


def _hours(zone: zoneinfo.ZoneInfo, now_ms: int) -> TimeRange:
    end_ms = now_ms - now_ms % HOUR_MS + HOUR_MS
    first = _moment(end_ms - DAY_MS, zone).date()
    last = _moment(now_ms, zone).date()
    return _range(zone, first, last, list(range(end_ms - DAY_MS, end_ms + 1, HOUR_MS)))


def _last_days(preset: str, zone: zoneinfo.ZoneInfo, now_ms: int) -> TimeRange:
    today = _moment(now_ms, zone).date()
    return _between(today - dt.timedelta(days=int(preset[:-1]) - 1), today, zone, now_ms)


def _days(first: str, last: str, zone: zoneinfo.ZoneInfo, now_ms: int) -> tuple[dt.date, dt.date]:
    today = _moment(now_ms, zone).date()
    end = _day(last) if last else today
    start = _day(first) if first else end
    if end < start:
        raise ValueError("The last day is before the first one")
    if (end - start).days >= KEPT_DAYS:
        raise ValueError(f"A range is {KEPT_DAYS} days at most")
    return start, end


def _day(text: str) -> dt.date:
    try:
        found = dt.date.fromisoformat(text)
    except ValueError:
        raise ValueError("A day is written like 2027-01-31") from None
    if not 1971 <= found.year <= 9000:
        raise ValueError("There is nothing of that year")
    return found


def _between(first: dt.date, last: dt.date, zone: zoneinfo.ZoneInfo, now_ms: int) -> TimeRange:
    notes = []
    if zone.key != UTC and _start(first, zone) < now_ms - KEPT_DAYS * DAY_MS:
        zone = zoneinfo.ZoneInfo(UTC)
        notes.append(
            f"Hours are kept for {KEPT_DAYS} days. Of days before, only those of UTC are known, so"
            " these are days in UTC."
        )
    count = (last - first).days + 1
    if count <= 2:
        edges = list(range(_start(first, zone), _start(last + _ONE_DAY, zone) + 1, HOUR_MS))
    else:
        step = 1 if count <= _DAYS_MAX else _WEEK
        days = [first + dt.timedelta(days=at) for at in range(0, count, step)]
        edges = [*(_start(day, zone) for day in days), _start(last + _ONE_DAY, zone)]
    found = _range(zone, first, last, edges)
    found.notes += notes
    return found


_ONE_DAY: Final = dt.timedelta(days=1)


def _range(zone: zoneinfo.ZoneInfo, first: dt.date, last: dt.date, edges: list[int]) -> TimeRange:
    notes = []
    offset = _moment(edges[0], zone).utcoffset() or dt.timedelta()
    is_hours = edges[1] - edges[0] == HOUR_MS
    if not is_hours and offset % dt.timedelta(hours=1):
        notes.append(
            f"Sums are kept by hours of UTC, from which {zone.key} is not whole hours away: a day"
            f" begins here at {_moment(edges[0], zone):%H:%M}."
        )
    return TimeRange(
        preset="", label=_label(first, last), first=first.isoformat(), last=last.isoformat(),
        zone=zone.key, steps=_steps(edges, zone, is_hours=is_hours), notes=notes,
    )  # fmt: skip


def _label(first: dt.date, last: dt.date) -> str:
    return f"{first:%-d %b %Y}" if first == last else f"{first:%-d %b %Y} to {last:%-d %b %Y}"


def _steps(edges: list[int], zone: zoneinfo.ZoneInfo, *, is_hours: bool) -> list[Step]:
    steps = []
    for start_ms, end_ms in itertools.pairwise(edges):
        start, end = _moment(start_ms, zone), _moment(end_ms, zone)
        # A day may begin some minutes early, with an hour of UTC: its name is that of its noon.
        named = start + dt.timedelta(hours=12)
        if is_hours:
            label, tick = f"{start:%a %-d %b %H:%M}–{end:%H:%M}", f"{start:%H:%M}"
        elif end_ms - start_ms > 2 * DAY_MS:
            label, tick = (
                f"{named:%-d %b} to {end - dt.timedelta(hours=12):%-d %b %Y}",
                f"{named:%-d %b}",
            )
        else:
            label, tick = f"{named:%a %-d %b}", f"{named:%-d %b}"
        steps.append(Step(start_ms, end_ms, label, tick, start.isoformat(timespec="minutes")))
    return steps


def _start(day: dt.date, zone: zoneinfo.ZoneInfo) -> int:
    """Return when a day begins: the hour of UTC in which its midnight is."""
    midnight = dt.datetime.combine(day, dt.time(), tzinfo=zone)
    at_ms = int(midnight.timestamp()) * 1000
    return at_ms - at_ms % HOUR_MS


def _moment(at_ms: int, zone: zoneinfo.ZoneInfo) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_ms / 1000, zone)
