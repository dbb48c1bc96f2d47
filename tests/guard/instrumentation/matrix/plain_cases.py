"""HTTP clients without a vendor's client over them."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.guard.instrumentation.matrix.registry import (
    MESSAGES,
    CallerError,
    case,
    consume,
    consume_async,
)

STREAMING = ("stream", "early break", "exception")
PATH = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "gpt-5", "messages": MESSAGES}
ASK_STREAM: dict[str, Any] = {**ASK, "stream": True, "stream_options": {"include_usage": True}}


def _register(name: str) -> None:
    """The cases of httpx, and of httpx2 which has the same interface."""
    import importlib

    @case(name, "chat", "plain")
    def plain(url: str) -> None:
        module = importlib.import_module(name)
        assert module.post(url + PATH, json=ASK).json()["choices"]

    @case(name, "chat", "plain")
    async def plain_async(url: str) -> None:
        module = importlib.import_module(name)
        async with module.AsyncClient() as client:
            assert (await client.post(url + PATH, json=ASK)).json()["choices"]

    @case(name, "chat", *STREAMING)
    def stream(url: str, mode: str) -> None:
        module = importlib.import_module(name)
        with (
            contextlib.suppress(CallerError),
            module.Client() as client,
            client.stream("POST", url + PATH, json=ASK_STREAM) as response,
        ):
            consume(response.iter_lines(), mode)

    @case(name, "chat", *STREAMING)
    async def stream_async(url: str, mode: str) -> None:
        module = importlib.import_module(name)
        with contextlib.suppress(CallerError):
            async with (
                module.AsyncClient() as client,
                client.stream("POST", url + PATH, json=ASK_STREAM) as response,
            ):
                await consume_async(response.aiter_lines(), mode)

    @case(name, "chat", "raw stream")
    def raw_stream(url: str) -> None:
        module = importlib.import_module(name)
        with module.stream("POST", url + PATH, json=ASK_STREAM) as response:
            assert b"".join(response.iter_raw())

    @case(name, "chat", "raw")
    def read_late(url: str) -> None:
        module = importlib.import_module(name)
        with module.stream("POST", url + PATH, json=ASK) as response:
            response.read()
            assert response.json()["choices"]


_register("httpx")
_register("httpx2")


@case("requests", "chat", "plain")
def requests_plain(url: str) -> None:
    import requests

    assert requests.post(url + PATH, json=ASK, timeout=120).json()["choices"]


@case("requests", "chat", *STREAMING)
def requests_stream(url: str, mode: str) -> None:
    import requests

    with (
        contextlib.suppress(CallerError),
        requests.post(url + PATH, json=ASK_STREAM, stream=True, timeout=120) as response,
    ):
        consume(response.iter_lines(), mode)


@case("requests", "chat", "raw stream")
def requests_raw(url: str) -> None:
    import requests

    with requests.post(url + PATH, json=ASK_STREAM, stream=True, timeout=120) as response:
        while response.raw.read(100):
            pass


@case("aiohttp", "chat", "plain")
async def aiohttp_plain(url: str) -> None:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.post(url + PATH, json=ASK) as response:
        assert (await response.json())["choices"]


@case("aiohttp", "chat", *STREAMING)
async def aiohttp_stream(url: str, mode: str) -> None:
    import aiohttp

    with contextlib.suppress(CallerError):
        async with (
            aiohttp.ClientSession() as session,
            session.post(url + PATH, json=ASK_STREAM) as response,
        ):
            await consume_async(response.content, mode)


@case("aiohttp", "chat", "raw stream")
async def aiohttp_raw(url: str) -> None:
    import aiohttp

    async with (
        aiohttp.ClientSession() as session,
        session.post(url + PATH, json=ASK_STREAM) as response,
    ):
        assert [chunk async for chunk, _ in response.content.iter_chunks()]
