"""Spend over time, divided by one of ``GROUPS`` or a tag."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

GROUPS: Final = ("model", "workflow", "user", "agent", "key", "team", "person")
"""What spend can be divided by, besides a tag."""

TAG: Final = "tag:"
"""The prefix of a tag's name where spend is divided by a tag."""


class SpendSeries(Struct, kw_only=True):
    """The cost of one scope, or of all others together, in each step of time.

    Attributes:
        scope_id: ``None`` for all others together.
        costs_nanousd: by step.
        llm_calls: by step.
        uncertain_nanousd: the part of the whole cost that was charged in doubt.
    """

    scope_id: str | None
    costs_nanousd: list[int]
    llm_calls: list[int]
    uncertain_nanousd: int = 0

    @property
    def cost_nanousd(self) -> int:
        """Return the sum."""
        return sum(self.costs_nanousd)


class SpendOverTime(Struct, kw_only=True):
    """Spend in steps of time.

    Attributes:
        series: the scopes with the highest cost first, all others last.
        total: of the organisation.
    """

    series: list[SpendSeries]
    total: SpendSeries


def rest(total: SpendSeries, named: Iterable[SpendSeries]) -> SpendSeries:
    """Return a total without some scopes; no figure is below 0."""
    left = SpendSeries(
        scope_id=None, costs_nanousd=list(total.costs_nanousd), llm_calls=list(total.llm_calls),
        uncertain_nanousd=total.uncertain_nanousd,
    )  # fmt: skip
    for each in named:
        for of_all, of_one in (
            (left.costs_nanousd, each.costs_nanousd), (left.llm_calls, each.llm_calls),
        ):  # fmt: skip
            for at, number in enumerate(of_one):
                of_all[at] = max(0, of_all[at] - number)
        left.uncertain_nanousd = max(0, left.uncertain_nanousd - each.uncertain_nanousd)
    return left
