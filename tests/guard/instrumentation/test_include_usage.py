"""Streams are asked for their usage, and their readers see no difference."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import httpx
import pytest
import requests

from guard.instrumentation.include_usage import UsageChunkFilter
from tests.guard.instrumentation.conftest import Observed, start_observing
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.standin.server import StandIn

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {
    "model": "gpt-x", "stream": True, "messages": [{"role": "user", "content": "Hello?"}],
}  # fmt: skip


def by_httpx(url: str, body: dict[str, Any]) -> bytes:
    with httpx.Client() as client, client.stream("POST", url + CHAT, json=body) as response:
        return b"".join(response.iter_bytes())


def by_httpx_at_once(url: str, body: dict[str, Any]) -> bytes:
    return httpx.post(url + CHAT, json=body).content


def by_httpx_with_a_hook(url: str, body: dict[str, Any]) -> bytes:
    hooks: Any = {"response": [httpx.Response.raise_for_status]}
    with (
        httpx.Client(event_hooks=hooks) as client,
        client.stream("POST", url + CHAT, json=body) as response,
    ):
        return response.read()


def by_httpx_async(url: str, body: dict[str, Any]) -> bytes:
    async def main() -> bytes:
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", url + CHAT, json=body) as response,
        ):
            return b"".join([piece async for piece in response.aiter_bytes()])

    return asyncio.run(main())


def by_aiohttp(url: str, body: dict[str, Any]) -> bytes:
    async def main() -> bytes:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url + CHAT, json=body) as response,
        ):
            return b"".join([piece async for piece in response.content.iter_any()])

    return asyncio.run(main())


def by_aiohttp_that_raises(url: str, body: dict[str, Any]) -> bytes:
    async def main() -> bytes:
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.post(url + CHAT, json=body) as response,
        ):
            await asyncio.sleep(0.05)  # all of it is in the buffer
            return await response.read()

    return asyncio.run(main())


def by_requests(url: str, body: dict[str, Any]) -> bytes:
    with requests.post(url + CHAT, json=body, stream=True, timeout=60) as response:
        return b"".join(response.iter_content(50))


def by_requests_raw(url: str, body: dict[str, Any]) -> bytes:
    pieces: list[bytes] = []
    with requests.post(url + CHAT, json=body, stream=True, timeout=60) as response:
        while piece := response.raw.read(64):
            assert len(piece) <= 64
            pieces.append(piece)
    return b"".join(pieces)


def by_requests_at_once(url: str, body: dict[str, Any]) -> bytes:
    return requests.post(url + CHAT, json=body, timeout=60).content


CLIENTS = [
    by_httpx, by_httpx_at_once, by_httpx_with_a_hook, by_httpx_async, by_aiohttp,
    by_aiohttp_that_raises, by_requests, by_requests_raw, by_requests_at_once,
]  # fmt: skip
BLIND = (by_httpx_with_a_hook, by_aiohttp_that_raises)
"""These raise before anybody has read what the vendor said."""

Client = Callable[[str, dict[str, Any]], bytes]


@pytest.fixture
def asking() -> Iterator[Observed]:
    observing = start_observing(inject_stream_usage=True)
    yield observing
    observing.instrumentation.uninstall()


def messages(text: bytes) -> list[bytes]:
    """Return the lines of a stream; ids and times differ from answer to answer."""
    return [line.partition(b'"choices"')[2] or line for line in text.splitlines() if line]


@pytest.mark.parametrize("client", CLIENTS)
def test_asked_for_and_hidden(client: Client, standin: StandIn) -> None:
    plain = client(standin.url, ASK)
    observing = start_observing(inject_stream_usage=True)
    try:
        seen = client(standin.url, ASK)
        before, asked = map(json.loads, standin.bodies)
        assert asked == before | {"stream_options": {"include_usage": True}}
        (event,) = observing.events
        assert not event.estimated
        assert standin.said[-1] is not None
        assert event.output_tokens == standin.said[-1].output_tokens
        assert messages(seen) == messages(plain)
        assert b"usage" not in seen
        assert seen.endswith(b"data: [DONE]\n\n")
    finally:
        observing.instrumentation.uninstall()


@pytest.mark.parametrize("client", CLIENTS)
def test_an_endpoint_that_refuses_is_sent_the_same_without_and_remembered(
    client: Client, standin: StandIn, asking: Observed
) -> None:
    standin.refuses = (b"include_usage",)
    for _ in range(2):
        assert client(standin.url, ASK).endswith(b"data: [DONE]\n\n")
    first, second, third = standin.bodies
    assert b"include_usage" in first
    assert b"include_usage" not in second
    assert second == third
    assert len(asking.events) == 2
    client(standin.url, ASK | {"model": "other"})
    assert b"include_usage" in standin.bodies[3], "another model is asked"


@pytest.mark.parametrize("refuses", [(), (b"include_usage",)], ids=["name", "name and usage"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_limit_is_tried_under_its_other_name_and_that_is_remembered(
    client: Client, refuses: tuple[bytes, ...], standin: StandIn
) -> None:
    standin.refuses = (*refuses, b'"max_completion_tokens"')
    observing = start_observing(
        inject_stream_usage=True, request_gate=FakeGate(), max_output_tokens=64
    )
    try:
        for _ in range(2):
            assert client(standin.url, ASK).endswith(b"data: [DONE]\n\n")
        first, *tries, last = map(json.loads, standin.bodies)
        assert first["max_completion_tokens"] == 64
        assert last["max_tokens"] == 64
        assert "max_completion_tokens" not in last
        assert len(tries) == 1 + (len(refuses) or client in BLIND) + (
            bool(refuses) and client in BLIND  # of two changes it is not known which was refused
        )
        assert len(observing.events) == 2
        assert observing.events[1].estimated == bool(refuses)
    finally:
        observing.instrumentation.uninstall()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_limit_of_its_own_keeps_its_name(client: Client, standin: StandIn) -> None:
    standin.refuses = (b'"max_completion_tokens"',)
    observing = start_observing(request_gate=FakeGate(), max_output_tokens=64)
    try:
        with contextlib.suppress(httpx.HTTPStatusError, aiohttp.ClientResponseError):
            assert b"unknown option" in client(standin.url, ASK | {"max_completion_tokens": 9})
        assert len(standin.bodies) == 1
    finally:
        observing.instrumentation.uninstall()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_request_that_is_wrong_by_itself_is_refused_as_ever(
    client: Client, standin: StandIn, asking: Observed
) -> None:
    standin.refuses = (b"Hello?",)
    with contextlib.suppress(httpx.HTTPStatusError, aiohttp.ClientResponseError):
        assert b"unknown option" in client(standin.url, ASK)
    assert asking.events == []
    standin.refuses = ()
    client(standin.url, ASK)
    assert b"include_usage" in standin.bodies[-1], "the endpoint has not refused the option"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "more",
    [{"stream": False}, {"stream_options": {"include_usage": True}}],
    ids=["no stream", "asks by itself"],
)
def test_left_alone(
    client: Client, more: dict[str, Any], standin: StandIn, asking: Observed
) -> None:
    seen = client(standin.url, ASK | more)
    assert standin.bodies[-1].count(b"include_usage") == ("stream_options" in more)
    assert b'"usage"' in seen


def test_other_options_stay(standin: StandIn, asking: Observed) -> None:
    by_httpx(standin.url, ASK | {"stream_options": {"include_obfuscation": False}})
    assert b'"include_obfuscation":false' in standin.bodies[-1]
    assert b'"include_usage":true' in standin.bodies[-1]


def test_an_answer_that_is_compressed_all_the_same(standin: StandIn, asking: Observed) -> None:
    standin.encoding = "gzip"
    assert by_httpx(standin.url, ASK).endswith(b"data: [DONE]\n\n")
    assert not asking.events[0].estimated


def test_a_reader_who_leaves_has_left_the_usage_behind(standin: StandIn, asking: Observed) -> None:
    with httpx.stream("POST", standin.url + CHAT, json=ASK) as response:
        next(response.iter_bytes())
    assert len(asking.events) == 1


def test_by_default(standin: StandIn) -> None:
    from guard.settings import Settings

    assert Settings.load({"GUARD_API_KEY": "k"}).inject_stream_usage
    off = Settings.load({"GUARD_API_KEY": "k", "GUARD_INJECT_STREAM_USAGE": "0"})
    assert not off.inject_stream_usage


def test_a_filter_takes_out_what_the_option_adds_and_nothing_else() -> None:
    text = b'data: {"choices":[{"delta":{"content":",\\"usage\\":null"}}],"usage":null}\n\n'
    end = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\ndata: [DONE]\n\n'
    for size in (1, 7, 1000):
        hide, hidden = UsageChunkFilter(), []
        hide.hidden = hidden.append
        data = text + end
        shown = b"".join(hide.feed(data[at : at + size]) for at in range(0, len(data), size))
        assert (
            shown + hide.rest() == text.replace(b',"usage":null}\n', b"}\n") + b"data: [DONE]\n\n"
        )
        assert b"".join(hidden) == end.partition(b"data: [DONE]")[0]


@pytest.mark.parametrize("moderation", ["null", '{"input":{"type":"moderation_results"}}'])
def test_a_chunk_that_says_more_than_the_usage_stays(moderation: str) -> None:
    """A moderation's result comes in a chunk without choices, as the usage does."""
    chunk = b'data: {"choices":[],"moderation":%b,"usage":{"total_tokens":2}}\n\n'
    chunk %= moderation.encode()
    assert UsageChunkFilter().feed(chunk) == (b"" if moderation == "null" else chunk)
