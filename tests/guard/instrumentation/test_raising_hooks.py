"""A hook of the user's that raises when an answer has come: the answer counts, not its words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest

from guard.core.usage import Usage
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.standin.server import StandIn
from tests.guard.instrumentation.test_ends import PricedGate
from tests.support.waiting import WAIT_S

PATH = "/v1/chat/completions"
ASK = {"model": "m", "max_tokens": 4096, "messages": [{"role": "user", "content": "Hello? " * 30}]}

STREAM = {**ASK, "stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
def gate() -> FakeGate:
    return PricedGate()


class SaysStatus(Exception):
    """An error of the application's, with a status of its own."""

    status = 400


class SaysResponse(Exception):
    response = SimpleNamespace(status_code=429, content=b"slow down")


class ConnectError(Exception):
    """Not httpx's."""


ERRORS: list[Callable[[], BaseException]] = [
    ValueError, SaysStatus, SaysResponse, ConnectError, TimeoutError, asyncio.CancelledError,
]  # fmt: skip


def by_httpx(module: Any) -> Callable[[str, bool, BaseException, bool], None]:
    def send(url: str, reads: bool, error: BaseException, stream: bool) -> None:
        def hook(response: Any) -> None:
            if reads:
                response.read()
            raise error

        client = module.Client(timeout=WAIT_S, event_hooks={"response": [hook]})
        with client, contextlib.suppress(type(error)):
            client.post(url, json=STREAM if stream else ASK)

    return send


def by_async_httpx(module: Any) -> Callable[[str, bool, BaseException, bool], None]:
    def send(url: str, reads: bool, error: BaseException, stream: bool) -> None:
        async def hook(response: Any) -> None:
            if reads:
                await response.aread()
            raise error

        async def main() -> None:
            hooks = {"response": [hook]}
            async with module.AsyncClient(timeout=WAIT_S, event_hooks=hooks) as client:
                with contextlib.suppress(type(error)):
                    await client.post(url, json=STREAM if stream else ASK)

        asyncio.run(main())

    return send


def by_aiohttp(url: str, reads: bool, error: BaseException, stream: bool) -> None:
    async def hook(response: Any) -> None:
        if reads:
            await response.read()
        raise error

    async def main() -> None:
        async with aiohttp.ClientSession(raise_for_status=hook) as session:
            with contextlib.suppress(type(error)):
                await session.post(url, json=STREAM if stream else ASK)

    asyncio.run(main())


CLIENTS = {
    "httpx": by_httpx(httpx), "httpx2": by_httpx(httpx2), "async httpx": by_async_httpx(httpx),
    "async httpx2": by_async_httpx(httpx2), "aiohttp": by_aiohttp,
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("reads", [True, False], ids=["reads", "does not read"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_charged(
    client: str, error: Any, reads: bool, stream: bool, standin: StandIn, gated: Observed, gate: Any
) -> None:
    for status, free in ((200, False), (400, True), (429, True), (500, True), (502, False)):
        standin.status = status
        before = len(standin.bodies)
        CLIENTS[client](standin.url + PATH, reads, error(), stream)
        for event in gated.events:
            assert (event.estimate is None) == (status == 200 and reads)
        assert (not gated.events) == free, status
        for hold in gate.holds:
            (ended,) = hold.ends
            assert (ended == "back") == free, status
            if status == 200 and reads:
                assert isinstance(ended, Usage)
                assert ended.output_tokens == (standin.said[-1] or Usage()).output_tokens
            elif not free:
                assert ended.cost_nanousd == hold.amount_nanousd
        assert len(standin.bodies) > before
        gate.holds.clear()
        gated.calls.clear()
    assert gated.instrumentation.failures == 0
