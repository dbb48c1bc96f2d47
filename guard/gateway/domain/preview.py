"""What a policy would have decided about recent calls, and a budget about charges."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from guard.core import globs, wire
from guard.gateway.domain import policy
from guard.gateway.domain.key_hierarchy import counted_by
from guard.gateway.domain.records import BudgetRule, Policy
from guard.gateway.domain.usage import ChargedEvent
from guard.gateway.domain.windows import IN_UTC, Calendar, length_ms, period_of

CHARGES_MAX: Final = 50_000
WORST_MAX: Final = 8
RECENT_MAX: Final = 1000
EXAMPLES_MAX: Final = 50
ORGANISATION_BYTES_MAX: Final = 4 * 1024 * 1024
TOTAL_BYTES_MAX: Final = 64 * 1024 * 1024


class RecentCall(Struct):
    """A call as it was judged."""

    at_ms: int
    key_id: str
    call: wire.GateRequest


class Difference(Struct):
    """A call that the change decides differently."""

    recent: RecentCall
    before: str
    after: str
    reason: str


class RecentCalls:
    """The newest calls of each organisation, in memory: a preview needs traffic, not history.

    Bounded in calls and in bytes, for each organisation and in total. The organisation whose newest
    call is oldest is dropped first. A call larger than a hundredth of an organisation's share is
    not kept. Used on the loop only.
    """

    def __init__(self) -> None:
        # By organisation, the one with the newest call last.
        self._kept: collections.OrderedDict[str, _Kept] = collections.OrderedDict()
        # Estimated bytes of all calls in ``_kept``: the sum of its sizes.
        self._bytes = 0

    def note(self, organisation_id: str, recent: RecentCall) -> None:
        """Remember a call."""
        size = _size_of(recent.call)
        if size > ORGANISATION_BYTES_MAX // 100:
            return
        kept = self._kept.get(organisation_id)
        if kept is None:
            kept = self._kept[organisation_id] = _Kept(collections.deque(), 0)
        self._kept.move_to_end(organisation_id)
        kept.calls.append((size, recent))
        kept.size += size
        self._bytes += size
        while len(kept.calls) > RECENT_MAX or kept.size > ORGANISATION_BYTES_MAX:
            dropped, _ = kept.calls.popleft()
            kept.size -= dropped
            self._bytes -= dropped
        while self._bytes > TOTAL_BYTES_MAX:
            _, quiet = self._kept.popitem(last=False)
            self._bytes -= quiet.size

    def newest(self, organisation_id: str, limit: int) -> list[RecentCall]:
        """Return the newest calls, oldest first."""
        kept = self._kept.get(organisation_id)
        return [] if kept is None else [recent for _, recent in kept.calls][-limit:]


class _Kept(Struct):
    calls: collections.deque[tuple[int, RecentCall]]
    size: int


def _size_of(call: wire.GateRequest) -> int:
    """Estimate a call's bytes in memory: its texts at their widest, plus the objects."""
    letters = len(call.function) + len(call.model) + sum(map(len, call.tools))
    letters += len(call.tool_name or "") + len(call.workflow_id or "")
    return 1240 + 60 * len(call.tools) + 4 * letters


def compare(
    calls: Sequence[RecentCall], before: Sequence[Policy], after: Sequence[Policy]
) -> list[Difference]:
    """Judge each call under both sets of policies and return those with a different outcome.

    Rate caps are left out: whether one is reached depends on when calls come.
    """
    found = []
    old_rules, new_rules = policy.compiled(before), policy.compiled(after)
    for recent in calls:
        old, _ = _outcome(old_rules, recent)
        new, reason = _outcome(new_rules, recent)
        if old != new:
            found.append(Difference(recent, old, new, reason))
    return found


def _outcome(rules: Sequence[policy.Rules], recent: RecentCall) -> tuple[str, str]:
    verdict = policy.evaluate(rules, recent.call, recent.key_id)
    if verdict.refusal is not None:
        return f"refuse {verdict.refusal.error_code}", verdict.refusal.reason
    if verdict.approval is not None:
        return "pending", "a person has to approve it"
    return "allow", ""


def replaced(policies: Sequence[Policy], changed: Policy) -> list[Policy]:
    """Return the policies with the one of the same name replaced."""
    return [*(p for p in policies if p.name != changed.name), changed]


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


def _counted(budget: BudgetRule, scope_id: str) -> str | None:
    """Return the id whose balance counts a charge of a scope, if one does."""
    if budget.scope_kind == "organisation":
        return scope_id
    if budget.scope_kind == "key":
        return counted_by(budget.scope_id, scope_id)
    return scope_id if scope_id and globs.matches(budget.scope_id, scope_id) else None


def preview_budget(
    budget: BudgetRule, newest_first: Sequence[ChargedEvent], calendar: Calendar = IN_UTC
) -> BudgetPreview:
    """Replay charges against a budget.

    A charge is stopped when its window had already spent the limit; the call that crosses the
    limit goes through.
    """
    windows: dict[tuple[str, int], _Window] = {}
    length, opened = length_ms(budget.window), dict[str, int]()
    charges, since_ms = 0, None
    for charge in reversed(newest_first):
        scope_id = _counted(budget, charge.scope_id)
        if scope_id is None:
            continue
        charges += 1
        since_ms = charge.at_ms if since_ms is None else min(since_ms, charge.at_ms)
        period_start_ms, _ = period_of(budget.window, charge.at_ms, calendar)
        if length is not None:
            opened_ms = opened.get(scope_id)
            if opened_ms is not None and charge.at_ms < opened_ms + length:
                period_start_ms = opened_ms
            opened[scope_id] = period_start_ms
        window = windows.setdefault((scope_id, period_start_ms), _Window())
        # Its cost counts below all the same: the window shows what was really spent in it.
        if window.spent >= budget.limit:
            window.stopped_calls += 1
            window.stopped += charge.cost_nanousd
            if window.reached_at_ms is None:
                window.reached_at_ms = charge.at_ms
        window.spent += charge.cost_nanousd
        if window.spent >= budget.limit and window.reached_at_ms is None:
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
