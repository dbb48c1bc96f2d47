"""Ranges of time in the viewer's time zone, divided into hours, days or weeks. Pure.

Sums are kept by quarter hours, so that days of any zone are whole numbers of them, also those on
which clocks are changed.
"""

from __future__ import annotations

import datetime as dt
import itertools
import zoneinfo
from typing import Final

from msgspec import Struct

from guard.gateway.domain.usage import DAY_MS, HOUR_MS, QUARTER_MS
from guard.gateway.domain.windows import UTC, day_begins

KEPT_DAYS: Final = 400
"""How long sums by hour are kept, and the longest range."""

COOKIE: Final = "guard_zone"
PRESETS: Final = {
    "1h": "last hour", "24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days",
    "90d": "last 90 days",
}  # fmt: skip
ALL: Final = "all"
"""The preset of lists that shows all of them."""

FOREVER_MS: Final = 2**53
_STEPS_MS: Final = {"1h": (HOUR_MS, QUARTER_MS), "24h": (DAY_MS, HOUR_MS)}
_DAYS_MAX: Final = 100
_WEEK: Final = 7


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
        preset: its name; empty for one between two days, and ``all`` for all of time.
        label: says how long it is.
        first: its first day, for the form.
        last: its last day.
        zone: whose days they are.
        steps: without a gap; none of all time.
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

    def within(self) -> tuple[int, int]:
        """Return when it begins and ends."""
        return (self.edges()[0], self.edges()[-1]) if self.steps else (0, FOREVER_MS)

    def longer(self) -> list[str]:
        """Return the presets that are longer."""
        names = [*PRESETS]
        if self.preset in names:
            return names[names.index(self.preset) + 1 :]
        return names[-1:] if self.steps else []

    def query(self) -> dict[str, str]:
        """Return the query of a link to the same range."""
        return {"range": self.preset} if self.preset else {"from": self.first, "to": self.last}


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
            error = f"{exc}, so this shows the {PRESETS.get(default, 'whole time')}."
    preset = preset if preset in PRESETS else default
    if preset == ALL:
        today = _moment(now_ms, zone).date()
        found = _range(zone, today, today, [])
    elif preset.endswith("h"):
        found = _until_now(zone, now_ms, *_STEPS_MS[preset])
    else:
        found = _last_days(preset, zone, now_ms)
    found.preset, found.label, found.error = preset, PRESETS.get(preset, "all time"), error
    return found


def _until_now(zone: zoneinfo.ZoneInfo, now_ms: int, span_ms: int, step_ms: int) -> TimeRange:
    end_ms = now_ms - now_ms % step_ms + step_ms
    first, last = (_moment(at_ms, zone).date() for at_ms in (end_ms - span_ms, now_ms))
    return _range(zone, first, last, list(range(end_ms - span_ms, end_ms + 1, step_ms)))


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
    if zone.key != UTC and day_begins(first, zone.key) < now_ms - KEPT_DAYS * DAY_MS:
        zone = zoneinfo.ZoneInfo(UTC)
        notes.append(
            f"Hours are kept for {KEPT_DAYS} days. Of days before, only those of UTC are known, so"
            " these are days in UTC."
        )
    count = (last - first).days + 1
    if count <= 2:
        end_ms = day_begins(last + _ONE_DAY, zone.key)
        edges = [*range(day_begins(first, zone.key), end_ms, HOUR_MS), end_ms]
    else:
        step = 1 if count <= _DAYS_MAX else _WEEK
        days = [*(first + dt.timedelta(days=at) for at in range(0, count, step)), last + _ONE_DAY]
        edges = sorted({day_begins(day, zone.key) for day in days})  # a zone may skip a day
    found = _range(zone, first, last, edges)
    found.notes += notes
    return found


_ONE_DAY: Final = dt.timedelta(days=1)


def _range(zone: zoneinfo.ZoneInfo, first: dt.date, last: dt.date, edges: list[int]) -> TimeRange:
    is_hours = len(edges) > 1 and edges[1] - edges[0] <= HOUR_MS
    return TimeRange(
        preset="", label=_label(first, last), first=first.isoformat(), last=last.isoformat(),
        zone=zone.key, steps=_steps(edges, zone, is_hours=is_hours), notes=[],
    )  # fmt: skip


def _label(first: dt.date, last: dt.date) -> str:
    return f"{first:%-d %b %Y}" if first == last else f"{first:%-d %b %Y} to {last:%-d %b %Y}"


def _steps(edges: list[int], zone: zoneinfo.ZoneInfo, *, is_hours: bool) -> list[Step]:
    steps = []
    for start_ms, end_ms in itertools.pairwise(edges):
        start, end = _moment(start_ms, zone), _moment(end_ms, zone)
        if is_hours:
            label, tick = f"{start:%a %-d %b %H:%M}–{end:%H:%M}", f"{start:%H:%M}"
        elif end_ms - start_ms > 2 * DAY_MS:
            label, tick = (
                f"{start:%-d %b} to {end - dt.timedelta(hours=1):%-d %b %Y}",
                f"{start:%-d %b}",
            )
        else:
            label, tick = f"{start:%a %-d %b}", f"{start:%-d %b}"
        steps.append(Step(start_ms, end_ms, label, tick, start.isoformat(timespec="minutes")))
    return steps


def _moment(at_ms: int, zone: zoneinfo.ZoneInfo) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_ms / 1000, zone)
