"""Requests per second and latency of the service beside a null ASGI app on the same server.

The null app reads the body and answers a constant of the same size, on uvicorn set up alike; what
the service costs beyond it is the key check, JSON, limits, metrics and the engine, in a thread
("service") or in so many processes ("service 2"). Each server runs in a process of its own.
Prints numbers and ratios; asserts nothing.

    python benchmarks/spam_service.py [--seconds 4]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

_TEXT = "Congratulations! You won a free prize. Claim now: http://bit.ly/x1 or call 0800 123 456"
_BODY = json.dumps({"text": _TEXT}).encode()
_PATH = b"/v1/spam-detection/predict"


async def _null_app(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    answer = b'{"message":"' + b"x" * 480 + b'","data":{}}'
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(answer)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def _serve(kind: str, tell: Connection) -> None:
    from spamdetect.service.server import serving_app
    from spamdetect.service.settings import ServiceSettings
    from spamdetect.testing import run_service_async

    async def run() -> None:
        if kind == "null":
            async with serving_app(_null_app, ServiceSettings(port=0)) as listening:
                tell.send((listening.base_url, "key"))
                await asyncio.Event().wait()
        processes = int(kind.rpartition(" ")[2]) if " " in kind else 0
        async with run_service_async(
            max_queue_wait_ms=5000, max_pending=10_000, processes=processes
        ) as service:
            tell.send((service.base_url, service.api_key))
            await asyncio.Event().wait()

    import uvloop

    uvloop.run(run())


async def _load(
    url: str, key: str, connections: int, seconds: float
) -> tuple[float, list[float], int]:
    port = int(url.rpartition(":")[2])
    request = (
        b"POST " + _PATH + b" HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"accept: application/json\r\nx-api-key: "
        + key.encode()
        + b"\r\ncontent-length: "
        + str(len(_BODY)).encode()
        + b"\r\n\r\n"
        + _BODY
    )
    waits_s: list[float] = []
    refused = 0
    ends_s = time.perf_counter() + seconds

    async def worker() -> None:
        nonlocal refused
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (started_s := time.perf_counter()) < ends_s:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            at = head.index(b"content-length: ") + 16
            await reader.readexactly(int(head[at : head.index(b"\r", at)]))
            waits_s.append(time.perf_counter() - started_s)
            refused += not head.startswith(b"HTTP/1.1 200")
        writer.close()

    started_s = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(connections)))
    return len(waits_s) / (time.perf_counter() - started_s), sorted(waits_s), refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    seconds = parser.parse_args().seconds
    import uvloop

    context = multiprocessing.get_context("spawn")
    print(f"{'':<12}{'conns':>6}{'req/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'refused':>9}{'of null':>9}")
    null_rates: dict[int, float] = {}
    for kind in ("null", "service", "service 1", "service 2"):
        receive, send = context.Pipe(duplex=False)
        server = context.Process(target=_serve, args=(kind, send))
        server.start()
        send.close()  # so that a server that cannot start ends the wait for its address
        url, key = receive.recv()
        try:
            for connections in (1, 32, 256):
                uvloop.run(_load(url, key, connections, min(1.0, seconds)))
                rate, waits_s, refused = uvloop.run(_load(url, key, connections, seconds))
                null_rates.setdefault(connections, rate)
                p50, p99 = waits_s[len(waits_s) // 2], waits_s[len(waits_s) * 99 // 100]
                print(
                    f"{kind:<12}{connections:>6}{rate:>9,.0f}{p50 * 1e3:>9.2f}{p99 * 1e3:>9.2f}"
                    f"{refused:>9}{rate / null_rates[connections]:>9.2f}"
                )
        finally:
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
