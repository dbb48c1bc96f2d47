"""Geometry of stacked bars that templates draw as SVG. Pure; positions are percent of the plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from guard.core.visible import visible
from guard.gateway.dashboard.charts import Tick, money_ticks, nice_ceiling
from guard.gateway.dashboard.formatting import count, in_doubt, money
from guard.gateway.dashboard.time_ranges import TimeRange
from guard.gateway.domain.spend_series import SpendOverTime

TICKS_MAX: Final = 7
_NAMED_MAX: Final = 4
_LEAST: Final = 0.8
"""The height of the smallest column that shows something."""


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


def _name(scope_id: str | None, others: str, names: Mapping[str, str]) -> str:
    return others if scope_id is None else names.get(scope_id, scope_id)


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
            name=visible(only or _name(each.scope_id, others, names or {})),
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
        _stack(at, width, totals[at], layers, top, step.label)
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
    at: int, width: float, total: int, layers: Sequence[Layer], top: float, label: str
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
        value=money(total), detail="\n".join(named) if len(layers) > 1 else "",
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
