"""Streams whose hold rests on an assumed output: counted while they flow, and cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import httpx
import pytest
import requests

from guard.breaker.refusals import Refusal
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.gated_clients import CHAT, STREAM
from tests.guard.instrumentation.matrix.other_cases import CONVERSE, bedrock_client
from tests.guard.instrumentation.standin.reply import Reply, aws_frame, encoded, sse
from tests.guard.instrumentation.standin.server import StandIn


def words(number: int) -> Reply:
    """A stream of so many one-token deltas."""
    chunks = [
        {"id": "c", "model": "gpt-5", "choices": [{"index": 0, "delta": {"content": "word"}}]}
        for _ in range(number)
    ]
    return Reply(None, events=sse(*chunks, done=True), content_type="text/event-stream")


def frames(number: int) -> Reply:
    """The same as Amazon's event stream."""
    deltas = [
        aws_frame("contentBlockDelta", encoded({"contentBlockIndex": 0, "delta": {"text": "word"}}))
        for _ in range(number)
    ]
    return Reply(None, events=tuple(deltas), content_type="application/vnd.amazon.eventstream")


def stream_httpx(url: str) -> int:
    with httpx.Client() as client, client.stream("POST", url + CHAT, json=STREAM) as response:
        return sum(1 for line in response.iter_lines() if line.startswith("data: {"))


def stream_httpx_async(url: str) -> int:
    async def main() -> int:
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", url + CHAT, json=STREAM) as response,
        ):
            return len([1 async for line in response.aiter_lines() if line.startswith("data: {")])

    return asyncio.run(main())


def stream_aiohttp(url: str) -> int:
    async def main() -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url + CHAT, json=STREAM) as response,
        ):
            return len([1 async for line in response.content if line.startswith(b"data: {")])

    return asyncio.run(main())


def stream_requests(url: str) -> int:
    with requests.post(url + CHAT, json=STREAM, stream=True) as response:
        return sum(1 for line in response.iter_lines() if line.startswith(b"data: {"))


def stream_openai(url: str) -> int:
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=5) as api:
        return sum(1 for _ in api.chat.completions.create(**STREAM))


def stream_openai_async(url: str) -> int:
    import openai

    async def main() -> int:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=5) as api:
            return len([1 async for _ in await api.chat.completions.create(**STREAM)])

    return asyncio.run(main())


def stream_boto3(url: str) -> int:
    asked = {name: value for name, value in CONVERSE.items() if name != "inferenceConfig"}
    return sum(1 for _ in bedrock_client(url).converse_stream(**asked)["stream"])


STREAMS = [
    *((stream, encoding) for encoding in ("", "gzip") for stream in (
        stream_httpx, stream_httpx_async, stream_aiohttp, stream_requests, stream_openai,
        stream_openai_async,
    )),
    (stream_boto3, ""),  # botocore does not decode
]  # fmt: skip


class TestStreams:
    @pytest.mark.parametrize(("stream", "encoding"), STREAMS)
    def test_is_cut_between_two_chunks_when_more_is_refused(
        self,
        stream: Callable[[str], int],
        encoding: str,
        standin: StandIn,
        gate: FakeGate,
        gated: Observed,
    ) -> None:
        standin.encoding = encoding
        standin.instead = frames(400) if stream is stream_boto3 else words(400)
        gate.assumed_output = 100
        with pytest.raises(Refusal):
            stream(standin.url)
        (held,) = gate.holds
        assert held.asked_for
        assert held.asked_for[0] >= 80
        (event,) = gated.events
        assert gate.ends == ["kept"]
        assert event.estimate == "bound"
        assert 100 <= event.output_tokens <= 400, "at least what was seen"

    @pytest.mark.parametrize(("stream", "encoding"), STREAMS)
    def test_goes_on_while_it_gets_more(
        self,
        stream: Callable[[str], int],
        encoding: str,
        standin: StandIn,
        gate: FakeGate,
        gated: Observed,
    ) -> None:
        standin.encoding = encoding
        standin.instead = frames(400) if stream is stream_boto3 else words(400)
        gate.assumed_output, gate.grows_by = 100, 100
        assert stream(standin.url) == 400
        (held,) = gate.holds
        assert len(gated.events) == 1
        assert len(held.asked_for) >= 1
        assert (held.output_tokens or 0) >= 400
        assert len(gate.ends) == 1

    def test_with_a_limit_of_its_own_is_not_counted(
        self, standin: StandIn, gate: FakeGate, gated: Observed
    ) -> None:
        standin.instead = words(400)
        with (
            httpx.Client() as client,
            client.stream("POST", standin.url + CHAT, json=STREAM | {"max_tokens": 9}) as response,
        ):
            assert len(response.read()) > 400
            assert gate.holds[0].asked_for == []
