"""Anthropic's client."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

from tests.guard.instrumentation.matrix.registry import (
    MESSAGES,
    CallerError,
    case,
    consume,
    consume_async,
)

STREAMING = ("stream", "early break", "exception")
ASK: dict[str, Any] = {"model": "claude-sonnet-5", "max_tokens": 100, "messages": MESSAGES}


def client(url: str) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=url, api_key="sk-test", max_retries=0)


def client_async(url: str) -> Any:
    import anthropic

    return anthropic.AsyncAnthropic(base_url=url, api_key="sk-test", max_retries=0)


@case("anthropic", "messages", "plain", "raw")
def messages(url: str, mode: str) -> None:
    with client(url) as api:
        resource = api.messages.with_raw_response if mode == "raw" else api.messages
        answer = resource.create(**ASK)
        assert (answer.parse() if mode == "raw" else answer).content[0].text


@case("anthropic", "messages", "plain", "raw")
async def messages_async(url: str, mode: str) -> None:
    async with client_async(url) as api:
        resource = api.messages.with_raw_response if mode == "raw" else api.messages
        answer = await resource.create(**ASK)
        if mode == "raw":
            answer = answer.parse()
            answer = await answer if inspect.isawaitable(answer) else answer
        assert answer.content[0].text


@case("anthropic", "messages", *STREAMING)
def stream(url: str, mode: str) -> None:
    with client(url) as api, contextlib.suppress(CallerError):
        consume(api.messages.create(**ASK, stream=True), mode)


@case("anthropic", "messages", *STREAMING)
async def stream_async(url: str, mode: str) -> None:
    async with client_async(url) as api:
        with contextlib.suppress(CallerError):
            await consume_async(await api.messages.create(**ASK, stream=True), mode)


@case("anthropic", "messages", "raw stream")
def raw_stream(url: str) -> None:
    with (
        client(url) as api,
        api.messages.with_streaming_response.create(**ASK, stream=True) as response,
    ):
        assert len(list(response.iter_lines())) > 5


@case("anthropic", "messages", "raw stream")
async def raw_stream_async(url: str) -> None:
    async with (
        client_async(url) as api,
        api.messages.with_streaming_response.create(**ASK, stream=True) as response,
    ):
        assert len([line async for line in response.iter_lines()]) > 5


@case("anthropic", "messages", "helper")
def helper(url: str) -> None:
    with client(url) as api, api.messages.stream(**ASK) as stream:
        assert stream.get_final_text()


@case("anthropic", "messages", "helper")
async def helper_async(url: str) -> None:
    async with client_async(url) as api, api.messages.stream(**ASK) as stream:
        assert await stream.get_final_text()
