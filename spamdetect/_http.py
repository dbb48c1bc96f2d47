"""The network layer of the async client: bounded connection pools, every failure named."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

import attrs
import httpx

from spamdetect._exchange import ApiRequest, ApiResponse
from spamdetect.errors import SpamResponseError, SpamTimeoutError, SpamTransportError
from spamdetect.settings import API_KEY_HEADER, ClientSettings

# Below the service's own keep-alive, so that the client is the one that closes.
_KEEP_ALIVE_S = 20.0
_LANE_CONNECTIONS = 8


@attrs.define(eq=False)
class _Lane:
    """One small pool of connections.

    When a request is cancelled in the instant in which a connection is handed to it, or given back,
    httpx leaves the connection in the pool for good, neither idle nor closed. So each cancelled
    request counts as a lost connection, and a lane that has lost half of them is replaced.

    Attributes:
        client: opens the connections.
        size: Maximum connections.
        lost: How many of them cancelled requests may have cost.
        under_way: What can end its requests.
        idle: Set while there are none.
    """

    client: httpx.AsyncClient
    size: int
    lost: int = 0
    under_way: set[asyncio.Timeout] = attrs.field(factory=set)
    idle: asyncio.Event = attrs.field(factory=asyncio.Event)

    @property
    def has_room(self) -> bool:
        return len(self.under_way) + self.lost < self.size

    @property
    def is_worn(self) -> bool:
        return self.lost > 0 and self.lost >= self.size // 2

    @contextlib.asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Count one request, which :meth:`end` may end.

        Raises:
            TimeoutError: it was ended.
        """
        async with asyncio.timeout(None) as ends:
            self.under_way.add(ends)
            self.idle.clear()
            try:
                yield
            except asyncio.CancelledError:
                self.lost += 1
                raise
            finally:
                self.under_way.discard(ends)
                if not self.under_way:
                    self.idle.set()

    def end(self) -> None:
        for ends in self.under_way:
            if ends.when() is None:  # else an earlier close is ending it
                ends.reschedule(0.0)

    async def close(self) -> None:
        """Close the connections, after the last request.

        httpx would leave a connection open that is still being made.
        """
        if self.under_way:
            await self.idle.wait()
        await self.client.aclose()


@attrs.define(eq=False)
class _Connections:
    """What the calls on one event loop share; connections belong to the loop that opened them.

    Attributes:
        places: One for each concurrent call.
        lanes: Those that take requests.
        worn: Those that take no more, each with the task that closes it.
    """

    places: asyncio.Semaphore
    lanes: list[_Lane] = attrs.field(factory=list)
    worn: dict[_Lane, asyncio.Task[None]] = attrs.field(factory=dict)

    def replace(self, lane: _Lane) -> None:
        self.lanes.remove(lane)
        closing = asyncio.create_task(lane.close())
        self.worn[lane] = closing
        closing.add_done_callback(lambda _: self.worn.pop(lane))

    async def close(self) -> None:
        lanes, self.lanes = self.lanes, []
        for lane in (*lanes, *self.worn):
            lane.end()
        for lane in lanes:
            await lane.close()
        await asyncio.gather(*self.worn.values())


# Loops hold their tasks weakly.
_closing: set[asyncio.Task[None]] = set()


def _close_soon(connections: _Connections) -> None:
    task = asyncio.get_running_loop().create_task(connections.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


class HttpTransport:
    """Sends API requests to one service.

    A semaphore guards the pools (`turn`): thousands of callers can queue on it at no cost, where
    an httpx pool would search all of them whenever a connection becomes free. Several small pools
    are opened on demand, because for each request a pool compares all its connections with one
    another; with a hundred, that takes longer than the request.

    Args:
        settings: Address and key.
        max_connections: Maximum connections, and so maximum concurrent requests.
        transport: httpx transport to use instead of the network, for tests and ASGI apps.
    """

    def __init__(
        self,
        settings: ClientSettings,
        max_connections: int,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._max_connections = max_connections
        self._transport = transport
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connections] = (
            WeakKeyDictionary()
        )
        self._verify: ssl.SSLContext | None = None
        self._closed = False

    def check_open(self) -> None:
        """Refuse a closed client, as httpx does.

        Raises:
            RuntimeError: It was closed.
        """
        if self._closed:
            raise RuntimeError("Cannot send a request, as the client has been closed.")

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold one of the slots for concurrent calls.

        Raises:
            SpamTimeoutError: None became free in time.
            RuntimeError: The client was closed.
        """
        self.check_open()
        places = self._connections().places
        wait_s = self._settings.queue_timeout_s
        deadline = asyncio.timeout(wait_s if places.locked() else None)
        try:
            async with deadline:
                await places.acquire()
        except TimeoutError:
            if not deadline.expired():
                raise
            raise SpamTimeoutError(
                f"Nothing was sent: this client has more calls at once than its "
                f"{self._max_connections} connections, and none became free within {wait_s:g} s. "
                "Use predict_many, or raise queue_timeout or max_connections."
            ) from None
        try:
            yield
        finally:
            places.release()

    async def send(self, request: ApiRequest) -> ApiResponse:
        """Send one request of a call that holds a `turn`, and read the whole answer.

        Raises:
            SpamTransportError: No complete answer arrived.
            SpamResponseError: The answer is larger than the contract allows, or compressed.
            RuntimeError: The client was closed.
        """
        connections = self._connections()
        lane = self._lane(connections)
        try:
            async with lane.request():
                return await self._exchange(lane.client, request)
        except TimeoutError:
            self.check_open()
            raise
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            raise SpamTransportError(_describe(error, self._settings.base_url)) from error
        finally:
            if lane.is_worn and lane in connections.lanes:
                connections.replace(lane)

    async def aclose(self) -> None:
        """Close the connections, for good: a call under way ends, and no other opens new ones."""
        self._closed = True
        here = asyncio.get_running_loop()
        for loop, connections in list(self._by_loop.items()):
            if loop is here:
                await connections.close()
            elif loop.is_running():
                loop.call_soon_threadsafe(_close_soon, connections)
        self._by_loop.clear()

    def _connections(self) -> _Connections:
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            found = _Connections(asyncio.Semaphore(self._max_connections))
            self._by_loop[loop] = found
        return found

    def _lane(self, connections: _Connections) -> _Lane:
        self.check_open()
        for lane in connections.lanes:
            if lane.has_room:
                return lane
        size = min(_LANE_CONNECTIONS, self._max_connections)
        if self._verify is None:
            self._verify = httpx.create_ssl_context()
        client = httpx.AsyncClient(
            headers={
                "accept": "application/json",
                "accept-encoding": "identity",
                "content-type": "application/json",
                API_KEY_HEADER: self._settings.api_key,
            },
            limits=httpx.Limits(
                max_connections=size,
                max_keepalive_connections=size,
                keepalive_expiry=_KEEP_ALIVE_S,
            ),
            timeout=None,  # noqa: S113 - the client sets one total deadline around the call
            follow_redirects=False,
            transport=self._transport,
            verify=self._verify,
        )
        lane = _Lane(client, size)
        connections.lanes.append(lane)
        return lane

    async def _exchange(self, client: httpx.AsyncClient, request: ApiRequest) -> ApiResponse:
        url = self._settings.base_url + request.path
        response = await client.send(
            client.build_request(request.method, url, content=request.body), stream=True
        )
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise SpamResponseError(
                    "The answer is compressed though that was not asked for.",
                    status_code=response.status_code,
                )
            chunks: list[bytes] = []
            size = 0
            async for chunk in response.aiter_raw():
                size += len(chunk)
                if size > request.max_answer_bytes:
                    raise SpamResponseError(
                        "The answer is larger than any answer of the contract.",
                        status_code=response.status_code,
                    )
                chunks.append(chunk)
        finally:
            await response.aclose()
        return ApiResponse(response.status_code, response.headers, b"".join(chunks))


def _describe(error: Exception, base_url: str) -> str:
    if isinstance(error, httpx.ConnectError):
        return f"Cannot connect to {base_url}: {error or 'refused'}. Is the service running?"
    if isinstance(error, httpx.RemoteProtocolError):
        return f"The connection to {base_url} broke before the answer was complete."
    return f"The request to {base_url} failed: {type(error).__name__}."
