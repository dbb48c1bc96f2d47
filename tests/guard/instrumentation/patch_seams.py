"""The seams that other tools patch too, each with a request through it, and the ways to patch."""

from __future__ import annotations

import asyncio
import functools
import types
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import attrs
import botocore.httpsession
import httpx
import httpx2
import requests
import wrapt

from tests.guard.instrumentation.matrix.other_cases import CONVERSE, bedrock_client
from tests.support.waiting import WAIT_S

CHAT: Final = "/v1/chat/completions"
ASK: Final[dict[str, Any]] = {
    "model": "gpt-5",
    "messages": [{"role": "user", "content": "Hello?"}],
}


@attrs.frozen
class PatchedSeam:
    """A method that guard hooks.

    Attributes:
        owner, name: of the method.
        request: sends one LLM request through it.
    """

    owner: type[Any]
    name: str
    request: Callable[[str], object]


def _async_client(module: Any) -> Callable[[str], object]:
    def request(url: str) -> object:
        async def send() -> None:
            async with module.AsyncClient(timeout=WAIT_S, verify=False) as client:
                await client.post(url + CHAT, json=ASK)

        return asyncio.run(send())

    return request


def _over_aiohttp(url: str) -> object:
    async def send() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url + CHAT, json=ASK) as response,
        ):
            await response.read()

    return asyncio.run(send())


@functools.cache
def _client(module: Any) -> Any:
    return module.Client(timeout=WAIT_S, verify=False)


@functools.cache
def _bedrock(url: str) -> Any:
    return bedrock_client(url)


SEAMS: Final = {
    "httpx": PatchedSeam(
        httpx.Client, "send", lambda url: _client(httpx).post(url + CHAT, json=ASK)
    ),
    "httpx-async": PatchedSeam(httpx.AsyncClient, "send", _async_client(httpx)),
    "httpx2": PatchedSeam(
        httpx2.Client, "send", lambda url: _client(httpx2).post(url + CHAT, json=ASK)
    ),
    "httpx2-async": PatchedSeam(httpx2.AsyncClient, "send", _async_client(httpx2)),
    "aiohttp": PatchedSeam(aiohttp.ClientSession, "_request", _over_aiohttp),
    "requests": PatchedSeam(
        requests.adapters.HTTPAdapter, "send",
        lambda url: requests.post(url + CHAT, json=ASK, timeout=WAIT_S),
    ),
    "botocore": PatchedSeam(
        botocore.httpsession.URLLib3Session, "send", lambda url: _bedrock(url).converse(**CONVERSE)
    ),
}  # fmt: skip


Noting = Callable[[], None]


def by_wrapt(method: Any, note: Noting) -> Any:
    """Wrap as ddtrace, New Relic and OpenTelemetry do: in a descriptor that wants to be bound."""

    def wrapper(wrapped: Any, instance: Any, args: Any, options: Any) -> Any:
        assert instance is not None, "called unbound"
        note()
        return wrapped(*args, **options)

    return wrapt.FunctionWrapper(method, wrapper)


def by_function(method: Any, note: Noting) -> Any:
    """Wrap as Sentry does: in a function that keeps the method in its closure."""

    def wrapper(self: Any, *args: Any, **options: Any) -> Any:
        note()
        return method.__get__(self, type(self))(*args, **options)

    return wrapper


def by_wraps(method: Any, note: Noting) -> Any:
    """Wrap in a function that looks like the method, attributes included."""
    return functools.wraps(method)(by_function(method, note))


class ByObject:
    """Wrap in an object of one's own that is a descriptor, and has no name of a function."""

    def __init__(self, method: Any, note: Noting) -> None:
        self.method = method
        self.note = note

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, instance: Any, *args: Any, **options: Any) -> Any:
        self.note()
        return self.method.__get__(instance, type(instance))(*args, **options)


PATCHERS: Final[dict[str, Callable[[Any, Noting], Any]]] = {
    "wrapt": by_wrapt,
    "function": by_function,
    "wraps": by_wraps,
    "object": ByObject,
}
