"""Real clients whose requests are cut off: each way in which a program can lose an answer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context
from typing import Any

import aiohttp
import httpx
import httpx2
import requests

from tests.guard.instrumentation.matrix.other_cases import CONVERSE, bedrock_client
from tests.support.cutting_vendor import OUTPUT, CuttingVendor, Moment
from tests.support.waiting import WAIT_S, until, until_async

PATH = "/v1/chat/completions"
ASK: dict[str, Any] = {
    "model": "o3", "max_tokens": OUTPUT, "messages": [{"role": "user", "content": "Hello? " * 30}],
}  # fmt: skip
SOON_S = 0.3
"""When a client gives up that nothing more reaches."""

LATER_S = 6.0
"""The same where what reaches it decides what is charged: a busy machine may be late with that."""


def _asked(stream: bool) -> dict[str, Any]:
    return {**ASK, "stream": True} if stream else ASK


# -- blocking clients ------------------------------------------------------------------------


def _httpx(module: Any) -> Callable[[str, bool, float], None]:
    def read(url: str, stream: bool, timeout_s: float) -> None:
        with module.Client(timeout=timeout_s) as client:
            if stream:
                with client.stream("POST", url + PATH, json=_asked(True)) as response:
                    for _ in response.iter_bytes():
                        pass
            else:
                client.post(url + PATH, json=ASK)

    return read


def _requests(url: str, stream: bool, timeout_s: float) -> None:
    with requests.post(url + PATH, json=_asked(stream), stream=stream, timeout=timeout_s) as got:
        for _ in got.iter_content(64):
            pass


def _boto3(url: str, stream: bool, timeout_s: float) -> None:
    client = bedrock_client(url, read_timeout=timeout_s, connect_timeout=timeout_s)
    asked = {**CONVERSE, "inferenceConfig": {"maxTokens": OUTPUT}}
    if stream:
        for _ in client.converse_stream(**asked)["stream"]:
            pass
    else:
        client.converse(**asked)


BLOCKING = {
    "httpx": _httpx(httpx), "httpx2": _httpx(httpx2), "requests": _requests, "boto3": _boto3,
}  # fmt: skip


def lost_to(read: Callable[[str, bool, float], None], url: str, stream: bool) -> None:
    """The server ends it."""
    with contextlib.suppress(Exception):
        read(url, stream, WAIT_S)


def patience(moment: Moment, stream: bool) -> float:
    """Return how long a client waits that is to give up.

    A whole refusal is an answer, for which no client gives up: there it waits for ever. A usage at
    the end of a stream has to arrive before it does.
    """
    if moment in ("overloaded", "bad gateway"):
        return WAIT_S
    return LATER_S if stream and moment == "after usage" else SOON_S


def timed_out(
    read: Callable[[str, bool, float], None], url: str, stream: bool, moment: Moment
) -> None:
    """The client waits no longer."""
    with contextlib.suppress(Exception):
        read(url, stream, patience(moment, stream))


def closed_in_another_thread(vendor: CuttingVendor, stream: bool) -> None:
    """The blocking client is closed while its request is under way."""
    client = httpx.Client(timeout=WAIT_S)

    def read() -> None:
        with contextlib.suppress(Exception):
            if not stream:
                client.post(vendor.url + PATH, json=ASK)
                return
            with client.stream("POST", vendor.url + PATH, json=_asked(True)) as response:
                for _ in response.iter_bytes():
                    pass

    thread = threading.Thread(target=copy_context().run, args=(read,))
    thread.start()
    until(lambda: vendor.reached)
    client.close()
    vendor.close()  # a blocked read notices only that
    thread.join(WAIT_S)


# -- asynchronous clients -----------------------------------------------------------------------


# Each gives its reader what comes of a body, as it comes.


async def _read_httpx(client: Any, url: str, stream: bool, came: bytearray) -> None:
    if not stream:
        await client.post(url + PATH, json=ASK)
        return
    async with client.stream("POST", url + PATH, json=_asked(True)) as response:
        async for piece in response.aiter_bytes():
            came += piece


async def _read_aiohttp(client: Any, url: str, stream: bool, came: bytearray) -> None:
    async with client.post(url + PATH, json=_asked(stream)) as response:
        async for piece in response.content.iter_any():
            came += piece


ASYNC: dict[str, tuple[Callable[[float], Any], Any]] = {
    "httpx": (lambda timeout_s: httpx.AsyncClient(timeout=timeout_s), _read_httpx),
    "httpx2": (lambda timeout_s: httpx2.AsyncClient(timeout=timeout_s), _read_httpx),
    "aiohttp": (
        lambda timeout_s: aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(timeout_s)),
        _read_aiohttp,
    ),
}


def async_lost_to(name: str, url: str, stream: bool, timeout_s: float = WAIT_S) -> None:
    """The server ends it, or the client waits no longer."""
    make, read = ASYNC[name]

    async def main() -> None:
        async with make(timeout_s) as client:
            with contextlib.suppress(Exception):
                await read(client, url, stream, bytearray())

    asyncio.run(main())


def cancelled(name: str, vendor: CuttingVendor, stream: bool) -> None:
    """The task that waits is cancelled."""
    make, read = ASYNC[name]

    async def main() -> None:
        async with make(WAIT_S) as client:
            came = bytearray()
            task = asyncio.create_task(read(client, vendor.url, stream, came))
            await _reached(vendor, stream, {task: came})
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def closed_beside_neighbours(name: str, vendor: CuttingVendor, stream: bool) -> None:
    """One task fails, the client is closed, and its neighbours' requests are under way."""
    make, read = ASYNC[name]

    tasks: dict[asyncio.Task[Any], bytearray] = {}

    async def fail() -> None:
        await _reached(vendor, stream, tasks)
        raise ValueError("this task fails")

    async def main() -> None:
        with contextlib.suppress(ValueError):
            async with make(WAIT_S) as client:
                for came in (bytearray(), bytearray(), bytearray()):
                    tasks[asyncio.create_task(read(client, vendor.url, stream, came))] = came
                await asyncio.gather(fail(), *tasks)
        await asyncio.wait(tasks, timeout=SOON_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


async def _reached(
    vendor: CuttingVendor, stream: bool, tasks: dict[asyncio.Task[Any], bytearray]
) -> None:
    """Wait until the vendor has come to its moment with each task, which has all that it sent."""
    await until_async(lambda: vendor.reached == len(tasks))
    # Where what has arrived decides what is charged.
    if vendor.moment in ("overloaded", "bad gateway"):
        await asyncio.wait(tasks, timeout=WAIT_S)
    elif stream and vendor.moment == "after usage":
        await until_async(lambda: all(b'"usage"' in came for came in tasks.values()))
    await asyncio.sleep(0.02)  # what was written has arrived
    for _ in range(50):  # and goes from one task to the next before its reader has it
        await asyncio.sleep(0)


# -- readers who leave ----------------------------------------------------------------------------


def left_httpx(url: str) -> None:
    """A reader who takes one piece."""
    with (
        httpx.Client(timeout=WAIT_S) as client,
        client.stream("POST", url + PATH, json=_asked(True)) as response,
    ):
        for _ in response.iter_bytes():
            break


def left_requests(url: str) -> None:
    with requests.post(url + PATH, json=_asked(True), stream=True, timeout=WAIT_S) as response:
        for _ in response.iter_content(16):
            break


def left_boto3(url: str) -> None:
    stream = bedrock_client(url).converse_stream(
        **{**CONVERSE, "inferenceConfig": {"maxTokens": OUTPUT}}
    )["stream"]
    for _ in stream:
        break
    stream.close()


async def _pieces(client: Any, url: str) -> AsyncIterator[bytes]:
    async with client.stream("POST", url + PATH, json=_asked(True)) as response:
        async for piece in response.aiter_bytes():
            yield piece


def left_async_generator(url: str) -> None:
    """Whose generator the loop closes at its end."""

    async def main() -> None:
        client = httpx.AsyncClient(timeout=WAIT_S)
        async for _ in _pieces(client, url):
            break

    asyncio.run(main())


def left_aiohttp(url: str) -> None:
    async def main() -> None:
        async with (
            aiohttp.ClientSession() as client,
            client.post(url + PATH, json=_asked(True)) as response,
        ):
            async for _ in response.content.iter_any():
                break

    asyncio.run(main())


def dropped_httpx(url: str) -> None:
    """A response that is never closed, and collected."""
    client = httpx.Client(timeout=WAIT_S)
    response = client.send(client.build_request("POST", url + PATH, json=_asked(True)), stream=True)
    next(response.iter_bytes())
    del response, client
    gc.collect()


def dropped_requests(url: str) -> None:
    response = requests.post(url + PATH, json=_asked(True), stream=True, timeout=WAIT_S)
    next(response.iter_content(16))
    del response
    gc.collect()


def dropped_aiohttp(url: str) -> None:
    async def main() -> None:
        client = aiohttp.ClientSession()
        response = await client.post(url + PATH, json=_asked(True))
        await response.content.read(16)
        del response
        gc.collect()
        await client.close()

    asyncio.run(main())
    gc.collect()


LEAVING = [
    left_httpx, left_requests, left_boto3, left_async_generator, left_aiohttp, dropped_httpx,
    dropped_requests, dropped_aiohttp,
]  # fmt: skip
