"""Geometry of the charts that templates draw as SVG. Pure; positions are percent of the plot."""

from __future__ import annotations

import bisect
import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from guard.core.visible import visible
from guard.gateway.dashboard.formatting import count, in_doubt, money
from guard.gateway.dashboard.time_ranges import TimeRange
from guard.gateway.domain.spend_series import SpendOverTime
from guard.gateway.domain.usage import DAY_MS, HOUR_MS, MINUTE_MS, QUARTER_MS, UsagePoint
from guard.gateway.domain.windows import UTC, day_begins, length_ms, zone_of

TICKS_MAX: Final = 7
_NAMED_MAX: Final = 4
_LEAST: Final = 0.8
"""The height of the smallest column that shows something."""


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
    costs = [0] * len(starts)
    for point in points:
        costs[_step_at(starts, point.start_ms)] += point.cost_nanousd
    running = committed_nanousd - sum(costs)
    highest = max(committed_nanousd, limit_nanousd) / 1e9
    top, parts = nice_ceiling(highest * 1.02)
    width = 100 / len(starts)
    bars, path = [], [f"M0 {_y(running, top):.2f}"]
    for at, start in enumerate(starts):
        if start > now_ms:
            break
        running += costs[at]
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
        line="".join(path),
        limit_y=round(_y(limit_nanousd, top), 3),
        limit_label=f"limit {money(limit_nanousd)}",
        zone=zone,
    )


def _step_at(starts: Sequence[int], at_ms: int) -> int:
    """Return the number of the step that a time is in; what comes before belongs to the first."""
    return max(0, bisect.bisect(starts, at_ms) - 1)


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


class Part(Struct):
    """One part of a bar; ``colour`` is the number of its series, 0 for all others."""

    y: float
    height: float
    colour: int


class Stack(Struct):
    """One step of time."""

    x: float
    width: float
    top: float
    parts: list[Part]
    label: str
    value: str
    detail: str


class Layer(Struct, kw_only=True):
    """One series, as the legend and the table name it.

    Attributes:
        scope_id: ``None`` for all others.
        name: to be shown.
        colour: its number.
        amounts: by step.
        cost_nanousd: of all steps.
        share: of the total, in percent.
        llm_calls: of all steps.
        uncertain_nanousd: the part of the cost that was charged in doubt.
    """

    scope_id: str | None
    name: str
    colour: int
    amounts: list[int]
    cost_nanousd: int
    share: float
    llm_calls: int
    uncertain_nanousd: int


class StackedChart(Struct, kw_only=True):
    """Everything that is drawn, and the summary that is read out."""

    stacks: list[Stack]
    layers: list[Layer]
    y_ticks: list[Tick]
    x_ticks: list[Tick]
    totals: list[int]
    total_nanousd: int
    llm_calls: int
    summary: str

    def first_spent(self) -> int:
        """Return the number of the first step in which anything was spent."""
        return next((at for at, total in enumerate(self.totals) if total), 0)


def stacked(
    spend: SpendOverTime, shown: TimeRange, others: str, only: str = "",
    names: Mapping[str, str] | None = None,
) -> StackedChart:  # fmt: skip
    """Return bars of spend, each divided by the series.

    Args:
        spend: the spend, with the steps of ``shown``.
        shown: the range.
        others: how all that is not named is called.
        only: the name of the single series, if it is not divided.
        names: of scopes that are not shown by their ids.
    """
    totals = spend.total.costs_nanousd
    total = spend.total.cost_nanousd
    layers = [
        Layer(
            scope_id=each.scope_id,
            name=visible(only or (others if each.scope_id is None
                                  else (names or {}).get(each.scope_id, each.scope_id))),
            colour=0 if each.scope_id is None else number,
            amounts=each.costs_nanousd, cost_nanousd=each.cost_nanousd,
            share=100 * each.cost_nanousd / total if total else 0.0,
            llm_calls=sum(each.llm_calls), uncertain_nanousd=each.uncertain_nanousd,
        )
        for number, each in enumerate(spend.series, start=1)
    ]  # fmt: skip
    top, parts = nice_ceiling(max(totals, default=0) / 1e9)
    width = 100 / len(shown.steps)
    stacks = [
        _stack(at, width, totals[at], spend.total.llm_calls[at], layers, top, step.label)
        for at, step in enumerate(shown.steps)
    ]
    doubt = in_doubt(min(spend.total.uncertain_nanousd, total))
    return StackedChart(
        stacks=stacks, layers=layers, y_ticks=money_ticks(top, parts), x_ticks=_ticks(shown),
        totals=totals, total_nanousd=total, llm_calls=sum(spend.total.llm_calls),
        summary=", ".join(filter(None, (f"{money(total)} in the {shown.label}"
                                        if shown.preset else f"{money(total)}, {shown.label}",
                                        doubt))),
    )  # fmt: skip


def _stack(
    at: int, width: float, total: int, calls: int, layers: Sequence[Layer], top: float, label: str
) -> Stack:
    parts: list[Part] = []
    y = 100.0
    least = _LEAST if total else 0.0
    for layer in layers:
        cost = layer.amounts[at]
        if not cost:
            continue
        height = 100 * cost / 1e9 / top
        y -= height
        parts.append(Part(round(y, 3), round(height, 3), layer.colour))
    if parts and 100 - y < least:  # too little to be visible
        parts = [Part(100 - least, least, max(parts, key=lambda part: part.height).colour)]
        y = 100 - least
    dear = sorted((each for each in layers if each.amounts[at]), key=lambda e: -e.amounts[at])
    named = [f"{_short(each.name)} {money(each.amounts[at])}" for each in dear[:_NAMED_MAX]]
    if len(dear) > _NAMED_MAX:
        named.append(f"{count(len(dear) - _NAMED_MAX)} more")
    return Stack(
        x=round(at * width, 4), width=round(width, 4), top=round(y, 3), parts=parts, label=label,
        value=money(total),
        detail="\n".join(named) if len(layers) > 1
        else f"{count(calls)} LLM call{'' if calls == 1 else 's'}",
    )  # fmt: skip


def _short(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:31]}…"


def _ticks(shown: TimeRange) -> list[Tick]:
    """Label every so many steps, so that labels do not touch."""
    steps = shown.steps
    every = -(-len(steps) // TICKS_MAX)
    width = 100 / len(steps)
    return [
        Tick(round(at * width, 3), steps[at].tick, (at // every) % 2 == 1)
        for at in range(0, len(steps), every)
        if at * width < 94
    ]
