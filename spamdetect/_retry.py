"""When to retry: pure decisions, with time and randomness as arguments."""

from __future__ import annotations

import random
import threading
from email.utils import parsedate_to_datetime
from typing import Final

import attrs

RETRYABLE_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
RETRY_AFTER_CAP_S: Final = 60.0


@attrs.frozen
class RetryPolicy:
    """How often and how long.

    Attributes:
        retries: Further attempts after the first.
        base_s: Upper bound of the first pause in seconds; it doubles with each attempt.
        cap_s: Upper bound of any pause in seconds.
    """

    retries: int = 2
    base_s: float = 0.1
    cap_s: float = 5.0

    def pause_s(self, attempt: int, chance: float) -> float:
        """Pause before retry number ``attempt`` (from 1): exponential with full jitter.

        Args:
            attempt: Number of the retry, from 1.
            chance: A random number in [0, 1).
        """
        return float(chance * min(self.cap_s, self.base_s * 2.0 ** (attempt - 1)))


class RetryQuota:
    """Token bucket that keeps retries to a fifth of the offered load when a service is down.

    Each first attempt puts ``deposit`` tokens in, each retry takes one out. Shared by every
    client of the process, so that many clients together do not overwhelm a failing service.

    Args:
        capacity: Maximum tokens held; also the initial number.
        deposit: Tokens per first attempt.
    """

    def __init__(self, capacity: float = 10.0, deposit: float = 0.2) -> None:
        self._capacity = capacity
        self._deposit = deposit
        self._tokens = capacity
        self._lock = threading.Lock()

    def note_attempt(self) -> None:
        """Count a first attempt."""
        with self._lock:
            self._tokens = min(self._capacity, self._tokens + self._deposit)

    def take(self) -> bool:
        """Take one token for a retry; False when none is left."""
        with self._lock:
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True


class Quiet:
    """The pause that a ``Retry-After`` imposes on every call to one service."""

    def __init__(self) -> None:
        self._until_s = float("-inf")
        self.status_code = 429

    def remaining_s(self, now_s: float) -> float:
        """Seconds of the pause left at ``now_s``."""
        return max(0.0, self._until_s - now_s)

    def ask(self, until_s: float, status_code: int) -> None:
        """Pause until ``until_s``, unless a longer pause is already in effect."""
        if until_s > self._until_s:
            self._until_s = until_s
            self.status_code = status_code


def parse_retry_after(value: str | None, wall_s: float) -> float | None:
    """Read ``Retry-After``: seconds or an HTTP date (RFC 9110, 10.2.3), capped at 60 s.

    Args:
        value: The header, or None when the answer had none.
        wall_s: Unix time now, in seconds, to measure a date against.

    Returns:
        Seconds to wait, at least 0, or None when absent or unreadable.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(RETRY_AFTER_CAP_S, float(text[:9]))
    try:
        moment = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(RETRY_AFTER_CAP_S, max(0.0, moment - wall_s))


def random_chance() -> float:
    """A random number in [0, 1) for the jitter."""
    return random.random()


PROCESS_QUOTA: Final = RetryQuota()
