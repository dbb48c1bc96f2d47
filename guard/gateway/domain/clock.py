"""The store's clock: real time that a single wrong reading cannot upset."""

from __future__ import annotations

from typing import Final

CATCH_UP: Final = 10
"""How much faster than real time the clock may run to catch up with the machine's."""
_SMALL_MS: Final = 2000
"""Differences up to this are followed at once."""


class SteadyClock:
    """Follows the machine's clock in bounded steps of elapsed time, and never runs backwards. Pure.

    A reading that is far ahead moves the clock by at most ``CATCH_UP`` times the time that has
    passed, so live reservations and windows survive it; when the machine's clock is right again,
    the clock waits for it. After a real jump (a suspended machine) it has caught up after a ninth
    of the time that was missed: it gains nine seconds in each.

    Args:
        last_ms: the clock's last reading before the process began, 0 if there is none.
        wall_ms: the machine's clock now, in Unix milliseconds.
        monotonic_ms: the reading of a monotonic clock, in milliseconds.

    >>> clock = SteadyClock(0, wall_ms=1_000_000, monotonic_ms=0)
    >>> clock.read(wall_ms=63_072_000_000, monotonic_ms=100)
    1001000
    >>> clock.read(wall_ms=1_000_200, monotonic_ms=200)
    1001000
    """

    __slots__ = ("_monotonic_ms", "now_ms")

    def __init__(self, last_ms: int, wall_ms: int, monotonic_ms: int) -> None:
        # The newest reading, which never falls. Not before an earlier process's last one, which may
        # have been a little ahead; if it was further ahead, its clock was wrong.
        self.now_ms = max(wall_ms, min(last_ms, wall_ms + _SMALL_MS))
        # The monotonic clock at the newest reading.
        self._monotonic_ms = monotonic_ms

    def read(self, wall_ms: int, monotonic_ms: int) -> int:
        """Return the time now, in Unix milliseconds."""
        elapsed_ms = max(0, monotonic_ms - self._monotonic_ms)
        self._monotonic_ms = monotonic_ms
        # How far the machine's clock is ahead of where this one should be by now. If it is behind,
        # this one stands still until the machine's has caught up.
        ahead_ms = wall_ms - self.now_ms - elapsed_ms
        if ahead_ms <= _SMALL_MS:
            self.now_ms = max(self.now_ms, wall_ms)
        else:
            self.now_ms = min(wall_ms, self.now_ms + CATCH_UP * elapsed_ms)
        return self.now_ms
