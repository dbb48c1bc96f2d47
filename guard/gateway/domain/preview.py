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
    """The newest calls of each organisation, in memory: a preview needs traffic, not history."""

    def __init__(self) -> None:
        self._calls: dict[str, collections.deque[RecentCall]] = {}

    def note(self, organisation_id: str, recent: RecentCall) -> None:
        """Remember a call."""
        calls = self._calls.get(organisation_id)
        if calls is None:
            calls = self._calls[organisation_id] = collections.deque(maxlen=RECENT_MAX)
        calls.append(recent)

    def newest(self, organisation_id: str, limit: int) -> list[RecentCall]:
        """Return the newest calls, oldest first."""
        return list(self._calls.get(organisation_id, ()))[-limit:]


def compare(
    calls: Sequence[RecentCall], before: Sequence[Policy], after: Sequence[Policy]
) -> list[Difference]:
    """Judge each call under both sets of policies and return those that come out differently.

    Rate caps are left out: whether one is reached depends on when calls come.
    """
    found = []
    for recent in calls:
        old, _ = _outcome(before, recent)
        new, reason = _outcome(after, recent)
        if old != new:
            found.append(Difference(recent, old, new, reason))
    return found


def _outcome(policies: Sequence[Policy], recent: RecentCall) -> tuple[str, str]:
    verdict = policy.evaluate(policies, recent.call, recent.key_id)
    if verdict.refusal is not None:
        return f"refuse {verdict.refusal.error_code}", verdict.refusal.reason
    if verdict.approval is not None:
        return "pending", "a person has to approve it"
    return "allow", ""


def replaced(policies: Sequence[Policy], changed: Policy) -> list[Policy]:
    """Return the policies with one put in the place of its namesake."""
    return [*(p for p in policies if p.name != changed.name), changed]
