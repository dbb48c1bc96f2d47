"""What a budget would have stopped, replayed over the newest charges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from guard.core import globs
from guard.gateway.domain.records import BudgetRule
from guard.gateway.domain.usage import ChargedEvent
from guard.gateway.domain.windows import period_of

CHARGES_MAX: Final = 50_000
WORST_MAX: Final = 8


class ReachedWindow(Struct, kw_only=True):
    """One window in which the limit would have been reached."""

    scope_id: str
    period_start_ms: int
    spent_nanousd: int
    reached_at_ms: int
    stopped_calls: int
    stopped_nanousd: int


class BudgetPreview(Struct, kw_only=True):
    """The outcome. ``since_ms`` is the oldest charge replayed, ``None`` without charges."""

    charges: int
    since_ms: int | None
    windows: int
    reached: int
    stopped_calls: int
    stopped_nanousd: int
    worst: list[ReachedWindow]


class _Window(Struct):
    spent: int = 0
    reached_at_ms: int | None = None
    stopped_calls: int = 0
    stopped: int = 0


def _applies(target: str, scope_id: str) -> bool:
    if target in ("", scope_id):
        return True
    return globs.is_pattern(target) and globs.matches(target, scope_id)


def preview(budget: BudgetRule, newest_first: Sequence[ChargedEvent]) -> BudgetPreview:
    """Replay charges against a budget.

    A charge is stopped when its window had already spent the limit; the call that crosses the
    limit goes through.
    """
    windows: dict[tuple[str, int], _Window] = {}
    charges, since_ms = 0, None
    for charge in reversed(newest_first):
        if not _applies(budget.scope_id, charge.scope_id):
            continue
        if budget.scope_kind != "organisation" and not charge.scope_id:
            continue
        charges += 1
        since_ms = charge.at_ms if since_ms is None else min(since_ms, charge.at_ms)
        period_start_ms, _ = period_of(budget.window, charge.at_ms)
        window = windows.setdefault((charge.scope_id, period_start_ms), _Window())
        # Its cost counts below all the same: the window shows what was really spent in it.
        if window.spent >= budget.limit_nanousd:
            window.stopped_calls += 1
            window.stopped += charge.cost_nanousd
            if window.reached_at_ms is None:
                window.reached_at_ms = charge.at_ms
        window.spent += charge.cost_nanousd
        if window.spent >= budget.limit_nanousd and window.reached_at_ms is None:
            window.reached_at_ms = charge.at_ms
    reached = [
        ReachedWindow(
            scope_id=scope_id, period_start_ms=period_start_ms, spent_nanousd=window.spent,
            reached_at_ms=window.reached_at_ms, stopped_calls=window.stopped_calls,
            stopped_nanousd=window.stopped,
        )
        for (scope_id, period_start_ms), window in windows.items()
        if window.reached_at_ms is not None
    ]  # fmt: skip
    reached.sort(key=lambda window: (-window.stopped_nanousd, -window.period_start_ms))
    return BudgetPreview(
        charges=charges,
        since_ms=since_ms,
        windows=len(windows),
        reached=len(reached),
        stopped_calls=sum(window.stopped_calls for window in reached),
        stopped_nanousd=sum(window.stopped_nanousd for window in reached),
        worst=reached[:WORST_MAX],
    )
