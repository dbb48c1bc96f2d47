"""A lane: its lease, and how fast it has spent lately."""

from __future__ import annotations

from typing import Final

from guard.core.leases.lease import Lease

HORIZON_S: Final = 2.0
"""A question asks for the spending of this many seconds in advance."""
WINDOW_S: Final = 4.0
"""Spending is measured over the current window of this length, and the one before it."""
_LOW_SHARE: Final = 1 / 3
"""Share of the horizon's spending below which a lease is topped up, before a call has to wait."""


class Lane:
    """A lane, and its lease if it has one.

    Attributes:
        lease: the lease that its calls are taken from.
        calls: how many calls there were in this window.
        spent: what they have cost, in nano-dollars.
        began_s: when the window began.
        largest: the hold of the newest call that the gateway was asked about, in nano-dollars.
        ahead_s: the lease is not topped up again before then.
        asked_ahead: whether a top-up is under way.
    """

    __slots__ = (
        "_earlier",
        "ahead_s",
        "asked_ahead",
        "began_s",
        "calls",
        "largest",
        "lease",
        "spent",
    )

    def __init__(self, now_s: float) -> None:
        # Changed under the book's lock, except `calls`, which `take` adds to without it: a lost
        # increment makes the next estimate of the rate a little smaller, and nothing else.
        # `take` reads `lease` without the lock.
        self.lease: Lease | None = None
        self.began_s = now_s
        self.ahead_s = now_s
        self.asked_ahead = False
        self.spent = 0
        self.calls = 0
        self.largest = 0
        # The window before this one: what was spent, how many calls, and its length in seconds.
        self._earlier = (0, 0, 0.0)

    def recent(self, now_s: float) -> tuple[int, int]:
        """Return the money and the calls of ``HORIZON_S`` at the present rate.

        Begins the next window when this one is over.
        """
        passed_s = now_s - self.began_s
        spent, calls, earlier_s = self._earlier
        # Not below a second: the first calls of a lane would else look like a high rate.
        over_s = max(1.0, passed_s + earlier_s)
        horizon_ms, over_ms = int(HORIZON_S * 1000), int(over_s * 1000)
        found = (
            (spent + self.spent) * horizon_ms // over_ms,
            (calls + self.calls) * horizon_ms // over_ms,
        )
        if passed_s >= WINDOW_S:
            # A lane that was not looked at for so long says nothing about the present rate.
            stale = passed_s >= 2 * WINDOW_S
            self._earlier = (0, 0, 0.0) if stale else (self.spent, self.calls, passed_s)
            self.began_s, self.spent, self.calls = now_s, 0, 0
        return found

    def lacks(self, now_s: float) -> int:
        """Return what the lease should be topped up by now; 0 while it lasts.

        It should last for the next calls at the present rate, plus twice the largest: one whose
        answer is still unread, so that its hold has not settled, and one that begins meanwhile.
        """
        lease = self.lease
        # Under a rate cap the calls run out as well as the money, and a top-up grants only money.
        if lease is None or lease.calls is not None or self.asked_ahead or now_s < self.ahead_s:
            return 0
        spent, calls = self.recent(now_s)
        if not calls:
            return 0
        left = lease.free
        if left >= int(spent * _LOW_SHARE) + self.largest:
            return 0
        return max(0, spent + 2 * self.largest - left)
