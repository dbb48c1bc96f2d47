"""Connections to PostgreSQL, each ended when its server is silent.

psycopg waits for a silent server without end, also when its task is cancelled. So a timer shuts the
socket of a use that takes too long, and to psycopg that is a lost connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import psycopg

TIMEOUT_S: Final = 2.0
CONNECTIONS_MAX: Final = 10


class Pool:
    """Opens connections as they are needed, and keeps them for the next use.

    Everything runs on one event loop.

    Args:
        dsn: ``postgresql://user:password@host/name``.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        # Taken for the whole of a use: no more connections than this exist at once.
        self._places = asyncio.Semaphore(CONNECTIONS_MAX)
        # The last one used is taken first, so that its statements are still prepared.
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self._is_closed = False
        self._used_s = 0.0

    @contextlib.asynccontextmanager
    async def connection(
        self, within_s: float = TIMEOUT_S
    ) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Lend a connection on which every statement commits by itself.

        Args:
            within_s: the time for all that is asked on it.

        Raises:
            TimeoutError: no use of a connection has ended well for two seconds, or none could be
                opened in time.
            psycopg.Error: the server refuses, or was silent or away.
        """
        await self._take_place()
        try:
            found = await self._take()
            try:
                with _ended_after(within_s, found):
                    yield found
                self._used_s = asyncio.get_running_loop().time()
            finally:
                await self._give_back(found)
        finally:
            self._places.release()

    async def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back. Idempotent."""
        self._is_closed = True
        while self._idle:
            await self._idle.pop().close()

    async def _take_place(self) -> None:
        """Wait as long as the server answers others: a queue of one's own is not its silence."""
        while True:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._places.acquire()
                return
            except TimeoutError:
                if asyncio.get_running_loop().time() - self._used_s >= TIMEOUT_S:
                    raise

    async def _take(self) -> psycopg.AsyncConnection[Any]:
        while self._idle:
            connection = self._idle.pop()
            if not _has_news(connection):
                return connection
            # A server that stopped has closed it; psycopg would notice at the next statement only.
            await connection.close()
        if self._is_closed:
            raise psycopg.OperationalError("the pool is closed")
        async with asyncio.timeout(TIMEOUT_S):
            # Without an encoding, text of a database in SQL_ASCII would come as bytes.
            return await psycopg.AsyncConnection.connect(
                self._dsn, autocommit=True, client_encoding="utf8"
            )

    async def _give_back(self, connection: psycopg.AsyncConnection[Any]) -> None:
        state = connection.info.transaction_status
        if self._is_closed or state != psycopg.pq.TransactionStatus.IDLE:
            await connection.close()
        else:
            self._idle.append(connection)


@contextlib.contextmanager
def _ended_after(timeout_s: float, connection: psycopg.AsyncConnection[Any]) -> Iterator[None]:
    # Duplicated, so that a number that psycopg has closed cannot have become another socket's.
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        timer = asyncio.get_running_loop().call_later(timeout_s, _shut, line)
        try:
            yield
        finally:
            timer.cancel()


def _shut(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


def _has_news(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether a server has sent something unasked: that it ends, and why."""
    looking = select.poll()
    looking.register(connection.fileno(), select.POLLIN)
    return bool(looking.poll(0))
