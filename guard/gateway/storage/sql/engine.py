"""What every SQL engine does: work on a writer and on readers, in steps where it is long."""

from __future__ import annotations

import abc
import asyncio
import functools
import logging
from collections.abc import Callable
from typing import ClassVar, Concatenate, Final, Generic, ParamSpec, TypeVar

import msgspec

from guard.gateway.domain.errors import StoreError, StoreFullError
from guard.gateway.domain.statistics import MoneySample, StoreStatistics
from guard.gateway.ledger.state import NOTHING, Scopes
from guard.gateway.storage.group_writer import INLINE_WEIGHT_MAX, GroupWriter
from guard.gateway.storage.sql import money_samples, samples
from guard.gateway.storage.sql.connection import ReadingStore
from guard.gateway.storage.sql.failures import store_error, summary
from guard.gateway.storage.sql.read_pool import PooledT, ReadPool
from guard.gateway.storage.sql.retention import STEPS_MAX, Retention
from guard.gateway.storage.sql.scope_days import EventSums
from guard.gateway.storage.sql.unit_of_work import SqlUnitOfWork

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
UnitT = TypeVar("UnitT", bound=SqlUnitOfWork)

LOOKUP_WAIT_S: Final = 10.0
"""A look-up that takes longer has lost its server."""

REPORT_CONNECTIONS: Final = 2
REPORT_WAIT_S: Final = 900.0
SAMPLE_WAIT_S: Final = 30.0
SUM_STEPS_MAX: Final = 8
"""Steps of one sweep that sum events by scope, for days, hours and tags: up to a third of the
writer's time."""

_ROOM_BYTES: Final = 65_536
"""What is written to see whether a disk that was full has room again."""

_LONG: Final = Scopes(weight=INLINE_WEIGHT_MAX + 1)
"""The scopes of a step that is not run on the loop."""


def _sum(sums: EventSums, _: SqlUnitOfWork) -> None:
    sums.step()


class SqlEngine(ReadingStore, Generic[UnitT, PooledT]):
    """Runs work; an engine opens and closes what it runs on.

    Look-ups and reports have connections and threads of their own: a key look-up or the replay for
    a kill never waits for a report.

    Args:
        connect: opens a connection to read on.
        lookup_connections: for short queries, at most.
        monotonic_ms: time that only passes, in milliseconds.
        retention: what is deleted, and when.

    Attributes:
        failures: exceptions of a failed database.
        retention_steps: of one sweep.
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
        self._writer: GroupWriter[UnitT] | None = None
        self._unit: UnitT | None = None
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
        scopes: Scopes,
        use_case: Callable[Concatenate[UnitT, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> asyncio.Future[T]:
        """Run a use case in the writer's next unit of work; its result comes after the commit."""
        if self._writer is None:
            raise StoreError("the store is not open")
        return self._writer.submit(
            lambda unit: use_case(unit, *args, **kwargs), scopes, weight=scopes.weight
        )

    async def look_up(self, work: Callable[[PooledT], T]) -> T:
        """Run a short query that requests and control channels wait for."""
        return await self._read(self._lookups, work)

    async def report(self, work: Callable[[PooledT], T], wait_s: float | None = None) -> T:
        """Run a query that may be slow; it is given up after a time."""
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
        """Tell whether the disk takes what is written; tried, by writing, after it was full.

        Raises:
            StoreError: the store failed.
        """
        writer = self._writer
        if writer is not None and writer.is_full:
            for value in ("x" * _ROOM_BYTES, ""):
                try:
                    await self.write(NOTHING, SqlUnitOfWork.save_fact, "room", value)
                except StoreFullError:
                    return False
            writer.is_full = False
        return True

    # -- periodic work -------------------------------------------------------------------------

    async def sample(self) -> bool:
        """Read the figures for metrics that need a query, if it is time; tell whether it was."""
        now_ms, keep_ms = self._monotonic_ms(), self._retention.keep_ms
        if now_ms - self._samples.at_ms < samples.INTERVAL_MS:
            return False
        wall_ms = self.clock_ms()
        found = await self.look_up(lambda reading: samples.read(reading, wall_ms, keep_ms))
        self._samples = msgspec.structs.replace(found, at_ms=now_ms)
        if now_ms >= self._next_money_ms:
            # The sweep waits for it, and must not wait like a report for a server that is away.
            try:
                self._money = await self.report(
                    lambda reading: money_samples.read(reading, wall_ms), SAMPLE_WAIT_S
                )
            finally:
                ended_ms = self._monotonic_ms()
                self._next_money_ms = ended_ms + money_samples.PAUSES * (ended_ms - now_ms)
        return True

    async def retain(self) -> None:
        """Remove old rows in short steps that let requests in between."""
        for _ in range(self.retention_steps):
            if not self._retention.is_due(self.clock_ms()):
                break
            await self._step(self._retention.step)

    @abc.abstractmethod
    async def turn_answers(self) -> None:
        """Empty the older table of stored answers and use it, if it is time."""

    async def sum_scopes(self) -> None:
        """Sum events by scope, tag, day and hour, in short steps like retention."""
        for _ in range(SUM_STEPS_MAX):
            due = [] if self._unit is None else [s for s in self._unit.scope_sums if s.is_due]
            if not due:
                break
            for sums in due:
                await self._step(functools.partial(_sum, sums))

    async def _step(self, work: Callable[[UnitT], object]) -> None:
        await self.write(_LONG, work)

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
