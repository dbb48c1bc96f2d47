"""Rate caps of one process: an exact sliding window for each bucket."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Final

from guard.gateway.domain.policy import CapUse

BUCKETS_MAX: Final = 10_000


class MemoryRates:
    """Counts calls in memory. A restart forgets them, which only ever allows one window more.

    Args:
        clock_ms: a clock in milliseconds.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._buckets: collections.OrderedDict[str, collections.deque[int]] = (
            collections.OrderedDict()
        )

    async def take(self, uses: Sequence[CapUse]) -> int | None:
        """Count one call under every cap, or under none.

        Returns:
            ``None`` when the call may go on, else the milliseconds until it may be tried again.
        """
        now = self._clock_ms()
        wait_ms = 0
        windows = []
        for use in uses:
            window = self._buckets.setdefault(use.bucket, collections.deque())
            self._buckets.move_to_end(use.bucket)
            while window and window[0] <= now - use.per_ms:
                window.popleft()
            if len(window) >= use.calls:
                wait_ms = max(wait_ms, window[len(window) - use.calls] + use.per_ms - now)
            windows.append(window)
        if wait_ms:
            return wait_ms
        for window in windows:
            window.append(now)
        while len(self._buckets) > BUCKETS_MAX:
            self._buckets.popitem(last=False)
        return None
