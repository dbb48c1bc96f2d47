"""Life cycle of the embedded store: files, lock, the writer, and connections to read on."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.statistics import StoreStatistics
from guard.gateway.ledger import leases
from guard.gateway.storage.group_writer import GroupWriter
from guard.gateway.storage.sql.engine import LOOKUP_WAIT_S, SqlEngine
from guard.gateway.storage.sql.read_pool import ReadPool
from guard.gateway.storage.sql.retention import STEPS_MAX, Retention
from guard.gateway.storage.sqlite import schema
from guard.gateway.storage.sqlite.connection import SqliteReadConnection, SqliteWriteConnection
from guard.gateway.storage.sqlite.file_lock import FileLock
from guard.gateway.storage.sqlite.migrations import convert_0_7
from guard.gateway.storage.sqlite.unit_of_work import SqliteUnitOfWork
from guard.gateway.unit.rows import monotonic_clock_ms, wall_clock_ms
from guard.gateway.unit.state import NO_ORGANISATION

logger = logging.getLogger("guard.gateway")

CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
"""The write-ahead log is copied into the database from this size on."""

LOG_BYTES_MAX: Final = 64 * 1024 * 1024
"""From this size on the writer waits while the log is copied, so that it starts afresh."""

LOOKUP_CONNECTIONS: Final = 1


class SqliteEngine(SqlEngine[SqliteUnitOfWork, SqliteReadConnection]):
    """Opens and closes the file, with its lock and its write-ahead log.

    Checkpoints have a connection and a thread of their own: copying the log takes longer than a
    commit, and would make requests wait.

    Args:
        path: the database file; created with mode 0600.
        durable: sync each commit to the disk.
        clock_ms: the machine's clock, in Unix milliseconds; the store follows it in bounded steps.
        monotonic_ms: monotonic time in milliseconds. By default, a given ``clock_ms`` is used for
            it as well, so that every step of that clock counts as elapsed time.
        retention_days: how long data is kept; 0 keeps everything.
        audit_retention_days: how long the audit log is kept; 0 keeps all of it.
    """

    failures = (sqlite3.Error,)

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
        # The writer's: used by its thread or by the loop, never by both at a time (see
        # ``GroupWriter``).
        self._connection: SqliteWriteConnection | None = None
        # Held while any connection to the file is open. ``close``, or the end of the process,
        # releases it.
        self._lock: FileLock | None = None
        super().__init__(
            self._read_connection,
            LOOKUP_CONNECTIONS,
            monotonic_ms or own,
            Retention(retention_days, audit_retention_days),
        )
        checkpoints = ReadPool(self._read_connection, 1, "guard-gateway-checkpoints", LOOKUP_WAIT_S)
        self._checkpoints = self._pools["checkpoints"] = checkpoints

    # -- life cycle ----------------------------------------------------------------------------

    async def open(self, listener: Callable[[Sequence[PostCommitEvent]], None]) -> None:
        """Open the file, bring its schema up to date, and start the writer.

        Raises:
            StoreError: another gateway has the file, or it cannot be opened.
        """
        try:
            self._unit = await asyncio.to_thread(self._open)
        except (OSError, sqlite3.Error, RuntimeError) as exc:
            # Releases the lock, so that a second attempt in this process can succeed.
            await asyncio.to_thread(self._close_files)
            raise StoreError(f"cannot open the database {self.path}: {exc}") from exc
        # Inline only without durable commits: those wait for the disk, and so would the loop.
        self._writer = GroupWriter(
            self._unit, listener, inline=not self._durable, failures=self.failures
        )

    def _open(self) -> SqliteUnitOfWork:
        # 1. The lock, before anything that may change the file.
        self._lock = FileLock(self.path)
        # 2. The file, made here for its mode: it holds secrets, and SQLite would use the umask.
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        kept = convert_0_7(self.path, now_ms=self.clock_ms())
        if kept is not None:
            logger.warning("%s was of release 0.7 and is converted; kept as %s", self.path, kept)
        # 3. The lock again: the file may be a new one since step 1.
        self._lock.take_file()
        self._connection = schema.connect(str(self.path), durable=self._durable)
        schema.migrate(self._connection)
        # Not by a clock that a test moves: to that clock, time passes without a gateway.
        resume = leases.resume if self.clock_ms is wall_clock_ms else None
        return SqliteUnitOfWork(self._connection, self.clock_ms, self._monotonic_ms, resume)

    def _read_connection(self) -> SqliteReadConnection:
        return SqliteReadConnection(self.path)

    async def close(self) -> None:
        """Commit queued work and release the file. Idempotent."""
        if self._writer is not None:
            await self._writer.close()
            self._writer = None
        await asyncio.to_thread(self._close_files)

    def _close_files(self) -> None:
        # The lock last: until the connections are closed, no other process may have the file.
        for pool in self._pools.values():
            pool.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def _tend(self) -> None:
        # First: the log grows while old rows are deleted.
        await self.checkpoint()
        await super()._tend()
        await self.checkpoint()

    async def turn_answers(self) -> None:
        """Empty and use the older table of answers, in short steps that let requests in between."""
        unit = self._unit
        for _ in range(STEPS_MAX):
            if unit is None or not unit.answers.turn.is_due(unit.now_ms):
                break
            await self._step(lambda unit: unit.answers.empty_some())

    async def checkpoint(self) -> None:
        """Copy the write-ahead log into the database when it has grown, beside the writer.

        If the process dies before it is copied, SQLite reads the log when the file is next opened.
        """
        writer = self._writer
        if writer is None or self._log_bytes() < CHECKPOINT_BYTES:
            return
        log_bytes = await self._read(self._checkpoints, lambda connection: connection.checkpoint())
        if log_bytes > LOG_BYTES_MAX:
            # The log starts afresh only when a copy has reached its end. Under constant load the
            # writer adds to it meanwhile, so this once the writer waits for the copy.
            await writer.submit(
                lambda unit: unit.truncate_log(), outside_transaction=True, is_own=True
            )

    def _log_bytes(self) -> int:
        return _size_of(f"{self.path}-wal")

    async def ready(self) -> bool:
        """Return whether the store answers and its disk has room."""
        if self._writer is None:
            return False
        try:
            await self.write(NO_ORGANISATION, lambda unit: unit.now_ms)
            return await self.has_room()
        except StoreError:
            return False

    def statistics(self) -> StoreStatistics:
        """Return counters for metrics; nothing before the store is open."""
        found, unit = super().statistics(), self._unit
        if found and unit is not None:
            found["open_reservations"] = len(unit.reservations)
            found["leases"] = unit.counts.leases
            found["leased_nanousd"] = unit.counts.leased_nanousd
            found["files"] = {"database": _size_of(self.path), "log": self._log_bytes()}
        return found


def _size_of(path: str | os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
