"""Rate caps of one process: an exact sliding window for each bucket."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Final

from guard.gateway.domain.policy import CapUse

BUCKETS_MAX: Final = 10_000
"""Maximum counters of one organisation, whose agents choose some of the names."""
_FULL_WAIT_MS: Final = 1000


class _Windows:
    """The counters of one organisation."""

    def __init__(self) -> None:
        self.buckets: dict[str, tuple[collections.deque[int], int]] = {}
        self.cleaned_ms = 0

    def clean(self, now_ms: int) -> None:
        """Drop expired counters, at most once a second."""
        if not 0 <= now_ms - self.cleaned_ms < _FULL_WAIT_MS:
            self.cleaned_ms = now_ms
            self.buckets = {
                name: (window, per_ms)
                for name, (window, per_ms) in self.buckets.items()
                if window and window[-1] > now_ms - per_ms
            }


class MemoryRates:
    """Counts calls in memory. A restart forgets them, which allows at most one window more.

    A live counter is never dropped: an organisation with too many of them is refused, and never
    another.

    Args:
        clock_ms: a clock in milliseconds.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._organisations: dict[str, _Windows] = {}

    async def take(self, organisation_id: str, uses: Sequence[CapUse]) -> int | None:
        """Count one call under every cap, or under none.

        Returns:
            ``None`` if the call may proceed, else the milliseconds until it may be tried again.
        """
        now = self._clock_ms()
        own = self._organisations.setdefault(organisation_id, _Windows())
        if len(own.buckets) + len(uses) > BUCKETS_MAX:
            own.clean(now)
        wait_ms = 0
        windows = []
        for use in uses:
            found = own.buckets.get(use.bucket)
            if found is None:
                if len(own.buckets) >= BUCKETS_MAX:
                    return _FULL_WAIT_MS
                found = own.buckets[use.bucket] = (collections.deque(), use.per_ms)
            window = found[0]
            while window and window[0] <= now - use.per_ms:
                window.popleft()
            if len(window) >= use.calls:
                wait_ms = max(wait_ms, window[len(window) - use.calls] + use.per_ms - now)
            windows.append(window)
        if wait_ms:
            return wait_ms
        for window in windows:
            window.append(now)
        return None
