"""Reader threads, each with its own connection. Reading never waits for the writer."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from guard.gateway.domain.statistics import PoolUse

T = TypeVar("T")


class Connection:
    """A read-only connection, used from one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.sqlite = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
        self.sqlite.execute("PRAGMA query_only = ON")

    def rows(self, sql: str, *arguments: Any) -> list[Any]:
        """Return all rows of a query."""
        return self.sqlite.execute(sql, arguments).fetchall()

    def stream(self, sql: str) -> Iterable[Any]:
        """Return the rows of a query one by one."""
        return self.sqlite.execute(sql)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Have all queries of a block see the same state."""
        self.sqlite.execute("BEGIN")
        try:
            yield
        finally:
            self.sqlite.execute("COMMIT")

    def checkpoint(self) -> int:
        """Copy what can be copied of the write-ahead log; return the bytes of it in use."""
        _, log_pages, _ = self.sqlite.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        (page_bytes,) = self.sqlite.execute("PRAGMA page_size").fetchone()
        return int(log_pages) * int(page_bytes)


class ReadPool:
    """Runs at most ``size`` queries at once; others wait for their turn.

    Connections are opened by the first queries that need them.
    """

    def __init__(self, path: Path, size: int, name: str) -> None:
        self._path = path
        self._idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._size = size
        self._asked = 0

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run a query on a thread of the pool."""
        self._asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)
        finally:
            self._asked -= 1

    def use(self) -> PoolUse:
        """Return how many connections work, and how many queries wait."""
        in_use = min(self._asked, self._size)
        return PoolUse(self._size, in_use, self._asked - in_use)

    def _run(self, work: Callable[[Connection], T]) -> T:
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = Connection(self._path)
        try:
            return work(connection)
        finally:
            self._idle.put(connection)

    def close(self) -> None:
        """Wait for running queries, and close the connections."""
        self._threads.shutdown()
        while not self._idle.empty():
            self._idle.get_nowait().sqlite.close()
