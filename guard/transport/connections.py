"""The connections of an HTTP client whose requests may be cancelled at any moment.

httpx (with httpcore 1.0) leaves two gaps there, and this closes both from outside:

- A request that is cancelled in the instant in which a connection is handed to it, or given back,
  leaves the connection in the pool for good: neither idle nor closed. A pool with a limit is dead
  once that has happened as often. So a client is replaced after so many cancelled requests that it
  can have lost a part of its connections, and no more.
- A connection that is still being made while the client is closed stays open. So the requests under
  way are ended first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    import httpx

_NOW: Final = 0.0


class ConnectionsClosedError(Exception):
    """The connections were closed before the request, or while it was under way."""


@attrs.define(eq=False)
class _Client:
    """One client, for as long as it has requests under way.

    Attributes:
        http: of httpx.
        cancelled: how many of its requests were cancelled: each may have cost a connection.
        under_way: what can end its requests.
        idle: set while there are none.
    """

    http: httpx.AsyncClient
    cancelled: int = 0
    under_way: set[asyncio.Timeout] = attrs.field(factory=set)
    idle: asyncio.Event = attrs.field(factory=asyncio.Event)


class Connections:
    """Lends an HTTP client to requests. Used on one event loop, without locks.

    Args:
        make: returns a client; all are alike.
        cancelled_max: a client is replaced after so many cancelled requests.
    """

    def __init__(self, make: Callable[[], httpx.AsyncClient], cancelled_max: int) -> None:
        self._make = make
        self._cancelled_max = cancelled_max
        self._current = _Client(make())
        # Each client that was replaced, with the task that closes it after its last request.
        self._replaced: dict[_Client, asyncio.Task[None]] = {}
        self.is_closed = False

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncIterator[httpx.AsyncClient]:
        """Lend a client for one request, until its response was closed.

        Raises:
            ConnectionsClosedError: before or meanwhile.
        """
        if self.is_closed:
            raise ConnectionsClosedError
        client = self._current
        ends = asyncio.timeout(None)
        try:
            async with ends:
                client.under_way.add(ends)
                client.idle.clear()
                try:
                    yield client.http
                except asyncio.CancelledError:
                    client.cancelled += 1
                    raise
                finally:
                    client.under_way.discard(ends)
                    if not client.under_way:
                        client.idle.set()
        except TimeoutError:
            if not ends.expired():
                raise
            raise ConnectionsClosedError from None
        finally:
            if client is self._current and client.cancelled >= self._cancelled_max:
                self._replace(client)

    def _replace(self, client: _Client) -> None:
        if self.is_closed:
            return
        self._current = _Client(self._make())
        closing = asyncio.create_task(_close(client))
        self._replaced[client] = closing
        closing.add_done_callback(lambda _: self._replaced.pop(client))

    async def close(self) -> None:
        """End the requests under way, then close every connection."""
        self.is_closed = True
        for client in (self._current, *self._replaced):
            for ends in client.under_way:
                if ends.when() is None:  # else an earlier close is ending it
                    ends.reschedule(_NOW)
        await asyncio.gather(_close(self._current), *self._replaced.values())


async def _close(client: _Client) -> None:
    if client.under_way:
        await client.idle.wait()
    await client.http.aclose()
