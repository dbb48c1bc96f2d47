"""Retry policy as data: full-jitter backoff, a shared retry quota and ``Retry-After``."""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from msgspec import Struct

RETRY_AFTER_MAX_S: Final = 300.0
_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")


class Backoff(Struct, frozen=True):
    """Exponential backoff with full jitter.

    Args:
        base_s: upper bound of the first delay, in seconds.
        cap_s: upper bound of every delay.
    """

    base_s: float = 0.1
    cap_s: float = 30.0

    def delay_s(self, attempt: int, luck: float) -> float:
        """Return the delay before a retry.

        Args:
            attempt: 0 before the first retry.
            luck: a random number in [0, 1); the caller owns the randomness.
        """
        return luck * min(self.cap_s, self.base_s * 2.0 ** min(attempt, 32))


class LastTries(Struct, frozen=True):
    """When to try again before a final deadline.

    The pauses grow, and become shorter again towards the deadline: so the last try is close to it.

    >>> LastTries().pause_s(9, 0.5, silence_s=0.0, left_s=8.0)
    0.5
    >>> LastTries().pause_s(9, 0.5, silence_s=0.0, left_s=0.4)
    0.2
    >>> LastTries().pause_s(0, 0.5, silence_s=3.0, left_s=8.0)
    3.0
    >>> LastTries().pause_s(0, 0.5, silence_s=9.0, left_s=8.0) is None
    True

    Args:
        backoff: how the pauses grow.
        least_s: with less time than this no further try is made, in seconds.
    """

    backoff: Backoff = Backoff(base_s=0.1, cap_s=1.0)
    least_s: float = 0.05

    def pause_s(
        self, attempt: int, luck: float, *, silence_s: float, left_s: float
    ) -> float | None:
        """Return the pause before the next try, in seconds; None when there is no time for one.

        Args:
            attempt: 0 before the first retry.
            luck: a random number in [0, 1); the caller owns the randomness.
            silence_s: for how long the other side asked not to be called.
            left_s: the time to the deadline.
        """
        if left_s < self.least_s or silence_s >= left_s:
            return None
        return max(silence_s, min(self.backoff.delay_s(attempt, luck), left_s / 2))


class RetryQuota:
    """A token bucket shared by a process's requests: limits retries to a share of first tries.

    Each first try earns ``earn`` tokens and each retry costs one, so that a dead gateway sees at
    most ``1 + earn`` times the offered load once the bucket is empty.
    """

    def __init__(self, earn: float = 0.2, capacity: float = 10.0) -> None:
        self.earn = earn
        # Starts full, for the retries of a process that begins during an outage. Never below 0.
        self.capacity = self._tokens = capacity

    def first_try(self) -> None:
        """Record a request that is not a retry."""
        self._tokens = min(self.capacity, self._tokens + self.earn)

    def take(self) -> bool:
        """Take a token for one retry; False means that there must be no retry."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class RetryAfter:
    """Endpoints that asked not to be called for a while (``Retry-After``).

    >>> waits = RetryAfter()
    >>> waits.set("/api/v1/events", 5.0, now_s=100.0)
    5.0
    >>> waits.left_s("/api/v1/events", now_s=102.0)
    3.0

    Args:
        default: the waits for an endpoint that named none, by how often in a row it has refused;
            used without jitter.

    Attributes:
        until_s: until when each of them must not be called, by the caller's monotonic clock; empty
            when all may be called.
    """

    def __init__(self, default: Backoff | None = None) -> None:
        self.default = default or Backoff(base_s=1.0, cap_s=30.0)
        self.until_s: dict[str, float] = {}
        # How often each endpoint has asked for a wait since its last answer.
        self._in_a_row: dict[str, int] = {}

    def set(self, endpoint: str, wait_s: float | None, *, now_s: float) -> float:
        """Stop calling an endpoint for a while; return for how many seconds.

        Args:
            endpoint: the path.
            wait_s: the wait that it asked for; None when it gave none.
            now_s: the time, by a monotonic clock.
        """
        times = self._in_a_row.get(endpoint, 0)
        self._in_a_row[endpoint] = times + 1
        if wait_s is None:
            wait_s = self.default.delay_s(times, 1.0)
        wait_s = min(wait_s, RETRY_AFTER_MAX_S)
        # `max`: an answer that was under way must not shorten a wait.
        self.until_s[endpoint] = max(self.until_s.get(endpoint, 0.0), now_s + wait_s)
        return wait_s

    def left_s(self, endpoint: str, *, now_s: float) -> float:
        """Return for how many more seconds an endpoint must not be called; 0 if it may be."""
        return max(0.0, self.until_s.get(endpoint, 0.0) - now_s)

    def clear(self, endpoint: str) -> None:
        """Forget the waits of an endpoint that answered."""
        if endpoint in self._in_a_row:
            del self._in_a_row[endpoint]
            self.until_s.pop(endpoint, None)


def retry_after_s(value: str | None, *, now_s: float) -> float | None:
    """Read a ``Retry-After`` header (RFC 9110, 10.2.3): seconds or a date, capped at 300 s.

    Returns None when the header is absent or is neither (``nan``, ``inf``, ``-5``, ``1_000``).
    """
    if value is None:
        return None
    text = value.strip()
    if _SECONDS.fullmatch(text):
        seconds = float(text)
    else:
        try:
            moment = parsedate_to_datetime(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            seconds = moment.timestamp() - now_s
        except (TypeError, ValueError, IndexError, OverflowError):
            return None
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S)
