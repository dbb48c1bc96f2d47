"""Processor time and requests per second of the service beside a null ASGI app on the same server.

The null app reads the body and answers a constant of the same size, on uvicorn set up alike; what
the service costs beyond it is the key check, JSON, limits, metrics and the engine, on the loop
("service") or in so many processes ("service 2"). Each server runs in a process of its own; they
are measured in turns, several rounds, and ratios are those of the same round: medians, lowest and
highest. On a machine with other work only the ratios of processor time mean something; those of
the busiest process say how many requests there are with a core for each. Asserts nothing.

    python benchmarks/spam_service.py [--seconds 4] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

# Each a little different, so that nothing is read from a memory of the last one.
_TEXTS = [
    f"Congratulations! You won a free prize. Claim now: http://bit.ly/x{n} or call 0800 {n} 456"
    for n in range(100, 600)
]
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


class _Server(NamedTuple):
    kind: str
    process: Any
    port: int
    requests: list[bytes]


@contextlib.contextmanager
def _running(kind: str, texts: list[str]) -> Iterator[_Server]:
    import psutil

    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(kind, send))
    process.start()
    send.close()  # so that a server that cannot start ends the wait for its address
    try:
        url, key = receive.recv()
        port = int(url.rpartition(":")[2])
        requests = [_request(key, text) for text in texts]
        yield _Server(kind, psutil.Process(process.pid), port, requests)
    finally:
        process.terminate()
        process.join()


def _request(key: str, text: str) -> bytes:
    body = json.dumps({"text": text}).encode()
    head = (
        f"POST {_PATH.decode()} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"accept: application/json\r\nx-api-key: {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Load:
    """What one run found."""

    def __init__(self, requests: list[bytes]) -> None:
        self.requests = requests
        self.next = 0
        self.ends_s = 0.0
        self.waits_s: list[float] = []
        self.refused = 0
        self.open = 0
        self.done = asyncio.get_running_loop().create_future()


class _Client(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._received = b""
        self._transport: Any = None
        self._started_s = 0.0

    def connection_made(self, transport: Any) -> None:
        self._load.open += 1
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        load = self._load
        self._started_s = time.perf_counter()
        if self._started_s >= load.ends_s:
            self._transport.close()
            return
        self._transport.write(load.requests[load.next % len(load.requests)])
        load.next += 1

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return
        at = received.index(b"content-length: ") + 16
        if len(received) < end + 4 + int(received[at : received.index(b"\r", at)]):
            return
        self._received = b""
        self._load.waits_s.append(time.perf_counter() - self._started_s)
        self._load.refused += not received.startswith(b"HTTP/1.1 200")
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.open -= 1
        if not self._load.open:
            self._load.done.set_result(None)


class _Figures(NamedTuple):
    rate: float
    p50_ms: float
    p99_ms: float
    refused: int
    cpu_us: float
    busiest_us: float


async def _load(server: _Server, connections: int, seconds: float) -> _Figures:
    load = _Load(server.requests)
    before_s = _processor_s(server.process)
    started_s = time.perf_counter()
    load.ends_s = started_s + seconds
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: _Client(load), "127.0.0.1", server.port)
    await load.done
    took_s = time.perf_counter() - started_s
    after_s = _processor_s(server.process)
    used_s = [after_s[pid] - before_s.get(pid, 0.0) for pid in after_s]
    waits_s = sorted(load.waits_s)
    count = len(waits_s)
    return _Figures(
        count / took_s,
        waits_s[count // 2] * 1e3,
        waits_s[count * 99 // 100] * 1e3,
        load.refused,
        sum(used_s) / count * 1e6,
        max(used_s) / count * 1e6,
    )


def _processor_s(process: Any) -> dict[int, float]:
    """Processor time of a process and of each of its children, user and system."""
    found = {}
    for each in (process, *process.children(recursive=True)):
        times = each.cpu_times()
        found[each.pid] = times.user + times.system
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--kinds", nargs="+", default=["null", "service", "service 1", "service 2"])
    parser.add_argument("--texts", help="a file with one text a line, instead of one text")
    asked = parser.parse_args()
    import uvloop

    texts = Path(asked.texts).read_text().splitlines() if asked.texts else _TEXTS
    print(f"{'':<12}{'conns':>6}{'req/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'refused':>9}", end="")
    print(f"{'CPU us':>9}{'busiest':>9}  of null: req/s, requests per CPU second (of the busiest)")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(_running(kind, texts)) for kind in asked.kinds]
        for connections in asked.connections:
            found: dict[str, list[_Figures]] = {kind: [] for kind in asked.kinds}
            for server in servers:
                uvloop.run(_load(server, connections, min(1.0, asked.seconds)))
            for _ in range(asked.rounds):
                for server in servers:
                    found[server.kind].append(uvloop.run(_load(server, connections, asked.seconds)))
            null = found[asked.kinds[0]]
            for kind, rounds in found.items():
                rate, p50, p99, refused, cpu, busiest = map(median, zip(*rounds, strict=True))
                pairs = list(zip(rounds, null, strict=True))
                ratios = (
                    _spread([a.rate / b.rate for a, b in pairs]),
                    _spread([b.cpu_us / a.cpu_us for a, b in pairs]),
                    _spread([b.cpu_us / a.busiest_us for a, b in pairs]),
                )
                print(
                    f"{kind:<12}{connections:>6}{rate:>9,.0f}{p50:>9.2f}{p99:>9.2f}{refused:>9.0f}"
                    f"{cpu:>9.1f}{busiest:>9.1f}  {'   '.join(ratios)}",
                    flush=True,
                )


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
