"""Reader threads, each with a connection of its own."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psycopg

from guard.gateway.domain.statistics import PoolUse
from guard.gateway.storage.postgres.connection import ReadConnection

T = TypeVar("T")


class ReadPool:
    """Runs at most ``size`` queries at once; others wait for their turn.

    Connections are opened by the first queries that need them. A query on one that turns out to
    be lost runs once more on a new one.
    """

    def __init__(self, connect: Callable[[], ReadConnection], size: int, name: str) -> None:
        self._connect = connect
        self._idle: queue.SimpleQueue[ReadConnection] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._size = size
        self._asked = 0

    async def run(self, work: Callable[[ReadConnection], T]) -> T:
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

    def _run(self, work: Callable[[ReadConnection], T]) -> T:
        while True:
            try:
                connection, is_new = self._idle.get_nowait(), False
            except queue.Empty:
                connection, is_new = self._connect(), True
            try:
                return work(connection)
            except psycopg.OperationalError:
                if is_new or not connection.is_broken():
                    raise
            finally:
                if connection.is_broken():
                    connection.close()
                else:
                    self._idle.put(connection)

    def close(self) -> None:
        """Wait for running queries, and close the connections."""
        self._threads.shutdown()
        while not self._idle.empty():
            self._idle.get_nowait().close()
