"""Life cycle of the embedded store: files, lock, the writer, and connections to read on."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.statistics import StoreStatistics
from guard.gateway.ledger.state import Scopes
from guard.gateway.storage.group_writer import ANYTHING, INLINE_WEIGHT_MAX, GroupWriter
from guard.gateway.storage.sql import samples
from guard.gateway.storage.sql.retention import STEPS_MAX, Retention
from guard.gateway.storage.sql.rows import monotonic_clock_ms, wall_clock_ms
from guard.gateway.storage.sqlite import file_lock, schema
from guard.gateway.storage.sqlite.read_pool import Connection, ReadPool
from guard.gateway.storage.sqlite.unit_of_work import SqliteUnitOfWork

T = TypeVar("T")
CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
"""The write-ahead log is copied into the database from this size on."""

LOG_BYTES_MAX: Final = 64 * 1024 * 1024
"""From this size on the writer waits while the log is copied, so that it starts afresh."""

REPORT_CONNECTIONS: Final = 2

SUM_STEPS_MAX: Final = 8
"""Steps of one sweep that sum events by scope and day: at most a fifth of the writer's time."""


class SqliteEngine:
    """Opens and closes the file, and runs work on its writer and its readers.

    Look-ups, reports and checkpoints have connections and threads of their own: a key look-up or
    the replay for a kill never waits for a report.

    Args:
        path: the database file; created with mode 0600.
        durable: sync each commit to the disk.
        clock_ms: the machine's clock, in Unix milliseconds; the store follows it in bounded steps.
        monotonic_ms: time that only passes, in milliseconds. With a ``clock_ms`` of its own and
            without this, every step of that clock is taken as time that has passed.
        retention_days: how long data is kept; 0 keeps everything.
        audit_retention_days: how long the audit log is kept; 0 keeps all of it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durable: bool = False,
        clock_ms: Callable[[], int] = wall_clock_ms,
        monotonic_ms: Callable[[], int] | None = None,
        retention_days: int = 0,
        audit_retention_days: int = 0,
    ) -> None:
        self.path = Path(path)
        self._durable = durable
        self.clock_ms = clock_ms
        own = clock_ms if clock_ms is not wall_clock_ms else monotonic_clock_ms
        self._monotonic_ms = monotonic_ms or own
        self._writer: GroupWriter[SqliteUnitOfWork] | None = None
        self._unit: SqliteUnitOfWork | None = None
        self._connection: sqlite3.Connection | None = None
        self._lock_file: int | None = None
        self._retention = Retention(retention_days, audit_retention_days)
        self._lookups = ReadPool(self.path, 1, "guard-gateway-lookups")
        self._reports = ReadPool(self.path, REPORT_CONNECTIONS, "guard-gateway-reports")
        self._checkpoints = ReadPool(self.path, 1, "guard-gateway-checkpoints")
        self._samples = samples.Samples()

    # -- life cycle ----------------------------------------------------------------------------

    async def open(self, listener: Callable[[Sequence[PostCommitEvent]], None]) -> None:
        """Open the file, bring its schema up to date, and start the writer.

        Raises:
            StoreError: another gateway has the file, or it cannot be opened.
        """
        try:
            self._unit = await asyncio.to_thread(self._open)
        except (OSError, sqlite3.Error, RuntimeError) as exc:
            await asyncio.to_thread(self._close_files)
            raise StoreError(f"cannot open the database: {exc}") from exc
        self._writer = GroupWriter(
            self._unit, listener, inline=not self._durable, failures=(sqlite3.Error,)
        )

    def _open(self) -> SqliteUnitOfWork:
        self._lock_file = file_lock.take(self.path)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        self._connection = schema.connect(str(self.path), durable=self._durable)
        schema.migrate(self._connection)
        return SqliteUnitOfWork(self._connection, self.clock_ms, self._monotonic_ms)

    async def close(self) -> None:
        """Commit queued work and release the file. Idempotent."""
        if self._writer is not None:
            await self._writer.close()
            self._writer = None
        await asyncio.to_thread(self._close_files)

    def _close_files(self) -> None:
        for pool in (self._lookups, self._reports, self._checkpoints):
            pool.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    async def checkpoint(self) -> None:
        """Copy the write-ahead log into the database when it has grown, beside the writer."""
        writer = self._writer
        if writer is None or self._log_bytes() < CHECKPOINT_BYTES:
            return
        log_bytes = await self._read(self._checkpoints, lambda reading: reading.checkpoint())
        if log_bytes > LOG_BYTES_MAX:
            # Under constant load the log never ends where a copy does, so the writer waits once.
            await writer.submit(lambda unit: unit.truncate_log(), outside_transaction=True)

    def _log_bytes(self) -> int:
        return _size_of(f"{self.path}-wal")

    async def sample(self) -> None:
        """Read the figures for metrics that need a query, every few seconds."""
        now_ms, keep_ms = self._monotonic_ms(), self._retention.keep_ms
        if now_ms - self._samples.at_ms >= samples.INTERVAL_MS:
            wall_ms = self.clock_ms()
            found = await self.look_up(lambda reading: samples.read(reading, wall_ms, keep_ms))
            self._samples = msgspec.structs.replace(found, at_ms=now_ms)

    async def retain(self) -> None:
        """Remove old rows on the writer's thread, in short steps that let requests in between."""
        for _ in range(STEPS_MAX):
            if not self._retention.is_due(self.clock_ms()):
                break
            await self.write(self._retention.step, weight=INLINE_WEIGHT_MAX + 1)

    async def sum_days(self) -> None:
        """Sum events by scope and day, on the writer's thread and in short steps like retention."""
        unit = self._unit
        for _ in range(SUM_STEPS_MAX):
            if unit is None or not unit.scope_days.is_due:
                break
            await self.write(lambda unit: unit.scope_days.step(), weight=INLINE_WEIGHT_MAX + 1)

    async def ready(self) -> bool:
        """Tell whether the store answers and its last commit succeeded."""
        if self._writer is None:
            return False
        try:
            await self.write(lambda unit: unit.now_ms)
        except StoreError:
            return False
        return True

    def statistics(self) -> StoreStatistics:
        """Return counters for metrics; nothing before the store is open."""
        writer, unit = self._writer, self._unit
        if writer is None or unit is None:
            return {}
        return {
            "groups": writer.groups,
            "items": writer.items,
            "open_reservations": len(unit.reservations),
            "healthy": writer.healthy,
            "queued": writer.queued,
            "writer": writer.statistics,
            "pools": {
                "lookups": self._lookups.use(),
                "reports": self._reports.use(),
                "checkpoints": self._checkpoints.use(),
            },
            "leases": unit.counts.leases,
            "leased_nanousd": unit.counts.leased_nanousd,
            "expired_reservations": unit.counts.expired,
            "retention_lag_s": self._samples.retention_lag_s,
            "webhook_backlog": self._samples.webhook_backlog,
            "files": {"database": _size_of(self.path), "log": self._log_bytes()},
        }

    # -- work ----------------------------------------------------------------------------------

    def write(
        self,
        work: Callable[[SqliteUnitOfWork], T],
        scopes: Scopes | None = None,
        *,
        weight: int = 1,
    ) -> asyncio.Future[T]:
        """Run a command in the writer's next unit of work."""
        if self._writer is None:
            raise StoreError("the store is not open")
        return self._writer.submit(work, scopes or ANYTHING, weight=weight)

    async def look_up(self, work: Callable[[Connection], T]) -> T:
        """Run a short query that requests and control channels wait for."""
        return await self._read(self._lookups, work)

    async def report(self, work: Callable[[Connection], T]) -> T:
        """Run a query that may be slow."""
        return await self._read(self._reports, work)

    async def _read(self, pool: ReadPool, work: Callable[[Connection], T]) -> T:
        if self._writer is None:
            raise StoreError("the store is not open")
        try:
            return await pool.run(work)
        except sqlite3.Error as exc:
            raise StoreError(f"the store failed: {type(exc).__name__}") from exc


def _size_of(path: str | os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
