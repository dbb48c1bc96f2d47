"""Life cycle of the embedded store: files, lock, writer thread, reader thread."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from guard.gateway.domain.commands import Request
from guard.gateway.storage.port import Announcement, StoreError
from guard.gateway.storage.sqlite import schema as sqlite_schema
from guard.gateway.storage.sqlite.books import Books
from guard.gateway.storage.sqlite.queries import Reader
from guard.gateway.storage.sqlite.replay import request_hint
from guard.gateway.storage.sqlite.retention import Retention
from guard.gateway.storage.sqlite.rows import wall_clock_ms
from guard.gateway.storage.sqlite.writer import INLINE_WEIGHT_MAX, GroupWriter

T = TypeVar("T")
WAL_PAGES_MAX = 32_768
CHECKPOINT_ITEMS = 20_000


class SqliteCore:
    """Opens and closes the file, and runs work on its writer and its reader.

    Args:
        path: the database file; created with mode 0600.
        durable: sync each commit to the disk.
        clock_ms: the store's clock; the machine's by default.
        retention_days: how long the record goes back; 0 keeps everything.
        audit_retention_days: how long the audit log goes back; 0 keeps all of it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durable: bool = False,
        clock_ms: Callable[[], int] = wall_clock_ms,
        retention_days: int = 0,
        audit_retention_days: int = 0,
    ) -> None:
        self.path = Path(path)
        self._durable = durable
        self.clock_ms = clock_ms
        self._writer: GroupWriter[Books] | None = None
        self._books: Books | None = None
        self._reader: Reader | None = None
        self._connections: list[sqlite3.Connection] = []
        self._lock_file: int | None = None
        self._copied_at = 0
        self._retention = Retention(retention_days, audit_retention_days)
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="guard-gateway-reader")

    # -- life cycle ----------------------------------------------------------------------------

    async def open(self, listener: Callable[[Sequence[Announcement]], None]) -> None:
        """Open the file, bring its schema up to date, and start the writer.

        Raises:
            StoreError: another gateway has the file, or it cannot be opened.
        """
        try:
            self._books = await asyncio.to_thread(self._open)
        except (OSError, sqlite3.Error, RuntimeError) as exc:
            await asyncio.to_thread(self._close_files)
            raise StoreError(f"cannot open the database: {exc}") from exc
        self._writer = GroupWriter(self._books, listener, inline=not self._durable)

    def _open(self) -> Books:
        self._lock_file = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError("another gateway is using this database") from None
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite_schema.connect(str(self.path), durable=self._durable)
        self._connections.append(connection)
        sqlite_schema.migrate(connection)
        reading = sqlite3.connect(str(self.path), isolation_level=None, check_same_thread=False)
        self._connections.append(reading)
        reading.execute("PRAGMA query_only = ON")
        self._reader = Reader(reading)
        return Books(connection, self.clock_ms)

    async def close(self) -> None:
        """Commit what waits and let go of the file. Closing twice is harmless."""
        if self._writer is not None:
            await self._writer.close()
            self._writer = None
        await asyncio.to_thread(self._readers.shutdown)
        await asyncio.to_thread(self._close_files)

    def _close_files(self) -> None:
        while self._connections:
            self._connections.pop().close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    async def checkpoint(self) -> None:
        """Now and then copy the write-ahead log into the database, beside the writer."""
        writer = self._writer
        if writer is None or writer.items - self._copied_at < CHECKPOINT_ITEMS:
            return
        self._copied_at = writer.items
        pages = await self.read(lambda reader: reader.checkpoint())
        if pages > WAL_PAGES_MAX:
            # Under constant load the log never ends where a copy does, so the writer waits once.
            await writer.submit(lambda books: books.truncate_log(), alone=True)

    async def retain(self) -> None:
        """Take a few old rows out of the record, on the writer's thread."""
        if self._retention.is_due(self.clock_ms()):
            await self.write(self._retention.step, weight=INLINE_WEIGHT_MAX + 1)

    async def ready(self) -> bool:
        """Tell whether the store answers and its last commit succeeded."""
        if self._writer is None:
            return False
        try:
            await self.write(lambda books: books.now)
        except StoreError:
            return False
        return True

    def statistics(self) -> dict[str, Any]:
        """Return counters for metrics."""
        writer, books = self._writer, self._books
        if writer is None or books is None:
            return {}
        return {
            "groups": writer.groups,
            "items": writer.items,
            "open_reservations": len(books.reservations),
            "healthy": writer.healthy,
        }

    def write(
        self, work: Callable[[Books], T], request: Request | None = None, weight: int = 1
    ) -> asyncio.Future[T]:
        """Run work in the writer's next transaction; ``request`` is looked up for replays."""
        if self._writer is None:
            raise StoreError("the store is not open")
        hint = None if request is None else request_hint(request)
        return self._writer.submit(work, hint, weight=weight)

    async def read(self, work: Callable[[Reader], T]) -> T:
        """Run a query beside the writer."""
        reader = self._reader
        if reader is None or self._writer is None:
            raise StoreError("the store is not open")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, work, reader)
        except sqlite3.Error as exc:
            raise StoreError(f"the store failed: {type(exc).__name__}") from exc
