"""The constants that docs/deploy/sizing.md calculates with, measured on one gateway over SQLite.

Run: ``python -m benchmarks.sizing [--sockets 1000] [--events 40000] [--results FOLDER]``

CPU is the gateway process's own time, so other load on the machine hardly changes it.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import multiprocessing
import os
import platform
import random
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import attrs
import httpx
import psutil

from benchmarks.gateway import _drive, _handshake, _set_budgets
from guard.core.ids import IdFactory
from guard.gateway.admin import AdminClient
from guard.gateway.databases import backup

BATCH = 200
_PING = b"\x89\x80" + bytes(4)
_IDS = IdFactory()


# -- server ------------------------------------------------------------------------------------


def _serve(pipe: Connection, database: Path) -> None:
    from guard.gateway.app import GatewayApp
    from guard.gateway.bootstrap import first_run
    from guard.gateway.server import GatewayServer, bind, new_event_loop, tune_process
    from guard.gateway.settings import GatewaySettings

    async def main() -> None:
        listening = bind("127.0.0.1", 0)
        app = GatewayApp(GatewaySettings(database=database, connections_max=40_000))
        await app.open()
        made = await first_run(app.storage, app.clock_ms())
        assert made is not None
        await _set_budgets(app, made.organisation_id)
        pipe.send((listening.getsockname()[1], made.api_key, made.admin_key))
        tune_process()
        await GatewayServer(app, listening).serve()

    new_event_loop().run_until_complete(main())


@attrs.frozen
class Served:
    """A gateway in a process of its own."""

    port: int
    api_key: str
    admin_key: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Return the CPU time that it has used."""
        return sum(self.process.cpu_times()[:2])

    def rss(self) -> int:
        """Return its resident memory in bytes."""
        return int(self.process.memory_info().rss)


@contextmanager
def served(database: Path) -> Iterator[Served]:
    """Run a gateway until the block ends."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, database), daemon=True)
    process.start()
    try:
        if not ours.poll(60):
            raise RuntimeError("the server did not start")
        yield Served(*ours.recv(), psutil.Process(process.pid))
    finally:
        process.terminate()
        process.join(30)


# -- events ------------------------------------------------------------------------------------


def _event(number: int) -> dict[str, Any]:
    """Return an event as the SDK reports an LLM call."""
    return {
        "event_id": _IDS.uuid7(time.time_ns() // 1_000_000), "type": "llm",
        "at_ms": time.time_ns() // 1_000_000, "workflow_id": f"workflow-{number % 50}",
        "run_id": f"0194a5c8-0000-7000-8000-{number // 40:012d}", "agent": "planner",
        "data": {
            "model": "gpt-4o", "provider": "openai", "input_tokens": random.randrange(4000),
            "output_tokens": random.randrange(900), "cached_input_tokens": 0,
            "latency_ms": random.randrange(20_000), "status": 200,
            "response_id": f"chatcmpl-{random.getrandbits(120):x}", "stream": False,
        },
    }  # fmt: skip


def ingest(gateway: Served, count: int) -> dict[str, float]:
    """Send events in batches; return their size on the wire and the CPU of one."""
    headers = {"X-API-Key": gateway.api_key, "X-Guard-Protocol": "3",
               "Content-Type": "application/json"}  # fmt: skip
    sent = 0
    with httpx.Client(base_url=f"http://127.0.0.1:{gateway.port}", headers=headers) as http:
        before = gateway.cpu_s()
        for start in range(0, count, BATCH):
            events = [_event(start + n) for n in range(BATCH)]
            body = json.dumps({"batch_id": f"b{start}", "sent_at_ms": 1, "events": events})
            sent += len(body)
            reply = http.post("/api/v1/events", content=body.encode())
            reply.raise_for_status()
            assert reply.json()["accepted"] == BATCH, reply.text
        cpu_s = gateway.cpu_s() - before
    return {"wire_bytes_per_event": sent / count, "cpu_us_per_event": cpu_s / count * 1e6}


# -- sockets -----------------------------------------------------------------------------------


class _Idle(asyncio.Protocol):
    """A control socket that listens, pings like an SDK, and notes when a kill comes."""

    def __init__(self, handshake: bytes) -> None:
        self._handshake = handshake
        self._head = b""
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.killed: asyncio.Future[float] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.transport.write(self._handshake)

    def data_received(self, data: bytes) -> None:
        at = data.find(b"\x89\x04")  # the gateway's ping, with its four bytes
        if at >= 0:
            self.transport.write(b"\x8a\x84" + bytes(4) + data[at + 2 : at + 6])
        if not self.greeted.done():
            self._head += data
            if b'"hello"' in self._head:
                self.greeted.set_result(None)
        if b'"kill"' in data and not self.killed.done():
            self.killed.set_result(time.perf_counter())


async def sockets(gateway: Served, count: int, idle_s: float) -> dict[str, float]:
    """Hold sockets open; return what one costs, idle and at a kill of everything."""
    loop = asyncio.get_running_loop()
    rss = gateway.rss()
    handshake, held = _handshake(gateway.port, gateway.api_key), []
    for start in range(0, count, 100):
        made = await asyncio.gather(*(
            loop.create_connection(lambda: _Idle(handshake), "127.0.0.1", gateway.port,
                                   family=socket.AF_INET)
            for _ in range(min(100, count - start))
        ))  # fmt: skip
        held += [protocol for _, protocol in made]
        await asyncio.gather(*(each.greeted for each in held[start:]))
    per_socket = (gateway.rss() - rss) / count
    before, started = gateway.cpu_s(), time.perf_counter()
    while time.perf_counter() - started < idle_s:
        await asyncio.sleep(5.0)
        for each in held:
            each.transport.write(_PING)
    idle_cpu = (gateway.cpu_s() - before) / (time.perf_counter() - started) / count
    before, started = gateway.cpu_s(), time.perf_counter()
    await asyncio.to_thread(_kill_all, gateway)
    async with asyncio.timeout(60):
        last = max(await asyncio.gather(*(each.killed for each in held)))
    kill_cpu = (gateway.cpu_s() - before) / count
    for each in held:
        each.transport.abort()
    return {
        "bytes_per_socket": per_socket,
        "cpu_us_per_socket_second": idle_cpu * 1e6,
        "cpu_us_per_kill_and_socket": kill_cpu * 1e6,
        "kill_to_last_socket_ms": (last - started) * 1e3,
    }


def _kill_all(gateway: Served) -> None:
    AdminClient(f"http://127.0.0.1:{gateway.port}", gateway.admin_key).kill("*")


# -- all ---------------------------------------------------------------------------------------


def _stored(database: Path) -> int:
    """Return the bytes of everything that is stored, in the log or not."""
    copy = database.with_name("copy.sqlite3")
    size = backup(database, copy)
    copy.unlink()
    return size


def measure(events: int, count: int, seconds: float) -> dict[str, float]:
    """Return every constant."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "g.sqlite3"
        with served(database) as gateway:
            found["rss_bytes"] = gateway.rss()
            ingest(gateway, BATCH * 10)  # makes what is made once
            empty = _stored(database)
            found |= ingest(gateway, events)
            found["stored_bytes_per_event"] = (_stored(database) - empty) / events
    with tempfile.TemporaryDirectory() as folder, served(Path(folder) / "g.sqlite3") as gateway:
        asked = asyncio.run(
            _drive(gateway.port, gateway.api_key, gateway.process.pid, True, 32, seconds)
        )
        found["cpu_us_per_decision"] = asked["cpu_us"]
        found |= asyncio.run(sockets(gateway, count, seconds * 5))
    return found


def main() -> None:
    """Measure, print, and write a file of results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sockets", type=int, default=1000)
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--results", type=Path, help="folder for a JSON file of the results")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found = measure(options.events, options.sockets, options.seconds)
    for name, value in found.items():
        print(f"{name:>28} {value:12,.1f}")
    if options.results is not None:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        machine = (
            f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
        )
        report = {
            "date": today, "machine": machine, "sockets": options.sockets,
            "events": options.events,
            "constants": {name: round(value, 1) for name, value in found.items()},
        }  # fmt: skip
        target = options.results / f"sizing-{today}.json"
        target.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
