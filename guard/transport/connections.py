"""The connections of an HTTP client whose requests may be cancelled at any moment.

httpx (with httpcore 1.0) leaves three gaps there, and this closes them from outside:

- A request that is cancelled in the instant in which a connection is handed to it, or given back,
  leaves the connection in the pool for good: neither idle nor closed. A pool with a limit is dead
  once that has happened as often. So a client is replaced after so many cancelled requests that it
  can have lost a part of its connections, and no more.
- A connection that is still being made while the client is closed stays open. So the requests under
  way are ended first.
- A request first closes connections that the server has ended, one after the other; cancelled
  meanwhile, it forgets the others. So each connection is noted when it is made, and closed with the
  client at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from guard.loop import Tasks

if TYPE_CHECKING:
    import httpx

_NOW: Final = 0.0
_NOTED_MAX: Final = 256
"""The garbage collector closes the sockets of older connections that were forgotten."""


class ConnectionsClosedError(Exception):
    """The connections were closed before the request, or while it was under way."""


@attrs.define(eq=False)
class _Client:
    """One client, for as long as it has requests under way.

    Attributes:
        http: httpx's.
        cancelled: how many of its requests were cancelled: each may have cost a connection.
        under_way: what can end its requests.
        idle: set while there are none.
        streams: its newest connections, also those that are closed.
    """

    http: httpx.AsyncClient
    cancelled: int = 0
    under_way: set[asyncio.Timeout] = attrs.field(factory=set)
    idle: asyncio.Event = attrs.field(factory=asyncio.Event)
    streams: deque[Any] = attrs.field(factory=lambda: deque(maxlen=_NOTED_MAX))

    def __attrs_post_init__(self) -> None:
        self.http.event_hooks["request"].append(self._trace)

    async def _trace(self, request: httpx.Request) -> None:
        request.extensions["trace"] = self._note

    async def _note(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self.streams.append(info["return_value"])

    @contextlib.contextmanager
    def counting(self, ends: asyncio.Timeout) -> Iterator[None]:
        """Count a request, and whether it is cancelled."""
        self.under_way.add(ends)
        self.idle.clear()
        try:
            yield
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.under_way.discard(ends)
            if not self.under_way:
                self.idle.set()

    async def close(self) -> None:
        """Close every connection, after the last request."""
        if self.under_way:
            await self.idle.wait()
        await self.http.aclose()
        for each in tuple(self.streams):
            await each.aclose()


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
        # All that may have connections: the current one, and those that were replaced.
        self._clients = {self._current}
        # They close those after their last request.
        self._closing = Tasks()
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
                with client.counting(ends):
                    yield client.http
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
        self._clients.add(self._current)
        self._closing.start(self._close(client))

    async def close(self) -> None:
        """End the requests under way, then close every connection.

        Called again, it closes what it had not come to when it was cancelled.
        """
        self.is_closed = True
        for client in self._clients:
            for ends in client.under_way:
                if ends.when() is None:  # else an earlier close is ending it
                    ends.reschedule(_NOW)
        for client in tuple(self._clients):
            await self._close(client)

    async def _close(self, client: _Client) -> None:
        await client.close()
        self._clients.discard(client)
