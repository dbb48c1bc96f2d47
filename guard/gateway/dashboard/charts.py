"""Geometry of the charts that templates draw as SVG. Pure; positions are percent of the plot."""

from __future__ import annotations

import bisect
import datetime as dt
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from guard.gateway.dashboard.formatting import count, in_doubt, money
from guard.gateway.domain.usage import HOUR_MS, MINUTE_MS, QUARTER_MS, UsagePoint
from guard.gateway.domain.windows import UTC, day_begins, length_ms, zone_of

DAY_MS: Final = 24 * HOUR_MS


class Range(Struct, frozen=True):
    """A selectable span of time: read from rollups of ``size_ms``, drawn in bars of ``step_ms``."""

    name: str
    label: str
    span_ms: int
    step_ms: int
    size_ms: int


RANGES: Final = {
    r.name: r
    for r in (
        Range("1h", "1 hour", HOUR_MS, MINUTE_MS, MINUTE_MS),
        Range("24h", "24 hours", DAY_MS, HOUR_MS, HOUR_MS),
        Range("7d", "7 days", 7 * DAY_MS, 6 * HOUR_MS, HOUR_MS),
        Range("30d", "30 days", 30 * DAY_MS, DAY_MS, HOUR_MS),
    )
}


class Tick(Struct):
    """A label on an axis, with its position in percent. Narrow screens hide ``minor`` ones."""

    at: float
    label: str
    minor: bool = False


class Bar(Struct):
    """One step of time: ``x`` and ``width`` of the step, ``y`` and ``height`` of its bar."""

    x: float
    width: float
    y: float
    height: float
    label: str
    value: str
    detail: str = ""


class Chart(Struct, kw_only=True):
    """Everything that is drawn, and the summary that is read out."""

    bars: list[Bar]
    y_ticks: list[Tick]
    x_ticks: list[Tick]
    summary: str
    empty: bool
    line: str = ""
    limit_y: float | None = None
    limit_label: str = ""
    zone: str = UTC


def nice_ceiling(value: float) -> tuple[float, int]:
    """Return a round number at or above a value, and how many equal parts to divide it into.

    >>> nice_ceiling(0.37), nice_ceiling(7)
    ((0.4, 4), (8.0, 4))
    """
    if value <= 0:
        return 1.0, 4
    magnitude = 10.0 ** math.floor(math.log10(value))
    for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10):
        if value <= step * magnitude * (1 + 1e-9):
            parts = {1: 4, 1.2: 4, 1.6: 4, 2: 4, 3: 3, 4: 4, 6: 3, 8: 4, 10: 4}[step]
            return round(step * magnitude, 12), parts
    return magnitude * 10, 4


def steps(since_ms: int, until_ms: int, step_ms: int) -> list[int]:
    """Return the starts of the steps that cover a span."""
    first = since_ms - since_ms % step_ms
    return list(range(first, until_ms, step_ms))


def spend_bars(
    points: Sequence[UsagePoint], chosen: Range, now_ms: int, uncertain_nanousd: int = 0
) -> Chart:
    """Return spend per step over a range that ends now, and the part charged in doubt."""
    by_start: Mapping[int, UsagePoint] = {point.start_ms: point for point in points}
    starts = steps(now_ms - chosen.span_ms + chosen.step_ms, now_ms + 1, chosen.step_ms)
    top, parts = nice_ceiling(max((p.cost_nanousd for p in points), default=0) / 1e9)
    width = 100 / len(starts)
    bars = []
    for at, start in enumerate(starts):
        point = by_start.get(start)
        cost = 0 if point is None else point.cost_nanousd
        height = 100 * cost / 1e9 / top
        if cost:
            height = max(height, 0.8)
        calls = 0 if point is None else point.llm_calls
        bars.append(
            Bar(round(at * width, 4), round(width, 4), round(100 - height, 3), round(height, 3),
                step_label(start, chosen.step_ms), money(cost),
                f"{count(calls)} LLM call{'' if calls == 1 else 's'}")
        )  # fmt: skip
    total = sum(point.cost_nanousd for point in points)
    summary = f"{money(total)} in the last {chosen.label}", in_doubt(min(uncertain_nanousd, total))
    return Chart(
        bars=bars,
        y_ticks=money_ticks(top, parts),
        x_ticks=_time_ticks(starts, chosen.step_ms),
        summary=", ".join(filter(None, summary)),
        empty=total == 0,
    )


def spend_against_limit(
    points: Sequence[UsagePoint], *, since_ms: int, ends_ms: int, now_ms: int, step_ms: int,
    committed_nanousd: int, limit_nanousd: int, zone: str = UTC,
) -> Chart:  # fmt: skip
    """Return the running cost of a window against its limit, in steps of its zone's hours or days.

    The sum ends at ``committed_nanousd``, even if rollups before ``since_ms`` are gone.
    """
    starts = [*range(since_ms, ends_ms, step_ms)]
    if step_ms >= DAY_MS:
        starts = [
            since_ms,
            *(at_ms for at_ms in _midnights(starts, zone) if since_ms < at_ms < ends_ms),
        ]
    by_start: dict[int, int] = defaultdict(int)
    for point in points:
        by_start[starts[max(0, bisect.bisect(starts, point.start_ms) - 1)]] += point.cost_nanousd
    running = committed_nanousd - sum(by_start.values())
    highest = max(committed_nanousd, limit_nanousd) / 1e9
    top, parts = nice_ceiling(highest * 1.02)
    width = 100 / len(starts)
    bars, path = [], [f"M0 {_y(running, top):.2f}"]
    for at, start in enumerate(starts):
        if start > now_ms:
            break
        running += by_start.get(start, 0)
        x, y = at * width, _y(running, top)
        path.append(
            f"L{x:.2f} {y:.2f}L{min(x + width, _now_x(starts, step_ms, now_ms)):.2f} {y:.2f}"
        )
        share = f"{running / limit_nanousd:.0%} of {money(limit_nanousd)}" if limit_nanousd else ""
        bars.append(Bar(round(x, 4), round(width, 4), round(y, 3), round(100 - y, 3),
                        step_label(start, step_ms, zone), money(running), share))  # fmt: skip
    return Chart(
        bars=bars,
        y_ticks=money_ticks(top, parts),
        x_ticks=_time_ticks(starts, step_ms, zone),
        summary=f"{money(committed_nanousd)} spent of {money(limit_nanousd)}",
        empty=False,
        line="".join(path),
        limit_y=round(_y(limit_nanousd, top), 3),
        limit_label=f"limit {money(limit_nanousd)}",
        zone=zone,
    )


def _midnights(starts: Sequence[int], zone: str) -> list[int]:
    days = [dt.datetime.fromtimestamp(each / 1000, zone_of(zone)).date() for each in starts]
    return sorted({day_begins(day, zone) for day in (*days, days[-1] + dt.timedelta(days=1))})


def burn_step(window: str) -> int:
    """Return the width of a step in a chart of one budget window."""
    length = length_ms(window)
    if length is not None and length <= 2 * DAY_MS:
        return QUARTER_MS if length <= DAY_MS // 4 else HOUR_MS
    return {"hour": MINUTE_MS, "day": HOUR_MS}.get(window, DAY_MS)


def _now_x(starts: Sequence[int], step_ms: int, now_ms: int) -> float:
    return 100 * (now_ms - starts[0]) / (step_ms * len(starts))


def _y(nanousd: int, top: float) -> float:
    return min(100.0, max(0.0, 100 - 100 * nanousd / 1e9 / top))


def money_ticks(top: float, parts: int) -> list[Tick]:
    """Return labels of an axis of dollars that ends at a round number."""
    decimals = 0 if top / parts >= 1 and top % parts == 0 else 2
    if top / parts < 0.05:
        decimals = max(2, 2 - math.floor(math.log10(top / parts)))
    return [
        Tick(100 - 100 * part / parts, f"${top * part / parts:,.{decimals}f}")
        for part in range(parts + 1)
    ]


def step_label(start_ms: int, step_ms: int, zone: str = UTC) -> str:
    """Return the name of a step of time."""
    start = dt.datetime.fromtimestamp(start_ms / 1000, zone_of(zone))
    if step_ms >= DAY_MS:
        return start.strftime("%a %-d %b")
    end = start + dt.timedelta(milliseconds=step_ms)
    if step_ms <= MINUTE_MS:
        return start.strftime("%H:%M")
    day = start.strftime("%a %-d %b ") if step_ms > HOUR_MS else ""
    return f"{day}{start:%H:%M}–{end:%H:%M}"


def _time_ticks(starts: Sequence[int], step_ms: int, zone: str = UTC) -> list[Tick]:
    span_ms = step_ms * len(starts)
    every = next(
        (e for e in (10 * MINUTE_MS, 15 * MINUTE_MS, 4 * HOUR_MS, DAY_MS, 5 * DAY_MS)
         if e >= step_ms and span_ms / e <= 8),
        10 * DAY_MS,
    )  # fmt: skip
    text = "%H:%M" if every < DAY_MS else "%-d %b"
    width = 100 / len(starts)
    ticks: list[Tick] = []
    for at, start in enumerate(starts):
        shown = dt.datetime.fromtimestamp(start / 1000, zone_of(zone))
        wall_ms = round(shown.replace(tzinfo=dt.UTC).timestamp()) * 1000
        if wall_ms % every == 0 and at * width < 94:
            ticks.append(Tick(round(at * width, 3), shown.strftime(text), len(ticks) % 2 == 1))
    return ticks
