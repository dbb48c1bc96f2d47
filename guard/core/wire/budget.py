"""A budget as the protocol shows it."""

from __future__ import annotations

from msgspec import Struct

from guard.core.wire.fields import cents


class Budget(Struct):
    """The tightest budget over a call, in nano-dollars and in cents."""

    limit_nanousd: int
    spent_nanousd: int
    reserved_nanousd: int
    remaining_nanousd: int
    limit_cents: float
    spent_cents: float
    reserved_cents: float
    remaining_cents: float
    resets_at_ms: int | None = None
    scope: str | None = None

    @classmethod
    def of(
        cls,
        *,
        limit: int,
        spent: int,
        reserved: int,
        resets_at_ms: int | None = None,
        scope: str | None = None,
    ) -> Budget:
        """Build a budget from nano-dollar amounts; the cents and the remainder follow."""
        remaining = limit - spent - reserved
        return cls(
            limit_nanousd=limit,
            spent_nanousd=spent,
            reserved_nanousd=reserved,
            remaining_nanousd=remaining,
            limit_cents=cents(limit),
            spent_cents=cents(spent),
            reserved_cents=cents(reserved),
            remaining_cents=cents(remaining),
            resets_at_ms=resets_at_ms,
            scope=scope,
        )


class CountedBudget(Struct, omit_defaults=True):
    """A budget of tokens or of calls over a call.

    Args:
        unit: ``tokens`` or ``calls``; older SDKs meet none, newer gateways may know more.
        limit, used, set_aside, left: in that unit; ``left`` is negative above the limit.
        counts: for calls: globs of the tools and models whose calls are counted; empty for all.
        resets_at_ms: when its period ends; None for one that never does.
        scope: what it is of.
        uncertain: the part that was charged in doubt: at most so many were not used.
        kept: how many are kept for winding down; ``left`` has them too.
        winding_down: whether these are all that is left, or the rest was not enough for a request.
    """

    unit: str
    limit: int
    used: int
    set_aside: int = 0
    left: int = 0
    counts: list[str] = []
    resets_at_ms: int | None = None
    scope: str | None = None
    uncertain: int = 0
    kept: int = 0
    winding_down: bool = False
