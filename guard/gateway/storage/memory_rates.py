"""Rate caps of one process: an exact sliding window for each bucket.

A cap allows so many calls in any time of a given length. Its bucket keeps the times of the calls
within that time. Holders of leases make calls without asking: they get a loan of calls, all of
which count from the moment of the loan until it is settled, or until the last of them is certain to
have left the window. So the cap holds even if the holder dies without settling.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Final

from guard.gateway.domain.policy import CapUse

BUCKETS_MAX: Final = 10_000
"""Maximum counters of one organisation, whose agents choose some of the names."""
FULL_WAIT_MS: Final = 1000
"""The wait that a refusal names at most if it is not known when there will be room."""


class Bucket:
    """One counter: when its newest calls were made, and how many more are lent."""

    __slots__ = ("lent", "name", "per_ms", "window")

    def __init__(self, name: str, per_ms: int) -> None:
        self.name = name
        # Times of calls in milliseconds, oldest first, except that the calls of a settled loan may
        # be a little older than those before them: they then count for a little longer.
        self.window: collections.deque[int] = collections.deque()
        # The length of the window.
        self.per_ms = per_ms
        # The sum of the calls of all loans that name this bucket.
        self.lent = 0

    def drop_old(self, now_ms: int) -> None:
        """Drop the calls that have left the window."""
        while self.window and self.window[0] <= now_ms - self.per_ms:
            self.window.popleft()


class Loan:
    """Calls that a lease may make without asking."""

    __slots__ = ("buckets", "calls", "first_name", "until_ms")

    def __init__(self, first_name: str, buckets: list[Bucket], calls: int, until_ms: int) -> None:
        # The name that it was made under; ``RateCounters.extend`` renames it.
        self.first_name = first_name
        # Never empty. Each call counts in every one of them.
        self.buckets = buckets
        self.calls = calls
        # When the last of the calls may be made.
        self.until_ms = until_ms


class Windows:
    """The counters of one organisation."""

    def __init__(self) -> None:
        # By name. At most ``BUCKETS_MAX`` of each.
        self.buckets: dict[str, Bucket] = {}
        self.loans: dict[str, Loan] = {}
        # When expired ones were last dropped.
        self.cleaned_ms = 0

    def clean(self, now_ms: int) -> None:
        """Drop expired counters and loans, at most once a second.

        Also if the clock has been set back since the last time.
        """
        if not 0 <= now_ms - self.cleaned_ms < FULL_WAIT_MS:
            self.cleaned_ms = now_ms
            self.end_loans(now_ms)
            self.buckets = {
                name: bucket
                for name, bucket in self.buckets.items()
                if bucket.lent or (bucket.window and bucket.window[-1] > now_ms - bucket.per_ms)
            }

    def end_loans(self, now_ms: int) -> None:
        """Drop loans whose calls count no longer, even if all were made at the last moment."""
        for name, loan in list(self.loans.items()):
            if loan.until_ms + max(bucket.per_ms for bucket in loan.buckets) <= now_ms:
                self.end_loan(name)

    def end_loan(self, name: str) -> Loan | None:
        """Take a loan out of its counters, and return it."""
        loan = self.loans.pop(name, None)
        if loan is not None:
            for bucket in loan.buckets:
                bucket.lent -= loan.calls
        return loan


class RateCounters:
    """Counts calls, and lends them; a subclass decides where the counters are stored.

    A counter in use is never dropped: if an organisation has too many of them, its calls are
    refused, and no other organisation notices.

    Args:
        clock_ms: a clock in milliseconds.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.clock_ms = clock_ms
        self.organisations: dict[str, Windows] = {}

    def take(self, organisation_id: str, uses: Sequence[CapUse]) -> int | None:
        """Count one call under every cap, or under none.

        Returns:
            ``None`` if the call may proceed, else the milliseconds until it may be tried again.
        """
        now = self.clock_ms()
        own = self.windows(organisation_id, uses, now)
        wait_ms = 0
        buckets = []
        # Every cap is checked before any is counted: a refused call must use up nothing.
        for use in uses:
            bucket = self.bucket(own, use, now)
            if bucket is None:
                return FULL_WAIT_MS
            count = len(bucket.window)
            # Loans are ended only where they matter: a scan of all of them for each call is slow.
            if bucket.lent and count + bucket.lent >= use.calls:
                own.end_loans(now)
            over = count + bucket.lent - use.calls
            # 1. Loans fill the cap by themselves, and may be settled at any time.
            if over >= count:
                wait_ms = max(wait_ms, min(use.per_ms, FULL_WAIT_MS))
            # 2. There is room once ``over + 1`` of the oldest calls have left the window.
            elif over >= 0:
                wait_ms = max(wait_ms, bucket.window[over] + use.per_ms - now)
            buckets.append(bucket)
        if wait_ms:
            return wait_ms
        for bucket in buckets:
            bucket.window.append(now)
        return None

    def lend(
        self, organisation_id: str, uses: Sequence[CapUse], name: str, wanted: int, ttl_ms: int
    ) -> int:
        """Count calls in advance, which the holder of a lease is going to make within a time.

        Args:
            organisation_id: whose caps.
            uses: the caps.
            name: of the loan; one of this name that exists is replaced.
            wanted: how many calls at most; fewer if that left too little to other holders.
            ttl_ms: how long the calls may be made.

        Returns:
            How many calls are lent.
        """
        now = self.clock_ms()
        own = self.windows(organisation_id, uses, now)
        buckets = [self.bucket(own, use, now) for use in uses]
        known = [bucket for bucket in buckets if bucket is not None]
        if not uses or len(known) < len(uses) or len(own.loans) >= BUCKETS_MAX:
            return 0
        rooms = [
            use.calls - len(bucket.window) - bucket.lent
            for use, bucket in zip(uses, known, strict=True)
        ]
        # An equal share for each loan, for this one and for the calls without a loan.
        calls = min(wanted, min(rooms) // (len(own.loans) + 2))
        if calls < 1:
            return 0
        # The question was repeated: its first answer was lost, and with it the loan.
        own.end_loan(name)
        own.loans[name] = Loan(name, known, calls, now + ttl_ms)
        for bucket in known:
            bucket.lent += calls
        return calls

    def settle(
        self, organisation_id: str, name: str, unused: int, *, unless: str | None = None
    ) -> None:
        """End a loan: unused calls are free again, the others count as made now.

        If the loan's time is over, they count as made at its end.

        Args:
            organisation_id: whose caps.
            name: of the loan.
            unused: how many of its calls were not made.
            unless: the loan stays if this was its first name.
        """
        own = self.organisations.get(organisation_id)
        found = None if own is None else own.loans.get(name)
        if own is None or found is None or found.first_name == unless:
            return
        loan = own.end_loan(name)
        assert loan is not None
        now = self.clock_ms()
        # When each call was made is not known. The latest possible time is safe: a call never
        # leaves the window too early.
        used = loan.calls - min(unused, loan.calls)
        for bucket in loan.buckets:
            bucket.window.extend([min(now, loan.until_ms)] * used)

    def extend(
        self, organisation_id: str, name: str, ttl_ms: int, new_name: str | None = None
    ) -> None:
        """Give the holder of a loan more time, and the loan another name.

        If a loan of that name exists, the question was repeated: the loan under the new name gets
        the time, and the one under the old name, which the repeat was lent, is ended.
        """
        own = self.organisations.get(organisation_id)
        if own is None:
            return
        wanted = new_name or name
        if wanted != name and wanted in own.loans:
            own.end_loan(name)
            name = wanted
        loan = own.loans.pop(name, None)
        if loan is not None:
            loan.until_ms = self.clock_ms() + ttl_ms
            own.loans[wanted] = loan

    def windows(self, organisation_id: str, uses: Sequence[CapUse], now_ms: int) -> Windows:
        """Return the counters of an organisation."""
        own = self.organisations.setdefault(organisation_id, Windows())
        if len(own.buckets) + len(uses) > BUCKETS_MAX:
            own.clean(now_ms)
        return own

    def bucket(self, own: Windows, use: CapUse, now_ms: int) -> Bucket | None:
        """Return the counter of a cap; ``None`` when the organisation has too many."""
        found = own.buckets.get(use.bucket)
        if found is None:
            if len(own.buckets) >= BUCKETS_MAX:
                return None
            found = own.buckets[use.bucket] = Bucket(use.bucket, use.per_ms)
        found.drop_old(now_ms)
        return found


class MemoryRates:
    """Counts calls in memory. A restart forgets them, which allows at most one window more.

    Args:
        clock_ms: a clock in milliseconds.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._counters = RateCounters(clock_ms)

    async def take(self, organisation_id: str, uses: Sequence[CapUse]) -> int | None:
        """Count one call under every cap, or under none."""
        return self._counters.take(organisation_id, uses)

    async def lend(
        self, organisation_id: str, uses: Sequence[CapUse], name: str, wanted: int, ttl_ms: int
    ) -> int:
        """Count calls in advance."""
        return self._counters.lend(organisation_id, uses, name, wanted, ttl_ms)

    async def settle(
        self, organisation_id: str, name: str, unused: int, *, unless: str | None = None
    ) -> None:
        """End a loan."""
        self._counters.settle(organisation_id, name, unused, unless=unless)

    async def extend(
        self, organisation_id: str, name: str, ttl_ms: int, new_name: str | None = None
    ) -> None:
        """Give the holder of a loan more time, and the loan another name."""
        self._counters.extend(organisation_id, name, ttl_ms, new_name)
