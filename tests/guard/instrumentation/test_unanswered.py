"""Requests whose answer nobody waited for, calls inside of calls, and streams at the end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any
from unittest import mock

import aiohttp
import httpx
import httpx2
import httpx_aiohttp
import pytest
import requests

import guard
from guard.runtime.runtime import GuardRuntime
from tests.guard.delivery.conftest import Answer, Scripted, Spawn, against, scripted, spawn  # noqa: F401
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.waiting import WAIT_S, until, until_async

CHAT = "/v1/chat/completions"
ASK = {"model": "gpt-x", "messages": [{"role": "user", "content": "four " * 40}]}


@pytest.fixture
def mute(scripted: Scripted) -> str:  # noqa: F811
    """A vendor that takes a request and never answers."""
    scripted.answer = lambda path, body: Answer(hang=True)
    return scripted.url + CHAT


@pytest.fixture
def crowded() -> Iterator[str]:
    """A vendor to which no connection can be made: its backlog is full."""
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}{CHAT}"


def read_timeout(url: str, scripted: Scripted) -> None:  # noqa: F811
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=ASK, timeout=httpx.Timeout(WAIT_S, read=0.2))


def read_timeout_of_requests(url: str, scripted: Scripted) -> None:  # noqa: F811
    with pytest.raises(requests.ReadTimeout):
        requests.post(url, json=ASK, timeout=(WAIT_S, 0.2))


def total_timeout_of_aiohttp(url: str, scripted: Scripted) -> None:  # noqa: F811
    async def main() -> None:
        limit = aiohttp.ClientTimeout(total=WAIT_S)
        async with aiohttp.ClientSession(timeout=limit) as session:
            task = asyncio.create_task(session.post(url, json=ASK))
            await until_async(lambda: scripted.requests)
            # The time is over when the request has left: the loop's clock jumps ahead.
            loop = asyncio.get_running_loop()
            late_s = loop.time() + 2 * WAIT_S
            with (
                mock.patch.object(loop, "time", return_value=late_s),
                pytest.raises(TimeoutError),
            ):
                await task

    asyncio.run(main())


def cancelled(url: str, scripted: Scripted) -> None:  # noqa: F811
    async def main() -> None:
        async with httpx.AsyncClient(timeout=WAIT_S) as client:
            task = asyncio.create_task(client.post(url, json=ASK))
            while not scripted.requests:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


Post = Callable[[str], Awaitable[Any]]
OneConnection = Callable[[], AbstractAsyncContextManager[Post]]


@contextlib.asynccontextmanager
async def through_httpx() -> AsyncIterator[Post]:
    limits = httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(limits=limits, timeout=WAIT_S, follow_redirects=True) as client:
        yield lambda url: client.post(url, json=ASK)


@contextlib.asynccontextmanager
async def through_httpx2() -> AsyncIterator[Post]:
    limits = httpx2.Limits(max_connections=1)
    async with httpx2.AsyncClient(limits=limits, timeout=WAIT_S, follow_redirects=True) as client:
        yield lambda url: client.post(url, json=ASK)


@contextlib.asynccontextmanager
async def through_httpx_over_aiohttp() -> AsyncIterator[Post]:
    limits = httpx.Limits(max_connections=1)
    async with httpx_aiohttp.HttpxAiohttpClient(
        limits=limits, timeout=WAIT_S, follow_redirects=True
    ) as client:
        yield lambda url: client.post(url, json=ASK)


@contextlib.asynccontextmanager
async def through_aiohttp() -> AsyncIterator[Post]:
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield lambda url: session.post(url, json=ASK)


CLIENTS = [through_httpx, through_httpx2, through_httpx_over_aiohttp, through_aiohttp]


class TestUnanswered:
    @pytest.mark.parametrize(
        "gives_up", [read_timeout, read_timeout_of_requests, total_timeout_of_aiohttp, cancelled]
    )
    def test_what_was_sent_is_estimated_and_no_host_is_unseen(
        self,
        observed: Observed,
        mute: str,
        scripted: Scripted,  # noqa: F811
        gives_up: Callable[[str, Scripted], None],
    ) -> None:
        gives_up(mute, scripted)
        (event,) = observed.events
        assert (event.model, event.input_tokens, event.output_tokens) == ("gpt-x", 50, 0)
        assert event.estimated
        assert observed.instrumentation.unseen_hosts() == ()

    def test_what_was_never_sent_is_not(self, observed: Observed) -> None:
        with pytest.raises(httpx.ConnectError):
            httpx.post("http://127.0.0.1:1" + CHAT, json=ASK)
        with pytest.raises(requests.ConnectionError):
            requests.post("http://127.0.0.1:1" + CHAT, json=ASK, timeout=WAIT_S)
        assert observed.events == []

    @pytest.mark.parametrize("client", CLIENTS)
    def test_what_waits_for_a_connection_costs_nothing_when_it_is_cancelled(
        self,
        gate: FakeGate,
        gated: Observed,
        mute: str,
        scripted: Scripted,  # noqa: F811
        client: OneConnection,
    ) -> None:
        async def main() -> None:
            async with client() as post:
                first = asyncio.create_task(post(mute))
                while not scripted.requests:
                    await asyncio.sleep(0.01)
                second = asyncio.create_task(post(mute))
                while len(gate.holds) < 2:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
                for task in (second, first):
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

        asyncio.run(main())
        assert len(gated.events) == 1
        assert [hold.ends for hold in gate.holds] == [["kept"], ["back"]]
        assert len(scripted.requests) == 1

    @pytest.mark.parametrize("client", CLIENTS)
    def test_nor_what_is_connecting(
        self, gate: FakeGate, gated: Observed, crowded: str, client: OneConnection
    ) -> None:
        async def main() -> None:
            async with client() as post:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(post(crowded), 0.3)

        asyncio.run(main())
        assert gated.events == []
        assert [hold.ends for hold in gate.holds] == [["back"]]

    @pytest.mark.parametrize("client", CLIENTS)
    def test_what_was_redirected_and_finds_no_connection_costs_nothing(
        self,
        gate: FakeGate,
        gated: Observed,
        mute: str,
        scripted: Scripted,  # noqa: F811
        crowded: str,
        client: OneConnection,
    ) -> None:
        scripted.answer = lambda path, body: Answer(307, headers={"Location": crowded})

        async def main() -> None:
            async with client() as post:
                task = asyncio.ensure_future(post(mute))
                await until_async(lambda: scripted.requests)
                await asyncio.sleep(0.3)  # the redirect has arrived, and is followed
                assert not task.done()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(main())
        assert gated.events == []
        assert [hold.ends for hold in gate.holds] == [["back"]]

    def test_another_transport_may_have_sent_it_in_its_own_way(
        self, gate: FakeGate, gated: Observed
    ) -> None:
        taken: list[bytes] = []

        class Transport(httpx.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                taken.append(request.content)
                await asyncio.sleep(WAIT_S)
                raise AssertionError

        async def main() -> None:
            async with httpx.AsyncClient(transport=Transport()) as client:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.post("http://llm" + CHAT, json=ASK), 0.3)

        asyncio.run(main())
        assert len(taken) == len(gated.events) == 1
        assert [hold.ends for hold in gate.holds] == [["kept"]]

    def test_a_stream_that_is_closed_before_its_first_chunk(
        self, standin: StandIn, observed: Observed
    ) -> None:
        standin.hold = True
        with httpx.stream("POST", standin.url + CHAT, json={**ASK, "stream": True}):
            pass
        (event,) = observed.events
        assert event.estimated
        assert event.input_tokens == 50
        assert observed.instrumentation.unseen_hosts() == ()


class TestInsideACall:
    """What a client starts while it sends is a call of its own, unless it is the same request."""

    @pytest.mark.parametrize("in_a_task", [True, False])
    def test_another_request_is_counted_and_checked(
        self, standin: StandIn, observed: Observed, in_a_task: bool
    ) -> None:
        async def main() -> None:
            other = httpx.AsyncClient()
            tasks: list[asyncio.Task[Any]] = []

            async def ask_another(request: httpx.Request) -> None:
                asking = other.post(standin.url + CHAT, json={**ASK, "model": "judge"})
                if in_a_task:
                    tasks.append(asyncio.create_task(asking))
                else:
                    await asking

            async with httpx.AsyncClient(event_hooks={"request": [ask_another]}) as client:
                await client.post(standin.url + CHAT, json=ASK)
                await asyncio.gather(*tasks)
            await other.aclose()

        asyncio.run(main())
        assert len(observed.events) == 2

    def test_a_task_that_outlives_the_call(self, standin: StandIn, observed: Observed) -> None:
        """Also when it asks the very same: the call around it is over."""

        async def main() -> None:
            over = asyncio.Event()
            tasks: list[asyncio.Task[Any]] = []

            async def later() -> None:
                await over.wait()
                async with httpx.AsyncClient() as other:
                    await other.post(standin.url + CHAT, json=ASK)

            async def start(request: httpx.Request) -> None:
                tasks.append(asyncio.create_task(later()))

            async with httpx.AsyncClient(event_hooks={"request": [start]}) as client:
                await client.post(standin.url + CHAT, json=ASK)
            over.set()
            await asyncio.gather(*tasks)

        asyncio.run(main())
        assert len(observed.events) == 2


PROGRAM = """
import functools, os, sys, threading
import guard, httpx

# A busy machine may need more than the 2 seconds that an ending program has for its delivery.
shutdown = guard.GuardRuntime.shutdown
guard.GuardRuntime.shutdown = functools.partialmethod(shutdown, timeout=60)
guard.init("k" * 24, sys.argv[1])

def read():
    with httpx.stream("POST", sys.argv[2] + "/v1/chat/completions", timeout=300, json={
        "model": "gpt-x", "stream": True, "messages": [{"role": "user", "content": "hello there"}]
    }) as response:
        for line in response.iter_lines():
            started.set()

started = threading.Event()
threading.Thread(target=read, daemon=True).start()
started.wait(120)
print("reading", flush=True)
if sys.argv[3] == "exit":
    sys.exit()
threading.Event().wait()
"""


class TestTheEndOfTheProcess:
    """A stream that is still running is charged with what can be known of it."""

    def test_shutdown(
        self,
        against: Callable[..., GuardRuntime],  # noqa: F811
        scripted: Scripted,  # noqa: F811
        standin: StandIn,
    ) -> None:
        standin.hold = True
        against()
        with httpx.stream("POST", standin.url + CHAT, json={**ASK, "stream": True}) as response:
            next(response.iter_lines())
            guard.shutdown(WAIT_S)
            (event,) = scripted.llm()
        assert event["data"]["estimated"]
        assert event["data"]["input_tokens"] == 50

    @pytest.mark.parametrize("way", ["exit", "sigterm"])
    def test_of_a_program(
        self,
        scripted: Scripted,  # noqa: F811
        standin: StandIn,
        spawn: Spawn,  # noqa: F811
        way: str,
    ) -> None:
        standin.hold = True
        process = spawn(PROGRAM, scripted.url, standin.url, way, env={})
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        if way == "sigterm":
            process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)
        until(lambda: scripted.llm(), WAIT_S)
        (event,) = scripted.llm()
        assert event["data"]["estimated"]
