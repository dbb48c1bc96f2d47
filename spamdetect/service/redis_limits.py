"""Limits that replicas share: one script in Redis decides and counts a request atomically."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, Self

from spamdetect.errors import SpamConfigError
from spamdetect.service.keys import KeyRecord, WouldWaitError
from spamdetect.service.limits import (
    BURST_S,
    Allowance,
    StoreLimits,
    quota_refusal,
    rate_refusal,
    seconds_to_midnight,
    utc_day,
)
from spamdetect.service.metrics import Metrics

if TYPE_CHECKING:
    from redis.asyncio import Redis

_log = logging.getLogger("spamdetect.service")

# The arithmetic of shares.next_cell and the day's count, on Redis's clock, so that the
# replicas' clocks do not matter. Returns {0 taken | 1 rate | 2 quota, milliseconds to wait or
# what is left of the quota}.
_SCRIPT: Final = """
local rate, quota, burst_s = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local texts = tonumber(ARGV[4])
if quota > 0 then
  local left = quota - tonumber(redis.call('GET', KEYS[2]) or '0')
  if texts > left then return {2, left} end
end
if rate > 0 then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
  local interval = 60 / rate
  local tolerance = math.max(burst_s, interval) - interval
  local cell = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
  if cell - now > tolerance then
    return {1, math.ceil((cell - now - tolerance) * 1000)}
  end
  local after = cell + interval * texts
  redis.call('SET', KEYS[1], string.format('%.6f', after), 'PX',
             math.ceil((after - now) * 1000) + 1000)
end
redis.call('INCRBY', KEYS[2], texts)
redis.call('EXPIRE', KEYS[2], 172800)
return {0, 0}
"""
_TIMEOUT_S: Final = 0.25
_RETRY_S: Final = 1.0


class RedisLimits:
    """Limits in Redis; while it cannot be reached, each replica counts for itself.

    A limiter that refused everybody would turn an outage of Redis into one of the service, and
    one that let everything pass would limit nothing.

    Args:
        redis: The connection.
        fallback: Limiter of this process.
        default: Limits of keys without their own.
        metrics: Counts requests that were decided without Redis.
    """

    def __init__(
        self, redis: Redis, fallback: StoreLimits, default: Allowance, metrics: Metrics
    ) -> None:
        self._redis = redis
        self._script: Any = redis.register_script(_SCRIPT)
        self._fallback = fallback
        self._default = default
        self._metrics = metrics
        self._away_until_s = 0.0

    @classmethod
    def open(cls, url: str, fallback: StoreLimits, default: Allowance, metrics: Metrics) -> Self:
        """Prepare the connection; the first request opens it.

        Raises:
            SpamConfigError: The URL is invalid, or redis is not installed.
        """
        try:
            from redis.asyncio import Redis
        except ImportError:
            raise SpamConfigError(
                "Shared limits need redis: pip install 'redis[hiredis]'."
            ) from None
        try:
            redis = Redis.from_url(
                url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
            )
        except ValueError:
            raise SpamConfigError(
                "The Redis URL must look like redis://host:6379/0 (SPAMDETECT_REDIS_URL)."
            ) from None
        return cls(redis, fallback, default, metrics)

    def admit_now(self, key: KeyRecord, texts: int = 1) -> None:
        """See :class:`~spamdetect.service.limits.Limits`."""
        raise WouldWaitError

    async def admit(self, key: KeyRecord, texts: int = 1) -> None:
        """See :class:`~spamdetect.service.limits.Limits`."""
        from redis.exceptions import RedisError

        if time.monotonic() < self._away_until_s:
            await self._admit_alone(key, texts)
            return
        allowance = Allowance.of(key, self._default)
        wall_s = time.time()
        try:
            outcome, number = await self._script(
                keys=_names(key.key_id, utc_day(wall_s)),
                args=[allowance.rate_per_minute, allowance.quota_per_day, BURST_S, texts],
            )
        except (RedisError, OSError, TimeoutError) as error:
            # Not every request should wait for an unreachable server.
            self._away_until_s = time.monotonic() + _RETRY_S
            _log.warning("limits are counted in the process: Redis: %s", type(error).__name__)
            await self._admit_alone(key, texts)
            return
        if outcome == 1:
            raise rate_refusal(allowance, number / 1000)
        if outcome == 2:
            raise quota_refusal(allowance, seconds_to_midnight(wall_s), number)

    async def usage_today(self, key_id: str) -> int:
        """See :class:`~spamdetect.service.limits.Limits`."""
        from redis.exceptions import RedisError

        try:
            used = await self._redis.get(_names(key_id, utc_day(time.time()))[1])
        except (RedisError, OSError, TimeoutError):
            return await self._fallback.usage_today(key_id)
        return int(used or 0) + await self._fallback.usage_today(key_id)

    async def close(self) -> None:
        """See :class:`~spamdetect.service.limits.Limits`."""
        await self._redis.aclose()
        await self._fallback.close()

    async def _admit_alone(self, key: KeyRecord, texts: int) -> None:
        self._metrics.limit_fallbacks.inc()
        await self._fallback.admit(key, texts)


def _names(key_id: str, day: str) -> list[str]:
    # The braces keep both keys in one slot of a Redis cluster.
    return [f"spamdetect:{{{key_id}}}:rate", f"spamdetect:{{{key_id}}}:used:{day}"]
