"""Reader threads, each with a connection of its own. Reading never waits for the writer."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, Protocol, TypeVar

from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.statistics import PoolUse
from guard.gateway.unit.connection import Connection

T = TypeVar("T")
TRUST_S: Final = 5.0
"""A connection that was used so lately is not tested before it is used."""

CLOSE_WAIT_S: Final = 5.0
"""Queries that still run so long after the pool began to close are interrupted."""

_INTERRUPT_S: Final = 0.02
"""How often: a query that is between two statements when it is interrupted begins the second."""


class Pooled(Connection, Protocol):
    """A connection that a pool opens and closes."""

    def is_broken(self) -> bool:
        """Return whether the connection is lost."""

    def answers(self) -> bool:
        """Return whether the server still answers on a connection that was idle for a while."""

    def expect(self, within_s: float) -> None:
        """End the connection unless everything asked is answered within a time."""

    def rest(self) -> None:
        """Expect no answer."""

    def interrupt(self) -> None:
        """Let the statement that another thread runs fail; do nothing if none runs."""

    def close(self) -> None:
        """Close the connection."""


PooledT = TypeVar("PooledT", bound=Pooled)


class ReadPool(Generic[PooledT]):
    """Runs at most ``size`` queries at once; others wait for their turn.

    Connections are opened by the first queries that need them. One that was idle for a while is
    tested before it is used: a query that may take minutes would wait as long for a silent server.
    A query whose connection turns out to be lost runs again on another one.

    Args:
        connect: opens a connection.
        size: connections at most.
        name: of the threads.
        wait_s: how long a query may take; after that its server counts as lost.
    """

    def __init__(self, connect: Callable[[], PooledT], size: int, name: str, wait_s: float) -> None:
        self._connect = connect
        self._wait_s = wait_s
        # Open connections that no thread uses, and since when (monotonic). A thread takes one out
        # for a query and puts it back, so no connection is used by two threads at a time. The queue
        # does its own locking.
        self._idle: queue.SimpleQueue[tuple[PooledT, float]] = queue.SimpleQueue()
        # Connections on which a query runs. Each is added and removed by its thread, and ``close``
        # iterates over a copy; all are single operations of the interpreter.
        self._in_use: set[PooledT] = set()
        # Set by ``close``. A thread reads it after it has added its connection, and ``close`` looks
        # for connections after it has set it: no query begins that ``close`` does not see.
        self._closing = False
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._size = size
        # Queries that run or wait for a thread. Only the loop reads and writes it.
        self._asked = 0

    async def run(self, work: Callable[[PooledT], T], wait_s: float | None = None) -> T:
        """Run a query on a thread of the pool.

        A caller that is cancelled does not stop the query: its thread is busy until it ends.
        """
        self._asked += 1
        loop = asyncio.get_running_loop()
        within_s = self._wait_s if wait_s is None else wait_s
        try:
            return await loop.run_in_executor(self._threads, self._run, work, within_s)
        finally:
            self._asked -= 1

    def use(self) -> PoolUse:
        """Return how many connections work, and how many queries wait."""
        in_use = min(self._asked, self._size)
        return PoolUse(self._size, in_use, self._asked - in_use)

    def _run(self, work: Callable[[PooledT], T], wait_s: float) -> T:
        while True:
            connection, is_new = self._connection()
            connection.expect(wait_s)
            self._in_use.add(connection)
            try:
                if self._closing:
                    raise StoreError("the store is closed")
                return work(connection)
            except Exception:
                # Again only if the connection was lost, which is safe for a query. Not on a new
                # connection: only one that was idle can have been lost before the query began.
                if is_new or self._closing or not connection.is_broken():
                    raise
            finally:
                self._in_use.discard(connection)
                connection.rest()
                if connection.is_broken():
                    connection.close()
                else:
                    self._idle.put((connection, time.monotonic()))

    def _connection(self) -> tuple[PooledT, bool]:
        """Return a connection, and whether it is a new one."""
        while True:
            try:
                connection, since_s = self._idle.get_nowait()
            except queue.Empty:
                return self._connect(), True
            if time.monotonic() - since_s < TRUST_S or connection.answers():
                return connection, False
            connection.close()

    def close(self) -> None:
        """Wait a while for running queries, interrupt the others, and close the connections."""
        self._closing = True
        interrupt_at_s = time.monotonic() + CLOSE_WAIT_S
        while in_use := tuple(self._in_use):
            if time.monotonic() >= interrupt_at_s:
                for connection in in_use:
                    connection.interrupt()
            time.sleep(_INTERRUPT_S)
        self._threads.shutdown()
        while not self._idle.empty():
            self._idle.get_nowait()[0].close()
