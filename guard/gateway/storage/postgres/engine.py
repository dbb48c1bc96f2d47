"""Life cycle of the store over PostgreSQL: the writer, the readers, and what other replicas do."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
import psycopg

from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.errors import StoreError, StoreLostError
from guard.gateway.domain.statistics import StoreStatistics
from guard.gateway.ledger.state import Scopes
from guard.gateway.storage.group_writer import ANYTHING, GroupWriter
from guard.gateway.storage.postgres import schema
from guard.gateway.storage.postgres.connection import ReadConnection, WriteConnection
from guard.gateway.storage.postgres.listener import Listener
from guard.gateway.storage.postgres.notices import Feed
from guard.gateway.storage.postgres.peers import PostgresPeers
from guard.gateway.storage.postgres.rates import PostgresRates
from guard.gateway.storage.postgres.read_pool import ReadPool
from guard.gateway.storage.postgres.unit_of_work import PostgresUnitOfWork
from guard.gateway.storage.sql import samples
from guard.gateway.storage.sql.retention import STEPS_MAX, Retention
from guard.gateway.storage.sql.rows import monotonic_clock_ms, wall_clock_ms

logger = logging.getLogger(__name__)

T = TypeVar("T")
LOOKUP_CONNECTIONS: Final = 4
REPORT_CONNECTIONS: Final = 2
RETRY_S: Final = 0.5
"""The writer's lost connection is opened again after about so long; the time is jittered."""

SUM_STEPS_MAX: Final = 8


_OPEN: Final = (
    "SELECT count(*), count(*) FILTER (WHERE basis = 'lease'),"
    " coalesce(sum(held) FILTER (WHERE basis = 'lease'), 0),"
    " (SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
    " WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r')"
    " FROM reservations WHERE state = 'open'"
)


class _Open(NamedTuple):
    """What is open in the whole database, whatever replica opened it, and its size."""

    reservations: int = 0
    leases: int = 0
    leased_nanousd: int = 0
    database_bytes: int = 0


class PostgresEngine:
    """Connects to the database, and runs work on a writer and on readers.

    Args:
        dsn: a connection URI or string of libpq; tables are in the first schema of its
            ``search_path``.
        clock_ms: a clock in place of the database's, for tests.
        retention_days: how long data is kept; 0 keeps everything.
        audit_retention_days: how long the audit log is kept; 0 keeps all of it.
    """

    def __init__(
        self,
        dsn: str,
        *,
        clock_ms: Callable[[], int] | None = None,
        monotonic_ms: Callable[[], int] | None = None,
        retention_days: int = 0,
        audit_retention_days: int = 0,
    ) -> None:
        self._dsn = dsn
        self._test_clock_ms = clock_ms
        self._monotonic_ms = monotonic_ms or clock_ms or monotonic_clock_ms
        self._writer: GroupWriter[PostgresUnitOfWork] | None = None
        self._unit: PostgresUnitOfWork | None = None
        self._listener: Listener | None = None
        self._retention = Retention(retention_days, audit_retention_days)
        self._feed = Feed()
        self._next_try_s = 0.0
        self.peers = PostgresPeers(self.look_up, self._sender)
        self.rates = PostgresRates(self._write_connection, clock_ms)
        self._samples = samples.Samples()
        self._open_now = _Open()
        self._lookups = ReadPool(self._read_connection, LOOKUP_CONNECTIONS, "guard-gateway-lookups")
        self._reports = ReadPool(self._read_connection, REPORT_CONNECTIONS, "guard-gateway-reports")

    def clock_ms(self) -> int:
        """Return the database's time as far as it is known here, in Unix milliseconds."""
        if self._test_clock_ms is not None:
            return self._test_clock_ms()
        unit = self._unit
        return wall_clock_ms() if unit is None else unit.time_ms()

    # -- life cycle ----------------------------------------------------------------------------

    async def open(self, listener: Callable[[Sequence[PostCommitEvent]], None]) -> None:
        """Connect, bring the schema up to date, and start the writer and the listener.

        Raises:
            StoreError: the database cannot be reached or used.
        """
        loop = asyncio.get_running_loop()
        try:
            unit = self._unit = await asyncio.to_thread(self._open)

            def deliver(events: list[PostCommitEvent]) -> None:
                fresh = self._feed.fresh(events)
                if fresh:
                    listener(fresh)

            def hear(events: list[PostCommitEvent]) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is gone
                    loop.call_soon_threadsafe(deliver, events)

            self._listener = Listener(
                self._read_connection, self._channel, self._feed, hear, lambda: unit.replica
            )
            await asyncio.to_thread(self._listener.start)
            await self.rates.open()
        except (psycopg.Error, RuntimeError, OSError) as exc:
            await asyncio.to_thread(self._close_connections)
            reason = _without_secrets(exc, self._dsn)
            raise StoreError(f"cannot open the database: {reason}") from None
        self._writer = GroupWriter(unit, deliver, inline=False, failures=(psycopg.Error,))

    def _open(self) -> PostgresUnitOfWork:
        connection = WriteConnection(self._dsn, "guard-gateway")
        try:
            schema.migrate(connection.psycopg)
            row = connection.psycopg.execute("SELECT current_database(), current_schema()")
            name = ".".join(row.fetchall()[0])
        finally:
            connection.psycopg.close()
        self._channel = "guard_" + hashlib.sha256(name.encode()).hexdigest()[:16]
        return PostgresUnitOfWork(
            self._write_connection, self._test_clock_ms, self._monotonic_ms, self._channel,
            self._feed.seen,
        )  # fmt: skip

    def _sender(self) -> tuple[str, str]:
        return self._channel, self._unit.replica if self._unit is not None else ""

    def _write_connection(self) -> WriteConnection:
        """Open the writer's connection; after a failure, not before a jittered time has passed."""
        if time.monotonic() < self._next_try_s:
            raise StoreLostError("the database cannot be reached")
        try:
            connection = WriteConnection(self._dsn, "guard-gateway-writer")
            connection.learn_types()
        except psycopg.Error as exc:
            self._next_try_s = time.monotonic() + RETRY_S * random.uniform(0.5, 1.5)
            raise StoreLostError("the database cannot be reached") from exc
        return connection

    def _read_connection(self) -> ReadConnection:
        return ReadConnection(self._dsn, "guard-gateway-reader")

    async def close(self) -> None:
        """Commit queued work and close the connections. Idempotent."""
        if self._writer is not None:
            await self._writer.close()
            self._writer = None
        await self.rates.close()
        await asyncio.to_thread(self._close_connections)

    def _close_connections(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for pool in (self._lookups, self._reports):
            pool.close()
        if self._unit is not None:
            self._unit.connection.psycopg.close()
            self._unit = None

    # -- periodic work -------------------------------------------------------------------------

    async def sample(self) -> None:
        """Read the figures for metrics that need a query, every few seconds."""
        now_ms, keep_ms = self._monotonic_ms(), self._retention.keep_ms
        if now_ms - self._samples.at_ms >= samples.INTERVAL_MS:
            wall_ms = self.clock_ms()
            found = await self.look_up(lambda reading: samples.read(reading, wall_ms, keep_ms))
            self._samples = msgspec.structs.replace(found, at_ms=now_ms)
            rows = await self.report(lambda reading: reading.rows(_OPEN))
            self._open_now = _Open(*rows[0])

    async def retain(self) -> None:
        """Remove old rows in short steps that let requests in between."""
        for _ in range(STEPS_MAX):
            if not self._retention.is_due(self.clock_ms()):
                break
            await self.write(self._retention.step)

    async def sum_days(self) -> None:
        """Sum events by scope and day, in short steps like retention."""
        unit = self._unit
        for _ in range(SUM_STEPS_MAX):
            if unit is None or not unit.scope_days.is_due:
                break
            await self.write(lambda unit: unit.scope_days.step())

    async def ready(self) -> bool:
        """Tell whether the database answers and the last commit succeeded."""
        try:
            await self.write(lambda unit: unit.now_ms, Scopes(organisations=()))
        except StoreError:
            return False
        return True

    def statistics(self) -> StoreStatistics:
        """Return counters for metrics."""
        writer, unit = self._writer, self._unit
        if writer is None or unit is None:
            return {}
        return {
            "groups": writer.groups,
            "items": writer.items,
            "healthy": writer.healthy,
            "queued": writer.queued,
            "writer": writer.statistics,
            "pools": {"lookups": self._lookups.use(), "reports": self._reports.use()},
            "open_reservations": self._open_now.reservations,
            "leases": self._open_now.leases,
            "leased_nanousd": self._open_now.leased_nanousd,
            "files": {"database": self._open_now.database_bytes},
            "expired_reservations": unit.counts.expired,
            "retention_lag_s": self._samples.retention_lag_s,
            "webhook_backlog": self._samples.webhook_backlog,
        }

    # -- work ----------------------------------------------------------------------------------

    def write(
        self,
        work: Callable[[PostgresUnitOfWork], T],
        scopes: Scopes | None = None,
        *,
        weight: int = 1,
    ) -> asyncio.Future[T]:
        """Run a command in the writer's next unit of work."""
        if self._writer is None:
            raise StoreError("the store is not open")
        return self._writer.submit(work, scopes or ANYTHING, weight=weight)

    async def look_up(self, work: Callable[[Any], T]) -> T:
        """Run a short query that requests and control channels wait for."""
        return await self._read(self._lookups, work)

    async def report(self, work: Callable[[Any], T]) -> T:
        """Run a query that may be slow."""
        return await self._read(self._reports, work)

    async def _read(self, pool: ReadPool, work: Callable[[ReadConnection], T]) -> T:
        if self._writer is None:
            raise StoreError("the store is not open")
        try:
            return await pool.run(work)
        except psycopg.Error as exc:
            raise StoreError(f"the store failed: {type(exc).__name__}") from exc


def _without_secrets(exc: BaseException, dsn: str) -> str:
    """Return the first line of an error, unless it quotes the connection string's password."""
    text = (str(exc).strip() or type(exc).__name__).splitlines()[0]
    try:
        password = urlsplit(dsn).password
    except ValueError:
        return type(exc).__name__
    return type(exc).__name__ if password and password in text else text
