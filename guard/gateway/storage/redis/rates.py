"""Rate caps shared by replicas: the same exact sliding windows as in memory, in Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from guard.gateway.domain.policy import CapUse
from guard.gateway.storage.memory_rates import BUCKETS_MAX, FULL_WAIT_MS
from guard.gateway.storage.redis import scripts
from guard.gateway.storage.redis.connection import RedisConnection


class RedisRates:
    """Counts calls in Redis, by its clock. No money depends on it.

    If Redis has lost its data, the windows begin anew. That allows at most the calls of one more
    window, like a restart of a gateway that counts in memory.

    A call whose answer is lost may have been counted: it is refused, and uses up a place in the
    window.

    Args:
        connection: to Redis.
        clock_ms: a clock in milliseconds instead of Redis's own, for tests.
        buckets_max: maximum counters of one organisation.
    """

    def __init__(
        self,
        connection: RedisConnection,
        *,
        clock_ms: Callable[[], int] | None = None,
        buckets_max: int = BUCKETS_MAX,
    ) -> None:
        self.connection = connection
        self._clock_ms = clock_ms or (lambda: -1)
        self._buckets_max = buckets_max
        self._take = connection.script(scripts.TAKE)
        self._lend = connection.script(scripts.LEND)
        self._settle = connection.script(scripts.SETTLE)
        self._extend = connection.script(scripts.EXTEND)

    async def take(self, organisation_id: str, uses: Sequence[CapUse]) -> int | None:
        """Count one call under every cap, or under none.

        Returns:
            ``None`` if the call may proceed, else the milliseconds until it may be tried again.

        Raises:
            StoreError: Redis is unavailable; the call must be refused.
        """
        wait_ms = await self.connection.run(
            self._take, _tag(organisation_id), self._clock_ms(), _uses(uses), self._buckets_max,
            FULL_WAIT_MS,
        )  # fmt: skip
        return None if wait_ms < 0 else int(wait_ms)

    async def lend(
        self, organisation_id: str, uses: Sequence[CapUse], name: str, wanted: int, ttl_ms: int
    ) -> int:
        """Count calls in advance, which the holder of a lease is going to make within a time.

        Returns:
            How many calls are lent.

        Raises:
            StoreError: Redis is unavailable.
        """
        if not uses:
            return 0
        return int(
            await self.connection.run(
                self._lend, _tag(organisation_id), self._clock_ms(), _uses(uses),
                self._buckets_max, name, wanted, ttl_ms,
            )
        )  # fmt: skip

    async def settle(
        self, organisation_id: str, name: str, unused: int, *, unless: str | None = None
    ) -> None:
        """End a loan: unused calls are free again, the others count as made now.

        Raises:
            StoreError: Redis is unavailable; the loan ends by itself.
        """
        await self.connection.run(
            self._settle, _tag(organisation_id), self._clock_ms(), name, unused, unless or ""
        )

    async def extend(
        self, organisation_id: str, name: str, ttl_ms: int, new_name: str | None = None
    ) -> None:
        """Give the holder of a loan more time, and the loan another name.

        Raises:
            StoreError: Redis is unavailable; the loan keeps its time and its name.
        """
        await self.connection.run(
            self._extend, _tag(organisation_id), self._clock_ms(), name, ttl_ms, new_name or name
        )


def _tag(organisation_id: str) -> str:
    return f"guard:rates:{{{organisation_id}}}"


def _uses(uses: Sequence[CapUse]) -> str:
    return json.dumps([[use.bucket, use.calls, use.per_ms] for use in uses])
