"""The calls that a rate cap has counted in its sliding window, and those that it has lent. Pure.

A cap allows so many calls in any time of a given length. Holders of leases make calls without
asking: what a cap has lent to a lease counts until the lease gives it back, or ends.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

EXACT_MAX: Final = 64
"""So many times of calls are kept as they are; where there are more, calls that come within a part
of the window are kept as one time, the last of them. Such a call counts for that much longer."""
PARTS: Final = 64
FULL_WAIT_MS: Final = 1000
"""The wait that a refusal names at most if it is not known when there will be room."""


class CapUse(Struct, frozen=True):
    """One rate cap as it counts one call.

    Attributes:
        bucket: names the counter.
        calls, per_ms: as in the cap.
        waits: whether a call above the cap waits for its turn.
    """

    bucket: str
    calls: int
    per_ms: int
    waits: bool = False


class RateWindow(Struct, frozen=True):
    """What a cap has counted.

    Attributes:
        per_ms: the length of the window.
        ends_ms: when the last of its calls counts no longer.
        lent: calls that leases may make without asking.
        loans: how many leases hold such calls.
        times: when calls were made, and how many, oldest first.
    """

    per_ms: int
    ends_ms: int = 0
    lent: int = 0
    loans: int = 0
    times: tuple[tuple[int, int], ...] = ()

    def at(self, now_ms: int, per_ms: int) -> RateWindow:
        """Return the window without the calls that have left it."""
        after_ms = now_ms - per_ms
        if per_ms == self.per_ms and not (self.times and self.times[0][0] <= after_ms):
            return self
        times = tuple([each for each in self.times if each[0] > after_ms])
        return replace(self, per_ms=per_ms, times=times)

    def wait_ms(self, use: CapUse, now_ms: int) -> int:
        """Return how long a call has to wait for room; 0 if there is some.

        >>> window = RateWindow(1000).plus(1, 0).plus(1, 400)
        >>> [window.wait_ms(CapUse("", calls, 1000), 500) for calls in (3, 2, 1, 0)]
        [0, 500, 900, 1000]
        """
        made = self.made
        leave = made + self.lent + 1 - use.calls
        if leave <= 0:
            return 0
        # Loans fill the cap by themselves, and may end at any time.
        if leave > made:
            return min(use.per_ms, FULL_WAIT_MS)
        for at_ms, calls in self.times:
            leave -= calls
            if leave <= 0:
                return at_ms + use.per_ms - now_ms
        raise AssertionError("fewer calls are kept than were counted")

    @property
    def made(self) -> int:
        """How many calls it counts, without those that are lent."""
        return sum([calls for _, calls in self.times])

    def plus(self, calls: int, at_ms: int) -> RateWindow:
        """Return the window with more calls, which were made at a time at the latest."""
        if not calls:
            return self
        times = self.times
        # One that is older than the last counts with it, and so for a little longer.
        last_ms, last = times[-1] if times else (at_ms, 0)
        at_ms = max(at_ms, last_ms)
        part_ms = self.per_ms // PARTS if len(times) >= EXACT_MAX else 1
        if times and at_ms // max(1, part_ms) == last_ms // max(1, part_ms):
            times, calls = times[:-1], calls + last
        return replace(
            self, ends_ms=max(self.ends_ms, at_ms + self.per_ms), times=(*times, (at_ms, calls))
        )
