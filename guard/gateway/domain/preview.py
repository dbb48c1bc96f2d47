"""What a policy change would have done to recent calls."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from guard.core import wire
from guard.gateway.domain import policy
from guard.gateway.domain.records import Policy

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
