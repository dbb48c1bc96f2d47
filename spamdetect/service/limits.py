"""Rate and quota of a key: the arithmetic, and the in-process limiter.

The rate is a generic cell rate algorithm (one number per key): requests are spaced evenly on
average, with a burst of ten seconds' worth. The quota counts requests per UTC day.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Final, Protocol

import attrs

from spamdetect.models import ErrorCode
from spamdetect.service.keys import KeyRecord, KeyStore, StoreError, WouldWaitError
from spamdetect.service.respond import RefusalError, retry_after

_log = logging.getLogger("spamdetect.service")

BURST_S: Final = 10.0
_MAX_KEYS: Final = 100_000
_FLUSH_INTERVAL_S: Final = 1.0


@attrs.frozen
class Allowance:
    """What a key may do; 0 means no limit."""

    rate_per_minute: int
    quota_per_day: int

    @classmethod
    def of(cls, key: KeyRecord, default: Allowance) -> Allowance:
        """The key's own limits, else the service's."""
        return cls(
            default.rate_per_minute if key.rate_per_minute is None else key.rate_per_minute,
            default.quota_per_day if key.quota_per_day is None else key.quota_per_day,
        )


def next_cell(
    cell_s: float, now_s: float, rate_per_minute: int, burst_s: float = BURST_S, texts: int = 1
) -> tuple[float, float]:
    """Count texts against a rate (generic cell rate algorithm).

    Several together are accepted when one would be, however many they are, and the next ones wait
    until the rate has made up for them.

    Args:
        cell_s: The key's number after its last request; 0 before the first.
        now_s: Time in seconds.
        rate_per_minute: The rate, above 0.
        burst_s: How many seconds' worth of requests may come at once.
        texts: How many come together.

    Returns:
        The new number and 0, or the old number and the seconds until a request is accepted again.
    """
    interval_s = 60.0 / rate_per_minute
    tolerance_s = max(burst_s, interval_s) - interval_s
    start_s = max(cell_s, now_s)
    if start_s - now_s > tolerance_s:
        return cell_s, start_s - now_s - tolerance_s
    return start_s + interval_s * texts, 0.0


def utc_day(wall_s: float) -> str:
    """The UTC day of a Unix time, as ``YYYY-MM-DD``."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d")


def seconds_to_midnight(wall_s: float) -> float:
    """Seconds until the UTC day ends."""
    return 86_400.0 - wall_s % 86_400.0


def rate_refusal(allowance: Allowance, wait_s: float) -> RefusalError:
    """A 429 for an exceeded rate."""
    return RefusalError(
        429,
        ErrorCode.RATE_LIMITED,
        f"This key may send {allowance.rate_per_minute} requests per minute; see Retry-After.",
        headers=retry_after(wait_s),
    )


def quota_refusal(allowance: Allowance, wait_s: float, left: int = 0) -> RefusalError:
    """A 429 for an exceeded quota; some may be ``left``, but fewer than came."""
    state = f"are used up but for {left}" if left > 0 else "are used up"
    return RefusalError(
        429,
        ErrorCode.QUOTA_EXCEEDED,
        f"This key's {allowance.quota_per_day} requests of today (UTC) {state}.",
        headers=retry_after(wait_s),
    )


class Limits(Protocol):
    """Counts requests against the limits of their keys."""

    def admit_now(self, key: KeyRecord, texts: int = 1) -> None:
        """:meth:`admit` without waiting.

        Raises:
            WouldWaitError: The limiter must be awaited; the request was not counted.
        """

    async def admit(self, key: KeyRecord, texts: int = 1) -> None:
        """Count texts, all or none, or raise :class:`RefusalError` 429."""

    async def usage_today(self, key_id: str) -> int:
        """Requests of a key on this UTC day."""

    async def close(self) -> None:
        """Store what is only in memory, and release connections."""


@attrs.define
class _Counter:
    cell_s: float = 0.0
    day: str = ""
    used: int = 0


class MemoryLimits:
    """Limits of one process; the day's counts survive a restart in the key store.

    Args:
        store: Where usage is written, every second.
        default: Limits of keys without their own.
    """

    def __init__(self, store: KeyStore, default: Allowance) -> None:
        self._store = store
        self._default = default
        self._counters: OrderedDict[str, _Counter] = OrderedDict()
        self._unsaved: dict[tuple[str, str], int] = {}
        self._day_ends_s = 0.0
        self._today = ""
        self._flusher: asyncio.Task[None] | None = None

    def admit_now(self, key: KeyRecord, texts: int = 1) -> None:
        """See :class:`Limits`."""
        wall_s = time.time()
        counter = self._counters.get(key.key_id)
        if counter is None or wall_s >= self._day_ends_s or counter.day != self._today:
            raise WouldWaitError
        self._count(key, counter, wall_s, texts)

    async def admit(self, key: KeyRecord, texts: int = 1) -> None:
        """See :class:`Limits`."""
        wall_s = time.time()
        if wall_s >= self._day_ends_s:
            self._today = utc_day(wall_s)
            self._day_ends_s = wall_s + seconds_to_midnight(wall_s)
        counter = self._counters.get(key.key_id)
        if counter is None or counter.day != self._today:
            counter = await self._load(key.key_id, counter)
        self._count(key, counter, wall_s, texts)

    def _count(self, key: KeyRecord, counter: _Counter, wall_s: float, texts: int) -> None:
        default = self._default
        rate, quota = key.rate_per_minute, key.quota_per_day
        rate = default.rate_per_minute if rate is None else rate
        quota = default.quota_per_day if quota is None else quota
        if quota and counter.used + texts > quota:
            left = quota - counter.used
            raise quota_refusal(Allowance(rate, quota), seconds_to_midnight(wall_s), left)
        if rate:
            counter.cell_s, wait_s = next_cell(counter.cell_s, time.monotonic(), rate, texts=texts)
            if wait_s:
                raise rate_refusal(Allowance(rate, quota), wait_s)
        counter.used += texts
        slot = (key.key_id, self._today)
        self._unsaved[slot] = self._unsaved.get(slot, 0) + texts
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_forever())

    async def usage_today(self, key_id: str) -> int:
        """See :class:`Limits`."""
        today = utc_day(time.time())
        return await self._store.usage(key_id, today) + self._unsaved.get((key_id, today), 0)

    async def close(self) -> None:
        """See :class:`Limits`."""
        if self._flusher is not None:
            self._flusher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._flusher
        await self._flush()

    async def _load(self, key_id: str, old: _Counter | None) -> _Counter:
        used = await self.usage_today(key_id)
        # Another task may have loaded it while this one waited; its counts must not be lost.
        current = self._counters.get(key_id)
        if current is not None and current.day == self._today:
            return current
        counter = _Counter(cell_s=old.cell_s if old else 0.0, day=self._today, used=used)
        self._counters[key_id] = counter
        while len(self._counters) > _MAX_KEYS:
            self._counters.popitem(last=False)
        return counter

    async def _flush_forever(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_INTERVAL_S)
            await self._flush()

    async def _flush(self) -> None:
        counts, self._unsaved = self._unsaved, {}
        if not counts:
            return
        try:
            await self._store.add_usage(counts)
        except StoreError as error:
            _log.warning("usage counts are kept in memory: %s", error)
            for slot, requests in counts.items():
                self._unsaved[slot] = self._unsaved.get(slot, 0) + requests
