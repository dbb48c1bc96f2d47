"""The base of the SQL engines: work on a writer and on readers, long work in short steps."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Callable
from typing import ClassVar, Concatenate, Final, Generic, ParamSpec, TypeVar

import msgspec

from guard.gateway.domain.errors import StoreError, StoreFullError
from guard.gateway.domain.statistics import MoneySample, StoreStatistics
from guard.gateway.ledger import expiring
from guard.gateway.storage.group_writer import HEAVY_WEIGHT_MAX, GroupWriter
from guard.gateway.storage.sql import money_samples, samples
from guard.gateway.storage.sql.failures import store_error, summary
from guard.gateway.storage.sql.read_pool import PooledT, ReadPool
from guard.gateway.storage.sql.retention import STEPS_MAX, Retention
from guard.gateway.unit.connection import ReadingStore
from guard.gateway.unit.state import NO_ORGANISATION, Touches
from guard.gateway.unit.unit_of_work import UnitOfWork

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
UnitT = TypeVar("UnitT", bound=UnitOfWork)

LOOKUP_WAIT_S: Final = 10.0
"""If a look-up takes longer, its server counts as lost."""

REPORT_CONNECTIONS: Final = 2
REPORT_WAIT_S: Final = 900.0
"""The same for a report, which may read millions of rows."""

SAMPLE_WAIT_S: Final = 30.0
"""The same for the queries of the metrics, which run on the reports' connections."""

EXPIRE_EVERY_S: Final = 0.5
"""Reservations and approvals expire so often at least, however long other periodic work takes."""

_ROOM_BYTES: Final = 65_536
"""Bytes that are written to see whether a disk that was full has room again."""

_HEAVY: Final = Touches(weight=HEAVY_WEIGHT_MAX, is_own=True)
"""What a long step touches: any organisation, and in a group by itself."""


class SqlEngine(ReadingStore, Generic[UnitT, PooledT]):
    """Runs work; a subclass opens and closes the connections.

    Look-ups and reports have connections and threads of their own: the look-up of a key, or the
    replay of a kill to a client that connects, never waits for a report.

    Args:
        connect: opens a connection to read on.
        lookup_connections: for short queries, at most.
        monotonic_ms: monotonic time in milliseconds.
        retention: deletes old rows.

    Attributes:
        failures: exceptions of the database's driver.
        retention_steps: the most steps of retention in one sweep.
    """

    failures: ClassVar[tuple[type[Exception], ...]]
    retention_steps: ClassVar[int] = STEPS_MAX

    def __init__(
        self,
        connect: Callable[[], PooledT],
        lookup_connections: int,
        monotonic_ms: Callable[[], int],
        retention: Retention,
    ) -> None:
        self._monotonic_ms = monotonic_ms
        self._retention = retention
        # Both exist from ``open`` to ``close``. The unit is the writer's; the loop only reads
        # single numbers of it.
        self._writer: GroupWriter[UnitT] | None = None
        self._unit: UnitT | None = None
        # The last figures for metrics, and when the slower ones are due next, in monotonic time.
        # Written by the sweep, on the loop.
        self._samples = samples.Samples()
        self._money = MoneySample()
        self._next_money_ms = 0
        self._lookups = ReadPool(
            connect, lookup_connections, "guard-gateway-lookups", LOOKUP_WAIT_S
        )
        self._reports = ReadPool(
            connect, REPORT_CONNECTIONS, "guard-gateway-reports", REPORT_WAIT_S
        )
        self._pools = {"lookups": self._lookups, "reports": self._reports}

    # -- work ----------------------------------------------------------------------------------

    def write(
        self,
        touches: Touches,
        use_case: Callable[Concatenate[UnitT, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> asyncio.Future[T]:
        """Run a use case in the writer's next unit of work; its result comes after the commit."""
        if self._writer is None:
            raise StoreError("the store is not open")
        return self._writer.submit(
            lambda unit: use_case(unit, *args, **kwargs),
            touches,
            weight=touches.weight,
            is_own=touches.is_own,
        )

    async def look_up(self, work: Callable[[PooledT], T]) -> T:
        """Run a short query that requests and control channels wait for."""
        return await self._read(self._lookups, work)

    async def report(self, work: Callable[[PooledT], T], wait_s: float | None = None) -> T:
        """Run a query that may be slow, up to ``wait_s`` or the limit of reports."""
        return await self._read(self._reports, work, wait_s)

    async def _read(
        self, pool: ReadPool[PooledT], work: Callable[[PooledT], T], wait_s: float | None = None
    ) -> T:
        if self._writer is None:
            raise StoreError("the store is not open")
        try:
            return await pool.run(work, wait_s)
        except self.failures as exc:
            logger.error("reading from the store failed: %s", summary(exc))
            raise store_error(exc, writes=False) from exc

    async def has_room(self) -> bool:
        """Return whether the disk has room. After it was full, this writes to find out.

        Raises:
            StoreError: the store failed.
        """
        writer = self._writer
        if writer is not None and writer.is_full:
            # The second value frees the room of the first.
            for value in ("x" * _ROOM_BYTES, ""):
                try:
                    await self.write(NO_ORGANISATION, UnitOfWork.save_fact, "room", value)
                except StoreFullError:
                    return False
            writer.is_full = False
        return True

    # -- periodic work -------------------------------------------------------------------------

    async def sweep(self) -> int:
        """Expire what is due; then tend the store, and go on to expire while that takes.

        Returns:
            How many reservations have expired.
        """
        expired = await self._expire()
        tending = asyncio.create_task(self._tend())
        try:
            while not (await asyncio.wait([tending], timeout=EXPIRE_EVERY_S))[0]:
                expired += await self._expire()
        finally:
            tending.cancel()
            await asyncio.wait([tending])
        await tending
        return expired

    @abc.abstractmethod
    async def _expire(self) -> int:
        """Expire what is due, ahead of what clients ask for; return how many reservations."""

    async def _lapse(self, organisations: tuple[str, ...] | None) -> int:
        """Expire what is due in some or all organisations, a part in each unit of work."""
        # As heavy pieces, so that decisions have their turn between two parts.
        own = Touches(organisations, weight=HEAVY_WEIGHT_MAX, is_own=True)
        expired = part = await self.write(own, expiring.sweep)
        while part == expiring.PART_MAX:
            part = await self.write(own, expiring.expire_reservations)
            expired += part
        return expired

    async def _tend(self) -> None:
        """Delete old rows, in short steps, and sample figures."""
        await self.turn_answers()
        await self.retain()
        await self.sample()

    async def sample(self) -> bool:
        """Run the queries of the metrics if they are due; return whether they were."""
        now_ms, keep_ms = self._monotonic_ms(), self._retention.keep_ms
        if now_ms - self._samples.at_ms < samples.INTERVAL_MS:
            return False
        wall_ms = self.clock_ms()
        found = await self.look_up(lambda connection: samples.read(connection, wall_ms, keep_ms))
        self._samples = msgspec.structs.replace(found, at_ms=now_ms)
        if now_ms >= self._next_money_ms:
            # With a shorter limit than reports have: the sweep waits for it, and reservations
            # expire in the sweep. A query that fails is not repeated at once either.
            try:
                self._money = await self.report(
                    lambda connection: money_samples.read(connection, wall_ms), SAMPLE_WAIT_S
                )
            finally:
                ended_ms = self._monotonic_ms()
                self._next_money_ms = ended_ms + money_samples.PAUSES * (ended_ms - now_ms)
        return True

    async def retain(self) -> None:
        """Delete old rows in short steps that let requests in between."""
        for _ in range(self.retention_steps):
            if not self._retention.is_due(self.clock_ms()):
                break
            await self._step(self._retention.step)

    @abc.abstractmethod
    async def turn_answers(self) -> None:
        """Empty the older table of stored answers and use it, if its turn is due."""

    async def _step(self, work: Callable[[UnitT], object]) -> None:
        await self.write(_HEAVY, work)

    def statistics(self) -> StoreStatistics:
        """Return counters for metrics; nothing before the store is open."""
        writer, unit = self._writer, self._unit
        if writer is None or unit is None:
            return {}
        return {
            "groups": writer.groups,
            "items": writer.items,
            "healthy": writer.healthy,
            "queued": writer.queued,
            "writer": writer.statistics,
            "pools": {name: pool.use() for name, pool in self._pools.items()},
            "expired_reservations": unit.counts.expired,
            "retention_lag_s": self._samples.retention_lag_s,
            "webhook_backlog": self._samples.webhook_backlog,
            "money": self._money,
            "tally": unit.tally.counts,
        }
