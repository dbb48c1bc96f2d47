"""How long a kill takes: from the operator's request to the exception inside the body.

For each kind of body the operator (in a process of its own) asks the gateway (in another) to kill a
workflow, and the clock stops in the body's own ``except``. Beside it stands the bare mechanism:
cancelling a task across threads, an asynchronous exception, a socket's shutdown, with no gateway
and no network in between. Below stands the nearest peer, ``nullrun``, whose kill does not reach
into a call: how many of its bodies were stopped at all, and how long its next call takes to refuse.

    python -m benchmarks.kill [--kills 100] [--only KIND] [--peers PYTHON] [--results FOLDER]

``PYTHON`` is an interpreter that has ``nullrun`` and ``httpx``.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import json
import math
import multiprocessing
import os
import platform
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import guard
from benchmarks import _kill_peer as nullrun
from benchmarks._kill_bodies import ASYNC, SYNC, WAIT_S, Missing, Note
from guard.control.async_exceptions import post
from guard.gateway.admin import AdminClient
from guard.gateway.embedded import run_gateway
from tests.support.slow_server import SlowServer
from tests.support.waiting import until

# -- the gateway, the server and the operator, each in a process of its own ---------------------


def _serve_gateway(pipe: Connection) -> None:
    with run_gateway() as gateway:
        pipe.send((gateway.base_url, gateway.api_key, gateway.admin_key))
        pipe.recv()


def _serve_http(pipe: Connection) -> None:
    server = SlowServer()
    pipe.send(server.url)
    while pipe.recv() != "end":
        pipe.send((server.count("/"), server.open_connections))


def _operate(pipe: Connection, url: str, admin_key: str) -> None:
    admin = AdminClient(url, admin_key)
    admin.workflows()  # the connection is open before the first kill
    while (name := pipe.recv()) is not None:
        begun_s = time.monotonic()  # the same clock in every process of the machine
        admin.kill(name)
        pipe.send(begun_s)


@contextmanager
def _process(target: Callable[..., None], *args: Any, end: Any) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *args), daemon=True)
    process.start()
    try:
        yield here
    finally:
        here.send(end)
        process.join(10)


class Bench:
    """One runtime; a fresh workflow for each kill."""

    def __init__(self, url: str, server: Connection, operator: Connection, kills: int) -> None:
        self._url = url
        self._server = server
        self._operator = operator
        self._kills = kills
        self._number = 0

    def measure(self, body: Callable[[str, Note], Any], *, in_task: bool) -> list[float]:
        """Return the latencies in milliseconds."""
        return [self._once(body, in_task=in_task) for _ in range(self._kills)]

    def _asked(self) -> int:
        self._server.send("count")
        return int(self._server.recv()[0])

    def _once(self, body: Callable[[str, Note], Any], *, in_task: bool) -> float:
        self._number += 1
        name = f"bench-{self._number}"
        at_work = threading.Event()
        stopped: list[float] = []
        asked = self._asked()

        async def in_loop(url: str) -> None:
            try:
                await body(url, at_work.set)
            except BaseException:
                stopped.append(time.monotonic())
                raise

        def in_thread(url: str) -> None:
            try:
                body(url, at_work.set)
            except BaseException:
                stopped.append(time.monotonic())
                raise

        def run() -> None:
            with guard.workflow(name):
                try:
                    if in_task:
                        asyncio.run(guard.protect(in_loop)(self._url))  # type: ignore[arg-type]
                    else:
                        guard.protect(in_thread)(self._url)
                except guard.WorkflowKilledInterrupt:
                    return
                except Missing as exc:
                    missing.append(exc)

        missing: list[Missing] = []
        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: at_work.is_set() or missing, WAIT_S)
        if missing:
            thread.join()
            raise missing[0]
        if getattr(body, "path", "") == "hang":
            until(lambda: self._asked() > asked, WAIT_S)
        time.sleep(0.005)
        self._operator.send(name)
        # Reading a pipe in this thread takes the interpreter lock only at the end.
        begun_s = self._operator.recv()
        thread.join(WAIT_S)
        if thread.is_alive() or not stopped:
            raise AssertionError(f"missed: {name}")
        return (stopped[-1] - begun_s) * 1000


# -- the bare mechanisms ------------------------------------------------------------------------


def bare_cancel(kills: int) -> list[float]:
    """Cancel a task of another thread's loop."""

    async def main(loops: list[Any], at_work: threading.Event) -> float:
        loops.extend((asyncio.get_running_loop(), asyncio.current_task()))
        at_work.set()
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            return time.monotonic()
        raise AssertionError

    samples = []
    for _ in range(kills):
        loops: list[Any] = []
        at_work = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            stopped = pool.submit(asyncio.run, main(loops, at_work))
            at_work.wait()
            time.sleep(0.005)
            begun_s = time.monotonic()
            loops[0].call_soon_threadsafe(loops[1].cancel)
            samples.append((stopped.result() - begun_s) * 1000)
    return samples


def bare_exception(kills: int) -> list[float]:
    """Raise in another thread's loop."""

    def loop(idents: list[int], at_work: threading.Event) -> float:
        idents.append(threading.get_ident())
        at_work.set()
        try:
            while True:
                pass
        except KeyboardInterrupt:
            return time.monotonic()

    samples = []
    for _ in range(kills):
        idents: list[int] = []
        at_work = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            stopped = pool.submit(loop, idents, at_work)
            at_work.wait()
            time.sleep(0.005)
            begun_s = time.monotonic()
            post(idents[0], KeyboardInterrupt)
            samples.append((stopped.result() - begun_s) * 1000)
    return samples


def bare_shutdown(kills: int) -> list[float]:
    """Shut down the socket that another thread reads."""

    def read(sock: socket.socket) -> float:
        sock.recv(1)
        return time.monotonic()

    samples = []
    for _ in range(kills):
        here, there = socket.socketpair()
        with here, there, concurrent.futures.ThreadPoolExecutor(1) as pool:
            stopped = pool.submit(read, here)
            time.sleep(0.005)
            begun_s = time.monotonic()
            here.shutdown(socket.SHUT_RDWR)
            samples.append((stopped.result() - begun_s) * 1000)
    return samples


BARE: Final = {
    "task.cancel": bare_cancel,
    "async exception": bare_exception,
    "socket shutdown": bare_shutdown,
}


# -- the report ---------------------------------------------------------------------------------


class Table:
    """Prints each line as it is measured, and keeps it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def latencies(self, group: str, kind: str, samples: list[float]) -> None:
        """Print the latencies of one kind, in milliseconds."""
        ordered = sorted(samples)
        row = {
            "group": group,
            "kind": kind,
            "kills": len(ordered),
            "median_ms": round(statistics.median(ordered), 3),
            "p99_ms": round(ordered[math.ceil(0.99 * len(ordered)) - 1], 3),
            "max_ms": round(ordered[-1], 3),
        }
        self.rows.append(row)
        print(
            f"{group:7} {kind:34} {len(samples):5} kills   median {row['median_ms']:8.2f} ms"
            f"   p99 {row['p99_ms']:8.2f} ms   max {row['max_ms']:8.2f} ms",
            flush=True,
        )

    def fates(self, group: str, kind: str, found: dict[str, Any]) -> None:
        """Print how many bodies of one kind were stopped, and the fate of the others."""
        count, stopped = found["bodies"], found["stopped"]
        left = (
            f"   not stopped: body ran to its end ({nullrun.BODY_S} s)" if stopped < count else ""
        )
        print(
            f"{group:7} {kind:34} {count:5} kills   stopped {stopped} of {count}{left};"
            f" next call refused {found['refused_next']} of {count}",
            flush=True,
        )
        self.rows.append({"group": group, "kind": kind, "kills": count, **found})

    def keep(self, folder: Path, name: str = "kill") -> None:
        """Write what was printed, with the date and the machine."""
        folder.mkdir(parents=True, exist_ok=True)
        day = time.strftime("%Y-%m-%d")
        machine = (
            f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
        )
        text = json.dumps({"date": day, "machine": machine, "results": self.rows}, indent=1)
        (folder / f"{name}-{day}.json").write_text(text + "\n")


def measure_guard(table: Table, kills: int, only: str, server: Connection, url: str) -> None:
    """Kill bodies of this package."""
    with _process(_serve_gateway, end=None) as gateway_pipe:
        gateway_url, api_key, admin_key = gateway_pipe.recv()
        with _process(_operate, gateway_url, admin_key, end=None) as operator:
            runtime = guard.GuardRuntime(api_key=api_key, api_url=gateway_url).open()
            until(lambda: runtime.status().control_channel == "websocket", WAIT_S)
            bench = Bench(url, server, operator, kills)
            for group, bodies in (("async", ASYNC), ("sync", SYNC)):
                for kind, body in bodies.items():
                    if only not in kind:
                        continue
                    try:
                        samples = bench.measure(body, in_task=group == "async")
                    except Missing as exc:
                        print(f"{group:7} {kind:34} skipped: {exc}")
                    else:
                        table.latencies(group, kind, samples)
            runtime.shutdown(flush=False)


def measure_peer(table: Table, kills: int, only: str, url: str, python: str | None) -> None:
    """Kill bodies of the peer; it works at most twenty at a time, each in a thread of its own."""
    if python is None:
        print("nullrun left out: no interpreter was given (--peers PYTHON)")
        return
    kind = "next short call, from the push"
    with nullrun.started(python, url) as peer:
        if peer is None:
            print(f"nullrun left out: {python} does not have it, or it does not start")
            return
        for name in nullrun.BODIES:
            if only in name:
                table.fates("nullrun", name, peer.bodies(name, min(kills, 20)))
        if only in kind:
            table.latencies("nullrun", kind, [peer.refusal_ms() for _ in range(kills)])


def main() -> None:
    """Measure every kind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--only", default="", help="part of a kind's name")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has nullrun")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep the table there")
    options = parser.parse_args()
    table = Table()
    for kind, bare in BARE.items():
        if options.only in kind:
            table.latencies("bare", kind, bare(options.kills))
    with _process(_serve_http, end="end") as server:
        url = server.recv()
        measure_guard(table, options.kills, options.only, server, url)
        measure_peer(table, options.kills, options.only, url, options.peers)
    if options.results:
        table.keep(options.results)


if __name__ == "__main__":
    main()
