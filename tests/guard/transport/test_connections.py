"""Requests that are cancelled, and connections that are closed, at every moment of a request.

The server is on the same loop as the client, so the n-th turn of the loop is the same moment each
time: from before the connection is made to after the answer was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from guard.breaker.exceptions import SHUT_DOWN, GuardTransportError
from guard.settings import Settings
from guard.transport import http as http_module
from guard.transport.http import GatewayHttp, HttpRequest
from guard.transport.replies import Reply
from tests.support.closing import close_server, turns
from tests.support.waiting import until_async

pytestmark = pytest.mark.asyncio

REQUEST = HttpRequest.of("POST", "/gate", b"{}", "c")
TURNS = range(40)
"""More than a request takes here."""


class Server:
    """Answers at once.

    Attributes:
        port: where.
        open: how many connections are.
    """

    port = 0
    open = 0

    def __init__(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()

    def end(self) -> None:
        """End every connection."""
        for each in self._writers:
            each.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.open += 1
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                await reader.readexactly(size)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                await writer.drain()
        self.open -= 1
        self._writers.discard(writer)
        writer.close()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    """A server on this loop."""
    made = Server()
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    yield made
    await close_server(listening)


def client(server: Server) -> GatewayHttp:
    return GatewayHttp(
        Settings.load({}, api_key="k" * 24, api_url=f"http://127.0.0.1:{server.port}")
    )


@pytest.mark.generator("moments at which a client is closed")
async def test_what_is_closed_at_any_moment_leaves_nothing_open(
    server: Server, count_cases: Callable[[int], None]
) -> None:
    answered = 0
    for number in TURNS:
        http = client(server)
        sending = [asyncio.create_task(http.send(REQUEST)) for _ in range(3)]
        await turns(number)
        closing = asyncio.create_task(http.close())
        await turns(2)
        await asyncio.gather(closing, http.close())  # once is enough, twice is harmless
        for each in await asyncio.gather(*sending, return_exceptions=True):
            if isinstance(each, Reply):
                answered += 1
            else:
                assert isinstance(each, GuardTransportError)
                assert each.error_code == SHUT_DOWN
        with pytest.raises(GuardTransportError, match="shut down"):
            await http.send(REQUEST)
        await until_async(lambda: server.open == 0)
    assert 0 < answered < 3 * len(TURNS)
    count_cases(len(TURNS))


@pytest.mark.generator("moments at which a request is cancelled, again and again")
async def test_requests_that_are_cancelled_at_any_moment_use_no_connection_up(
    server: Server, count_cases: Callable[[int], None]
) -> None:
    for number in TURNS:
        http = client(server)  # with no connection yet: the moments differ
        for _ in range(http_module._CONNECTIONS_MAX):
            sending = asyncio.create_task(http.send(REQUEST))
            await turns(number)
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
        async with asyncio.timeout(60):
            assert (await http.send(REQUEST)).status == 200
        await http.close()
        await until_async(lambda: server.open == 0)
    count_cases(len(TURNS))


@pytest.mark.generator("moments at which a request that tidies up is cancelled")
async def test_what_the_server_has_ended_is_closed_though_a_request_is_cancelled_meanwhile(
    server: Server, count_cases: Callable[[int], None]
) -> None:
    def still_open() -> list[object]:
        return [
            each for each in gc.get_objects()
            if isinstance(each, asyncio.Transport) and not each.is_closing()
            and (each.get_extra_info("peername") or ("", 0))[1] == server.port
        ]  # fmt: skip

    for number in TURNS:
        http = client(server)
        await asyncio.gather(*(http.send(REQUEST) for _ in range(5)))
        assert len(still_open()) == 5
        server.end()
        await until_async(lambda: server.open == 0)
        sending = asyncio.create_task(http.send(REQUEST))
        await turns(number)
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        await http.close()
        assert not still_open()
    count_cases(len(TURNS))


async def test_a_close_that_was_cancelled_is_completed_by_the_next(server: Server) -> None:
    for number in range(20):
        http = client(server)
        await asyncio.gather(*(http.send(REQUEST) for _ in range(5)))
        closing = asyncio.create_task(http.close())
        await turns(number)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await http.close()
        await until_async(lambda: server.open == 0)


async def test_a_request_under_way_keeps_its_client_that_is_replaced_meanwhile(
    server: Server,
) -> None:
    http = client(server)
    connections = http._connections
    async with connections.lend() as first:
        for _ in range(http_module._CANCELLED_MAX):
            sending = asyncio.create_task(http.send(REQUEST))
            await turns(1)
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
        async with connections.lend() as second:
            assert second is not first
        assert (await first.post("/gate", content=b"{}")).status_code == 200
        await turns(3)
        assert not first.is_closed
    await until_async(lambda: first.is_closed)
    await http.close()
    assert second.is_closed
