"""A request that is made while a stream is read names it: the gateway must not wait for its money.

Whoever reads the stream would wait for a request that waits for the stream's end.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import attrs
import httpx
import httpx2
import pytest
import requests

from guard.instrumentation import open_streams
from guard.scope.scope import Scope
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.fake_gate import FakeGate, FakeHold
from tests.guard.instrumentation.gated_clients import ASK, CHAT, INSIDE, STREAM
from tests.guard.instrumentation.matrix.other_cases import CONVERSE, bedrock_client
from tests.guard.instrumentation.standin.reply import Reply
from tests.guard.instrumentation.standin.server import StandIn
from tests.guard.instrumentation.test_gated_streams import frames, words
from tests.support.waiting import WAIT_S

AMOUNT: Final = 7
LIMITED: Final = {**STREAM, "max_completion_tokens": 1000}


class HoldOfMoney(FakeHold):
    @property
    def amount_nanousd(self) -> int | None:
        return AMOUNT


@attrs.define(eq=False)
class AskedGate(FakeGate):
    """Keeps the streams that each request names."""

    reads: list[dict[str, int]] = attrs.field(factory=list)

    def _grant(self, scope: Scope, bound: Any) -> FakeHold:
        self.reads.append(open_streams.held(scope))
        held = super()._grant(scope, bound)
        self.holds[-1] = HoldOfMoney(held.bound, self, held.reservation_id, held.output_tokens)
        return self.holds[-1]


@pytest.fixture
def gate() -> AskedGate:
    return AskedGate(assumed_output=100_000)


def read_httpx(url: str, body: Any, inside: Callable[[], None], module: Any = httpx) -> None:
    with module.Client(timeout=WAIT_S) as client:
        with client.stream("POST", url + CHAT, json=body) as response:
            chunks = response.iter_raw()
            next(chunks)
            inside()
            client.post(url + CHAT, json=ASK)
            for _ in chunks:
                pass
        client.post(url + CHAT, json=ASK)


def read_httpx2(url: str, body: Any, inside: Callable[[], None]) -> None:
    read_httpx(url, body, inside, httpx2)


def read_httpx_async(url: str, body: Any, inside: Callable[[], None]) -> None:
    async def main() -> None:
        async with httpx.AsyncClient() as client:
            async with client.stream("POST", url + CHAT, json=body) as response:
                chunks = response.aiter_raw()
                await anext(chunks)
                inside()
                await client.post(url + CHAT, json=ASK)
                async for _ in chunks:
                    pass
            await client.post(url + CHAT, json=ASK)

    asyncio.run(main())


def read_aiohttp(url: str, body: Any, inside: Callable[[], None]) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            async with session.post(url + CHAT, json=body) as response:
                await response.content.readline()
                inside()
                async with session.post(url + CHAT, json=ASK) as other:
                    await other.read()
                await response.read()
            async with session.post(url + CHAT, json=ASK) as other:
                await other.read()

    asyncio.run(main())


def read_requests(url: str, body: Any, inside: Callable[[], None]) -> None:
    with requests.Session() as session:
        with session.post(url + CHAT, json=body, stream=True) as response:
            chunks = response.iter_content(64)
            next(chunks)
            inside()
            session.post(url + CHAT, json=ASK)
            for _ in chunks:
                pass
        session.post(url + CHAT, json=ASK)


def read_requests_raw(url: str, body: Any, inside: Callable[[], None]) -> None:
    with requests.Session() as session:
        with session.post(url + CHAT, json=body, stream=True) as response:
            response.raw.read(64)
            inside()
            session.post(url + CHAT, json=ASK)
            while response.raw.read(4096):
                pass
        session.post(url + CHAT, json=ASK)


def read_boto3(url: str, body: Any, inside: Callable[[], None]) -> None:
    limit = {} if body is STREAM else {"inferenceConfig": {"maxTokens": 1000}}
    events = iter(bedrock_client(url).converse_stream(**CONVERSE | limit)["stream"])
    next(events)
    inside()
    requests.post(url + CHAT, json=ASK)
    for _ in events:
        pass
    requests.post(url + CHAT, json=ASK)


READERS: Final = (
    read_httpx, read_httpx2, read_httpx_async, read_aiohttp, read_requests, read_requests_raw,
    read_boto3,
)  # fmt: skip


@pytest.mark.parametrize("asks_for_usage", [False, True], ids=["as it is", "hides usage"])
@pytest.mark.parametrize("body", [LIMITED, STREAM], ids=["with a limit", "may grow"])
@pytest.mark.parametrize("read", READERS)
def test_a_request_inside_the_read_loop_names_the_stream(
    read: Callable[..., None],
    body: dict[str, Any],
    asks_for_usage: bool,
    standin: StandIn,
    gate: AskedGate,
    gated: Observed,
) -> None:
    gated.instrumentation.stream_usage.is_on = asks_for_usage
    standin.instead = frames(2000) if read is read_boto3 else words(2000)

    def inside() -> None:
        standin.instead = Reply(None, b'{"model": "gpt-5"}')

    read(standin.url, body, inside)
    name = gate.holds[0].reservation_id
    assert gate.reads == [{}, {name: AMOUNT}, {}], "before, inside and after the read loop"


@attrs.define(eq=False)
class _Stream:
    hold: Any
    scope: Scope = INSIDE
    recording: object = "open"


def _stream() -> _Stream:
    return _Stream(SimpleNamespace(reservation_id="lease", amount_nanousd=AMOUNT))


class TestOfAnotherReader:
    """A copied context has the streams of its creator, who may be gone: its id is used again."""

    def test_a_task_at_the_place_of_a_freed_one_reads_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(open_streams, "id", lambda _: 1, raising=False)
        stream = _stream()

        async def read() -> dict[str, int]:
            open_streams.note(stream)
            return open_streams.held(INSIDE)

        async def other() -> dict[str, int]:
            return open_streams.held(INSIDE)

        async def main() -> None:
            context = contextvars.copy_context()
            assert await asyncio.create_task(read(), context=context) == {"lease": AMOUNT}
            assert await asyncio.create_task(other(), context=context) == {}

        asyncio.run(main())

    def test_a_thread_with_the_number_of_an_ended_one_reads_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import threading

        same = SimpleNamespace(get_ident=lambda: 1, current_thread=threading.current_thread)
        monkeypatch.setattr(open_streams, "threading", same)
        stream, found, context = _stream(), [], contextvars.copy_context()

        def read() -> None:
            open_streams.note(stream)
            found.append(open_streams.held(INSIDE))

        for work in (read, lambda: found.append(open_streams.held(INSIDE))):
            thread = threading.Thread(target=context.run, args=(work,))
            thread.start()
            thread.join()
        assert found == [{"lease": AMOUNT}, {}]
