"""How long a kill takes: from the operator's request to the exception inside the body.

For each kind of body the operator (in a process of its own) asks the gateway (in another) to kill a
workflow, and the clock stops in the body's own ``except``. Beside it stands the bare mechanism:
cancelling a task across threads, an asynchronous exception, a socket's shutdown, with no gateway
and no network in between.

    python -m benchmarks.kill [--kills 100] [--only KIND]
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import math
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

import anyio

import guard
from guard.gateway.admin_client import AdminClient
from guard.gateway.embedded import run_gateway
from guard.threads import _raise_in
from tests.support.slow_server import SlowServer
from tests.support.waiting import until

WAIT_S: Final = 30.0

Note = Callable[[], None]
"""Called by a body when it is at work, and again when it has been stopped."""


class Missing(Exception):
    """A library that a kind needs is not installed."""


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


# -- kinds of bodies ----------------------------------------------------------------------------


def _module(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as exc:
        raise Missing(f"{name} is not installed") from exc


async def a_sleep(url: str, note: Note) -> None:
    """asyncio.sleep"""
    note()
    await asyncio.sleep(WAIT_S)


def a_http(module: str, path: str) -> Callable[[str, Note], Awaitable[None]]:
    async def body(url: str, note: Note) -> None:
        async with _module(module).AsyncClient(timeout=None, trust_env=False) as client:
            if path == "hang":
                note()
            async with client.stream("GET", f"{url}/{path}") as response:
                async for _ in response.aiter_bytes():
                    note()

    body.path = path  # type: ignore[attr-defined]
    return body


async def a_aiohttp(url: str, note: Note) -> None:
    aiohttp = _module("aiohttp")
    async with aiohttp.ClientSession() as client, client.get(f"{url}/drip") as response:
        async for _ in response.content.iter_any():
            note()


async def a_group(url: str, note: Note) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(asyncio.sleep(WAIT_S))
        note()


async def a_anyio(url: str, note: Note) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(anyio.sleep, WAIT_S)
        note()


async def a_gather(url: str, note: Note) -> None:
    note()
    await asyncio.gather(*(asyncio.sleep(WAIT_S) for _ in range(5)), return_exceptions=True)


async def a_timeout(url: str, note: Note) -> None:
    note()
    async with asyncio.timeout(WAIT_S):
        await asyncio.sleep(WAIT_S)


async def a_shield(url: str, note: Note) -> None:
    inner = asyncio.ensure_future(asyncio.sleep(WAIT_S))
    note()
    try:
        await asyncio.shield(inner)
    finally:
        inner.cancel()


async def a_nested(url: str, note: Note) -> None:
    await guard.protect(a_sleep)(url, note)


async def a_generator(url: str, note: Note) -> None:
    @guard.protect
    async def numbers() -> Any:
        yield 1
        await a_sleep(url, note)

    async for _ in numbers():
        pass


def s_loop(url: str, note: Note) -> None:
    note()
    while True:
        pass


def s_http(module: str, path: str) -> Callable[[str, Note], None]:
    def body(url: str, note: Note) -> None:
        library = _module(module)
        if path == "hang":
            note()
        if module == "requests":
            with library.get(f"{url}/{path}", stream=True, timeout=None) as response:
                for _ in response.iter_content(9):
                    note()
            return
        with (
            library.Client(timeout=None, trust_env=False) as client,
            client.stream("GET", f"{url}/{path}") as response,
        ):
            for _ in response.iter_bytes():
                note()

    body.path = path  # type: ignore[attr-defined]
    return body


def s_naps(url: str, note: Note) -> None:
    note()
    while True:
        time.sleep(0.02)


def s_generator(url: str, note: Note) -> None:
    @guard.protect
    def numbers() -> Any:
        yield 1
        s_loop(url, note)

    for _ in numbers():
        pass


def s_carried(url: str, note: Note) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(guard.context.carry(s_loop), url, note).exception()


def s_run(url: str, note: Note) -> None:
    asyncio.run(a_sleep(url, note))  # type: ignore[arg-type]


ASYNC: Final[dict[str, Callable[[str, Note], Awaitable[None]]]] = {
    "asyncio.sleep": a_sleep,
    "httpx, before headers": a_http("httpx", "hang"),
    "httpx, between chunks": a_http("httpx", "drip"),
    "httpx2, before headers": a_http("httpx2", "hang"),
    "httpx2, between chunks": a_http("httpx2", "drip"),
    "aiohttp, between chunks": a_aiohttp,
    "TaskGroup": a_group,
    "anyio task group": a_anyio,
    "gather(return_exceptions)": a_gather,
    "asyncio.timeout": a_timeout,
    "shield": a_shield,
    "nested protected call": a_nested,
    "async generator": a_generator,
}
SYNC: Final[dict[str, Callable[[str, Note], None]]] = {
    "Python loop": s_loop,
    "Python loop, generator": s_generator,
    "Python loop, carried thread": s_carried,
    "asyncio.run inside": s_run,
    "httpx, before headers": s_http("httpx", "hang"),
    "httpx, between chunks": s_http("httpx", "drip"),
    "httpx, flood": s_http("httpx", "flood"),
    "httpx2, before headers": s_http("httpx2", "hang"),
    "httpx2, between chunks": s_http("httpx2", "drip"),
    "requests, before headers": s_http("requests", "hang"),
    "requests, between chunks": s_http("requests", "drip"),
    "C call: time.sleep(0.02)": s_naps,
}


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
        # A pipe that is read in this thread takes the interpreter's lock only when it is done.
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
            _raise_in(idents[0], KeyboardInterrupt)
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


def report(group: str, kind: str, samples: list[float]) -> None:
    """Print one line."""
    ordered = sorted(samples)
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    median = statistics.median(ordered)
    print(
        f"{group:6} {kind:28} {len(samples):5} kills"
        f"   median {median:8.2f} ms   p99 {p99:8.2f} ms   max {ordered[-1]:8.2f} ms",
        flush=True,
    )


def main() -> None:
    """Measure every kind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--only", default="", help="part of a kind's name")
    options = parser.parse_args()
    for kind, bare in BARE.items():
        if options.only in kind:
            report("bare", kind, bare(options.kills))
    with (
        _process(_serve_gateway, end=None) as gateway_pipe,
        _process(_serve_http, end="end") as server,
    ):
        url, api_key, admin_key = gateway_pipe.recv()
        server_url = server.recv()
        with _process(_operate, url, admin_key, end=None) as operator:
            runtime = guard.GuardRuntime(api_key=api_key, api_url=url).open()
            until(lambda: runtime.status().control_channel == "websocket", WAIT_S)
            bench = Bench(server_url, server, operator, options.kills)
            for group, bodies in (("async", ASYNC), ("sync", SYNC)):
                for kind, body in bodies.items():
                    if options.only not in kind:
                        continue
                    try:
                        report(group, kind, bench.measure(body, in_task=group == "async"))
                    except Missing as exc:
                        print(f"{group:6} {kind:28} skipped: {exc}")
            runtime.shutdown(flush=False)


if __name__ == "__main__":
    main()
