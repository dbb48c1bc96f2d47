"""Gateway decisions per second and latency, beside the null ASGI app on the same server.

Run: ``python -m benchmarks.gateway [--seconds 3] [--rounds 3] [--concurrency 1 32 256]``

Each case is served by a process of its own; one client process, a raw asyncio protocol that keeps
one request in flight on each connection, drives all of them in turn, round after round, so that
the machine's other load affects every case alike. Over the control socket there is one connection,
and as many requests are in flight on it. Compare the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import platform
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import psutil

from guard.core import wire
from guard.core.ids import IdFactory
from guard.gateway.ledger import catalogue
from guard.gateway.unit.state import within

_ANSWERS = msgspec.json.Decoder(wire.Answers)
_IDS = IdFactory()
_BODY = {
    "call_id": "0194a5c8-0000-7000-8000-000000000001",
    "kind": "llm",
    "function": "agent.step",
    "model": "gpt-4o",
    "tools": ["search", "read_file"],
    "workflow_id": "research",
    "run_id": "0194a5c8-0000-7000-8000-000000000002",
    "agent": "planner",
    "max_input_tokens": 2000,
    "max_output_tokens": 500,
}


# -- servers -----------------------------------------------------------------------------------


async def _null_app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    body = b'{"decision":"allow"}'
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _serve_null(pipe: Connection) -> None:
    import uvicorn

    from guard.gateway.server import bind, new_event_loop, tune_process

    listening = bind("127.0.0.1", 0)
    config = uvicorn.Config(
        _null_app, http="httptools", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    pipe.send((listening.getsockname()[1], ""))
    tune_process()
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(server.serve(sockets=[listening]))


def _serve_gateway(pipe: Connection, durable: bool) -> None:
    from guard.gateway.app import GatewayApp
    from guard.gateway.bootstrap import first_run
    from guard.gateway.server import GatewayServer, bind, new_event_loop, tune_process
    from guard.gateway.settings import GatewaySettings

    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            listening = bind("127.0.0.1", 0)
            settings = GatewaySettings(database=Path(folder) / "g.sqlite3", durable=durable)
            app = GatewayApp(settings)
            await app.open()
            made = await first_run(app.storage, app.clock_ms())
            assert made is not None
            await _set_budgets(app, made.organisation_id)
            pipe.send((listening.getsockname()[1], made.api_key))
            tune_process()
            await GatewayServer(app, listening).serve()

    loop = new_event_loop()
    loop.run_until_complete(main())


async def _set_budgets(app: Any, organisation_id: str) -> None:
    from guard.gateway.domain.commands import Actor
    from guard.gateway.domain.records import BudgetRule

    for kind, scope_id, window in (("organisation", "", "month"), ("workflow", "*", "day")):
        budget = BudgetRule(
            budget_id="", organisation_id=organisation_id, scope_kind=kind, scope_id=scope_id,
            window=window, limit=2**60,
        )  # fmt: skip
        await app.storage.write(
            within(budget.organisation_id), catalogue.put_budget, Actor("benchmark"), budget
        )


@contextlib.contextmanager
def _server(target: Any, *arguments: Any) -> Iterator[tuple[int, str, int]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    try:
        if not ours.poll(30):
            raise RuntimeError("the server did not start")
        yield *ours.recv(), process.pid or 0
    finally:
        process.terminate()
        process.join(10)


# -- client ------------------------------------------------------------------------------------


class _Caller(asyncio.Protocol):
    """Keeps one request in flight and records how long each took."""

    def __init__(self, head: bytes, tail: bytes, until: float) -> None:
        self._head, self._tail, self._until = head, tail, until
        self._left = 0
        self._buffer = b""
        self._sent_at = 0.0
        self.took: list[float] = []
        self.failures = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._send()

    def _send(self) -> None:
        # Keys as the SDK makes them: UUIDv7.
        key = _IDS.uuid7(time.time_ns() // 1_000_000).encode()
        self._sent_at = time.perf_counter()
        self._transport.write(self._head + key + b"\r\n\r\n" + self._tail)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        lowered = self._buffer[:end].lower()
        at = lowered.index(b"content-length: ") + 16
        length = int(lowered[at:].split(b"\r\n", 1)[0])
        if len(self._buffer) < end + 4 + length:
            return
        now = time.perf_counter()
        self.took.append(now - self._sent_at)
        self.failures += not self._buffer.startswith(b"HTTP/1.1 200")
        self._buffer = b""
        if now < self._until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Asker(asyncio.Protocol):
    """Keeps many requests in flight on one control socket and records how long each took."""

    def __init__(self, handshake: bytes, body: bytes, in_flight: int, until: float) -> None:
        self._handshake, self._in_flight, self._until = handshake, in_flight, until
        self._body = b'","op":"gate","body":' + body + b"}"
        self._buffer = b""
        self._is_open = False
        self._sent_at: dict[str, float] = {}
        self.took: list[float] = []
        self.failures = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._transport.write(self._handshake)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_open:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if b" 101 " not in head:
                raise RuntimeError(head.decode())
            self._is_open, self._buffer = True, rest
            self._ask(self._in_flight)
        answered = 0
        while (payload := self._frame()) is not None:
            if payload.startswith(b'{"type":"answers"'):
                answered += self._note(payload)
        if not answered:
            return
        if time.perf_counter() < self._until:
            self._ask(answered)
        elif not self._sent_at:
            self._transport.close()

    def _ask(self, count: int) -> None:
        now = time.perf_counter()
        asks = []
        for _ in range(count):
            key = _IDS.uuid7(time.time_ns() // 1_000_000)
            self._sent_at[key] = now
            asks.append(b'{"id":"' + key.encode() + self._body)
        frame = b'{"type":"asks","asks":[' + b",".join(asks) + b"]}"
        # The mask is four zeros, which is as good as any other to the server.
        self._transport.write(b"\x81\xff" + len(frame).to_bytes(8, "big") + bytes(4) + frame)

    def _frame(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, at = buffer[1], 2
        if size >= 126:
            at = 4 if size == 126 else 10
            size = int.from_bytes(buffer[2:at], "big")
        if len(buffer) < max(at, 2) + size:
            return None
        self._buffer = buffer[at + size :]
        return buffer[at : at + size] if buffer[0] == 0x81 else b""

    def _note(self, payload: bytes) -> int:
        now = time.perf_counter()
        answers = _ANSWERS.decode(payload).answers
        for told in answers:
            self.took.append(now - self._sent_at.pop(told.id))
            self.failures += told.status != 200
        return len(answers)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def _drive(
    port: int, api_key: str, pid: int, over_socket: bool, concurrency: int, seconds: float
) -> dict[str, float]:
    body = json.dumps(_BODY).encode()
    head = (
        f"POST /gate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-API-Key: {api_key}\r\n"
        "X-Guard-Protocol: 3\r\nUser-Agent: guard-python/0.7.0\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nIdempotency-Key: "
    ).encode()
    loop = asyncio.get_running_loop()
    server = psutil.Process(pid)
    cpu_before = sum(server.cpu_times()[:2])
    start = time.perf_counter()
    callers = []
    for _ in range(1 if over_socket else concurrency):
        _, caller = await loop.create_connection(
            lambda: (
                _Asker(_handshake(port, api_key), body, concurrency, start + seconds)
                if over_socket
                else _Caller(head, body, start + seconds)
            ),
            "127.0.0.1",
            port,
            family=socket.AF_INET,
        )
        callers.append(caller)
    async with asyncio.timeout(seconds + 30):
        await asyncio.gather(*(caller.done for caller in callers))
    elapsed = time.perf_counter() - start
    cpu_s = sum(server.cpu_times()[:2]) - cpu_before
    took = sorted(t for caller in callers for t in caller.took)
    if sum(caller.failures for caller in callers):
        raise RuntimeError("a request failed")
    return {
        "per_s": len(took) / elapsed,
        "p50_us": took[len(took) // 2] * 1e6,
        "cpu_us": cpu_s / len(took) * 1e6,
        "p99_us": took[len(took) * 99 // 100] * 1e6,
    }


def _handshake(port: int, api_key: str) -> bytes:
    return (
        f"GET /api/v1/control/ws?after=0 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"X-API-Key: {api_key}\r\nX-Guard-Protocol: 3\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()


def main() -> None:
    """Run all cases and print a table and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--results", type=Path, help="folder for a JSON file of the results")
    options = parser.parse_args()
    cases = {
        "null ASGI app": (False, _serve_null),
        "gateway, SQLite": (False, _serve_gateway, False),
        "gateway, SQLite, socket": (True, _serve_gateway, False),
        "gateway, SQLite durable": (False, _serve_gateway, True),
    }
    loop_factory = _fast_loop()
    found: dict[int, dict[str, list[dict[str, float]]]] = {}
    with contextlib.ExitStack() as stack:
        servers = {
            name: (*stack.enter_context(_server(*case)), over_socket)
            for name, (over_socket, *case) in cases.items()
        }
        for concurrency in options.concurrency:
            results = found[concurrency] = {name: [] for name in cases}
            for _ in range(options.rounds):
                for name, server in servers.items():
                    with asyncio.Runner(loop_factory=loop_factory) as runner:
                        results[name].append(
                            runner.run(_drive(*server, concurrency, options.seconds))
                        )
    _report(found)
    if options.results is not None:
        _keep(options.results, found)


def _fast_loop() -> Any:
    from guard.gateway.server import new_event_loop

    return new_event_loop


def _report(found: dict[int, dict[str, list[dict[str, float]]]]) -> None:
    for concurrency, results in found.items():
        print(f"\nconcurrency {concurrency}")
        null = statistics.median(r["per_s"] for r in results["null ASGI app"])
        for name, rounds in results.items():
            per_s = statistics.median(r["per_s"] for r in rounds)
            best = max(r["per_s"] for r in rounds)
            p50 = statistics.median(r["p50_us"] for r in rounds)
            cpu = statistics.median(r["cpu_us"] for r in rounds)
            p99 = statistics.median(r["p99_us"] for r in rounds)
            print(
                f"  {name:26} median {per_s:8.0f}/s  best {best:8.0f}/s  p50 {p50:8.0f} us"
                f"  p99 {p99:8.0f} us  cpu {cpu:5.0f} us  {per_s / null:5.2f}x null"
            )


def _keep(folder: Path, found: dict[int, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    day = time.strftime("%Y-%m-%d")
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {sys.version.split()[0]}"
    path = folder / f"gateway-{day}.json"
    path.write_text(json.dumps({"date": day, "machine": machine, "results": found}, indent=1))


if __name__ == "__main__":
    main()
