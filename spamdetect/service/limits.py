"""Rate and quota of a key, counted in the key store.

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
from spamdetect.service.keys import KeyRecord, StoreError, WouldWaitError
from spamdetect.service.respond import RefusalError, retry_after
from spamdetect.service.shares import Share, Wanted
from spamdetect.service.store import KeyStore

_log = logging.getLogger("spamdetect.service")

BURST_S: Final = 10.0
_MAX_KEYS: Final = 100_000
_FLUSH_INTERVAL_S: Final = 1.0
_SHARE_S: Final = 1.0
_SHARE_MAX: Final = 100


@attrs.frozen
class Allowance:
    """What a key may do; 0 means no limit."""

    rate_per_minute: int
    quota_per_day: int

    @property
    def is_none(self) -> bool:
        """Whether there is no limit."""
        return not self.rate_per_minute and not self.quota_per_day

    @classmethod
    def of(cls, key: KeyRecord, default: Allowance) -> Allowance:
        """The key's own limits, else the service's."""
        return cls(
            default.rate_per_minute if key.rate_per_minute is None else key.rate_per_minute,
            default.quota_per_day if key.quota_per_day is None else key.quota_per_day,
        )


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
    """A key's share in this process, and when it took it."""

    day: str = ""
    left: int = 0
    taken: int = 0
    taken_s: float = -_SHARE_S
    lock: asyncio.Lock = attrs.field(factory=asyncio.Lock)

    def spend(self, day: str, texts: int) -> bool:
        """Take texts from the share, if it has them and is not old."""
        is_there = self.left >= texts and self.day == day
        if is_there and time.monotonic() - self.taken_s < _SHARE_S:
            self.left -= texts
            return True
        return False


class StoreLimits:
    """Limits in the key store, which all processes on it share.

    A process takes what it needs of a key's limits for a moment, and twice as much when that does
    not last a second; what it does not use it gives back. A key without limits is only counted.

    Args:
        store: Where limits are kept, and usage is written every second.
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
        allowance = Allowance.of(key, self._default)
        if allowance.is_none:
            self._note(key.key_id, texts)
            return
        counter = self._counters.get(key.key_id)
        if counter is None or not counter.spend(self._day(), texts):
            raise WouldWaitError

    async def admit(self, key: KeyRecord, texts: int = 1) -> None:
        """See :class:`Limits`."""
        allowance = Allowance.of(key, self._default)
        if allowance.is_none:
            self._note(key.key_id, texts)
            return
        counter = self._counters.setdefault(key.key_id, _Counter())
        async with counter.lock:
            day = self._day()
            if counter.spend(day, texts):
                return
            share = await self._take(key.key_id, counter, day, texts, allowance)
        if share.wait_s:
            raise rate_refusal(allowance, share.wait_s)
        if not share.texts:
            raise quota_refusal(allowance, seconds_to_midnight(time.time()), share.left)
        if len(self._counters) > _MAX_KEYS:
            self._counters.popitem(last=False)

    async def _take(
        self, key_id: str, counter: _Counter, day: str, texts: int, allowance: Allowance
    ) -> Share:
        now_s = time.monotonic()
        was_short = now_s - counter.taken_s < _SHARE_S
        most = allowance.rate_per_minute // 60 or _SHARE_MAX
        wanted = Wanted(
            day,
            texts,
            min(2 * counter.taken, most) if was_short else 0,
            counter.left if counter.day == day else 0,
            allowance.rate_per_minute,
            allowance.quota_per_day,
            BURST_S,
        )
        # If the store fails, the rest of the share is lost, which is no more than a second's.
        counter.left = 0
        share = await self._store.take_share(key_id, wanted)
        counter.day, counter.left = day, max(0, share.texts - texts)
        if share.texts:
            counter.taken, counter.taken_s = share.texts, now_s
        return share

    def _day(self) -> str:
        wall_s = time.time()
        if wall_s >= self._day_ends_s:
            self._today = utc_day(wall_s)
            self._day_ends_s = wall_s + seconds_to_midnight(wall_s)
        return self._today

    def _note(self, key_id: str, texts: int) -> None:
        slot = (key_id, self._day())
        self._unsaved[slot] = self._unsaved.get(slot, 0) + texts
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_forever())

    async def usage_today(self, key_id: str) -> int:
        """See :class:`Limits`."""
        today = utc_day(time.time())
        counter = self._counters.get(key_id)
        unused = counter.left if counter is not None and counter.day == today else 0
        used = await self._store.usage(key_id, today)
        return used + self._unsaved.get((key_id, today), 0) - unused

    async def close(self) -> None:
        """See :class:`Limits`."""
        if self._flusher is not None:
            self._flusher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._flusher
        for key_id, counter in self._counters.items():
            if counter.left:
                slot = (key_id, counter.day)
                self._unsaved[slot] = self._unsaved.get(slot, 0) - counter.left
                counter.left = 0
        await self._flush()

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
