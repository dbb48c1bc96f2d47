"""A run's spend, the balances of its limits, and requests that wait for a raise; no I/O."""

from __future__ import annotations

from typing import Any, Final

import attrs

from guard.core.wire import amount_in, dollars

_STEPS: Final = {"usd": 10_000_000, "tokens": 1000, "calls": 1}
"""Raises are rounded up to a multiple of this: a cent, a thousand tokens, one call."""


def raise_of(unit: str, limit: int, lacking: int) -> int:
    """Return the raise to offer: half of the limit, at least what a request lacks, rounded up.

    >>> raise_of("usd", 2_000_000_000, 1), raise_of("usd", 2_000_000_000, 1_500_000_001)
    (1000000000, 1510000000)
    >>> raise_of("tokens", 20_000, 1), raise_of("calls", 3, 1)
    (10000, 1)
    """
    step = _STEPS[unit]
    return -(-max(limit // 2, lacking, 1) // step) * step


@attrs.frozen
class RunBalance:
    """The balance of one limit of a run.

    Attributes:
        unit: ``usd`` (in nano-dollars), ``tokens`` or ``calls``.
        of: for calls: the glob of the tools and models that are counted; empty for all.
        used, limit: amounts in the unit.
        set_aside: the amount held for requests that are under way.
        kept: the part of the limit that is kept for winding down; ``left`` includes it.
        uncertain: the part of ``used`` that was charged in doubt.
    """

    unit: str
    of: str
    used: int
    limit: int
    set_aside: int = 0
    kept: int = 0
    uncertain: int = 0

    @property
    def left(self) -> int:
        """The amount that future requests may use."""
        return max(0, self.limit - self.used - self.set_aside)

    def __str__(self) -> str:
        unsure = f" (of it up to {self.uncertain:,} uncertain)" if self.uncertain else ""
        return f"{self.used:,} of {amount_in(self.unit, self.limit, self.of)}{unsure}"

    def left_shown(self) -> str:
        """Return the amount that is left as text, and the part of it that is kept."""
        text = amount_in(self.unit, self.left, self.of)
        if self.kept:
            kept = min(self.left, self.kept)
            text += f" ({dollars(kept) if self.unit == 'usd' else f'{kept:,}'} to wind down)"
        return text

    def facts(self) -> dict[str, Any]:
        """Return the balance as a field of the JSON report."""
        return {**attrs.asdict(self), "left": self.left}


@attrs.frozen
class RunSpend:
    """The spend of a run.

    Attributes:
        nanousd: its charges, in nano-dollars.
        requests: how many LLM requests it has made.
        uncertain_nanousd: the part that was charged in doubt: at most this much was not billed.
        cut_short: how many answers ended at a limit that was put in because of the budget.
        local: the models that were not charged, because they are on this machine, and how many
            requests each.
        unpriced: the models that were charged at fallback prices, and how many requests each.
        balances: the balances of its limits.
    """

    nanousd: int = 0
    requests: int = 0
    uncertain_nanousd: int = 0
    cut_short: int = 0
    unpriced: dict[str, int] = attrs.Factory(dict[str, int])
    local: dict[str, int] = attrs.Factory(dict[str, int])
    balances: tuple[RunBalance, ...] = ()

    @property
    def counted(self) -> tuple[RunBalance, ...]:
        """The balances in tokens and calls."""
        return tuple(each for each in self.balances if each.unit != "usd")

    @property
    def money(self) -> RunBalance | None:
        """The balance in money; None without such a limit."""
        return next((each for each in self.balances if each.unit == "usd"), None)


@attrs.frozen
class RunLimit:
    """One limit of a run, as it began.

    Attributes:
        unit: ``usd``, ``tokens`` or ``calls``.
        of: for calls: the glob of the tools and models that are counted; empty for all.
        limit: the amount in the unit.
    """

    unit: str
    of: str
    limit: int


@attrs.frozen
class WaitingRaise:
    """A request of a run that waits for a limit to be raised.

    Attributes:
        budget_id: the id of the limit.
        began: the limit as it began.
        limit, spent: as they were when the request began to wait.
        lacking: how much more than the limit it needs.
        deadline_ms: when it is refused, in Unix milliseconds.
        scope: the scope of the run's budget, as refusals name it.
    """

    budget_id: str
    began: RunLimit
    limit: int
    spent: int
    lacking: int
    deadline_ms: int
    scope: str

    @property
    def refusal(self) -> dict[str, Any]:
        """The run's limit, as refusals show it."""
        if self.began.unit == "usd":
            budget = {"limit_nanousd": self.limit, "spent_nanousd": self.spent}
            return {"budget": {"scope": self.scope, **budget}}
        counts = [self.began.of] if self.began.of else []
        counted = {"unit": self.began.unit, "limit": self.limit, "counts": counts}
        return {"counted": {"scope": self.scope, **counted}}

    def __str__(self) -> str:
        unit, of = self.began.unit, self.began.of
        if unit == "calls":
            return f"{self.spent:,} of {amount_in(unit, self.limit, of)} made, and a call waits"
        if unit == "tokens":
            return f"used {self.spent:,} of {amount_in(unit, self.limit)}, and a request waits"
        return f"spent {dollars(self.spent)} of {dollars(self.limit)}, and a request waits"
