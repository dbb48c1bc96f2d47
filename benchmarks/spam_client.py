"""What the clients add to a request: AsyncSpamClient and SpamClient beside bare httpx.

A null server in a process of its own answers every request with one fixed verdict, so that what
is measured is the client alone. Prints requests per second and ratios; asserts nothing.

    python benchmarks/spam_client.py [--requests 3000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import httpx

from spamdetect import AsyncSpamClient, SpamClient

_PATH = "/v1/spam-detection/predict"
_ANSWER = json.dumps(
    {
        "message": "Text classified as not spam.",
        "data": {
            "input_text": "hello there",
            "processed_text": "hello there",
            "text_length": 11,
            "word_count": 2,
            "language": {"language": "en", "probability": 0.98, "is_reliable": True},
            "prediction": {"is_spam": False, "ham_score": 0.97, "spam_score": 0.03},
            "error_code": "",
        },
    }
).encode()


class _NullServer(asyncio.Protocol):
    """Answers each POST that arrives in one piece; enough for a client on loopback."""

    _RAW = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
        + str(len(_ANSWER)).encode()
        + b"\r\n\r\n"
        + _ANSWER
    )

    def __init__(self) -> None:
        self._transport: Any = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._data.endswith(b"}"):
            self._data = b""
            self._transport.write(self._RAW)


def _serve(tell: Connection) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(_NullServer, "127.0.0.1", 0)
        tell.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await server.serve_forever()

    asyncio.run(run())


async def _rate(call: Callable[[], Awaitable[object]], requests: int, concurrency: int) -> float:
    for _ in range(20):
        await call()
    left = requests

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call()

    started_s = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return requests / (time.perf_counter() - started_s)


async def _async_rates(url: str, requests: int, concurrency: int) -> tuple[float, float]:
    limits = httpx.Limits(max_connections=max(100, concurrency))
    headers = {"x-api-key": "key", "accept": "application/json"}
    async with httpx.AsyncClient(headers=headers, limits=limits, timeout=10) as bare:

        async def call_bare() -> object:
            return (await bare.post(url + _PATH, json={"text": "hello there"})).json()

        bare_rate = await _rate(call_bare, requests, concurrency)
    async with AsyncSpamClient(url, "key") as spam:
        ours = await _rate(lambda: spam.predict("hello there"), requests, concurrency)
    return bare_rate, ours


def _blocking_rates(url: str, requests: int) -> tuple[float, float]:
    def rate(call: Callable[[], object]) -> float:
        for _ in range(20):
            call()
        started_s = time.perf_counter()
        for _ in range(requests):
            call()
        return requests / (time.perf_counter() - started_s)

    with httpx.Client(headers={"x-api-key": "key"}, timeout=10) as bare:
        bare_rate = rate(lambda: bare.post(url + _PATH, json={"text": "hello there"}).json())
    with SpamClient(url, "key") as spam:
        return bare_rate, rate(lambda: spam.predict("hello there"))


def _print_row(name: str, bare: float, ours: float) -> None:
    added_us = (1 / ours - 1 / bare) * 1e6
    print(f"{name:<28}{bare:>12,.0f}{ours:>12,.0f}{ours / bare:>9.2f}{added_us:>12,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=3000)
    requests = parser.parse_args().requests
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    server = context.Process(target=_serve, args=(send,), daemon=True)
    server.start()
    url = receive.recv()
    try:
        print(f"{'':<28}{'httpx /s':>12}{'ours /s':>12}{'ratio':>9}{'added us':>12}")
        for concurrency in (1, 32, 256):
            rates = asyncio.run(_async_rates(url, requests, concurrency))
            _print_row(f"async, concurrency {concurrency}", *rates)
        _print_row("blocking, one thread", *_blocking_rates(url, requests))
        with SpamClient(local=True) as local:
            started_s = time.perf_counter()
            for _ in range(requests):
                local.predict("hello there")
            print(f"local mode, one thread: {requests / (time.perf_counter() - started_s):,.0f} /s")
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
