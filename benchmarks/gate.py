"""What a protected call costs: covered by a lease, asked over the socket, asked over HTTP.

Run: ``python -m benchmarks.gate [--rounds 9] [--calls 300] [--peers PYTHON] [--results FOLDER]``

Beside them stand the limits: one exchange of the same size on a bare WebSocket and one POST by a
bare ``httpx.AsyncClient``, through the same hop to a loop in a background thread where the caller
blocks; and the peers: ``nullrun``'s decorator, which also asks a server, and LaunchDarkly's
``variation``, which decides in memory. ``PYTHON`` is an interpreter that has
``nullrun launchdarkly-server-sdk``.
All talk to a server that answers at once (``_null_gateway.py``), so that only the SDK is measured;
the gateway's part is in ``benchmarks/gateway.py``. Every case is a process of its own; they take
turns, round after round, so that the machine's other load affects every one alike. Compare the
ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks import _null_gateway

CONCURRENCY = 32
KEY = "k" * 24
_ROOT = Path(__file__).parents[1]

Call = Callable[[], object]
AsyncCall = Callable[[], Awaitable[object]]


# -- the cases, each in a process of its own ------------------------------------------------------


def _guard(url: str, key: str) -> tuple[Call, AsyncCall]:
    import guard

    guard.init(key, url)

    @guard.protect
    def work() -> None: ...

    @guard.protect
    async def work_async() -> None: ...

    workflow = guard.workflow("bench")
    workflow.__enter__()
    return work, work_async


def _httpx(url: str, key: str) -> tuple[Call, AsyncCall]:
    import httpx

    body = {"call_id": "", "kind": "call", "function": "bench.work", "workflow_id": "bench",
            "run_id": "0194a5c8-0000-7000-8000-000000000002"}  # fmt: skip
    headers = {"X-API-Key": key, "X-Guard-Protocol": "3"}
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    client = httpx.AsyncClient(
        base_url=url, headers=headers, trust_env=False, timeout=5,
        limits=httpx.Limits(max_connections=64),
    )  # fmt: skip
    numbers = itertools.count()

    async def post() -> None:
        number = next(numbers)
        content = json.dumps({**body, "call_id": f"{os.getpid()}-{number}"})
        reply = await client.post(
            "/gate", content=content,
            headers={"Content-Type": "application/json", "Idempotency-Key": f"k-{number}"},
        )  # fmt: skip
        assert reply.status_code == 200, reply.text
        reply.json()

    def work() -> None:
        asyncio.run_coroutine_threadsafe(post(), loop).result()

    async def work_async() -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(post(), loop))

    return work, work_async


def _websocket(url: str, key: str) -> tuple[Call, AsyncCall]:
    """One exchange of the same size on a bare WebSocket."""
    from websockets import Subprotocol
    from websockets.asyncio.client import ClientConnection, connect

    address = url.replace("http", "ws", 1) + "/api/v1/control/ws"
    body = {"call_id": "", "kind": "call", "function": "bench.work", "workflow_id": "bench",
            "run_id": "0194a5c8-0000-7000-8000-000000000002"}  # fmt: skip
    numbers = itertools.count()

    class Exchange:
        """Many exchanges in flight on one socket."""

        waiting: dict[str, asyncio.Future[Any]]
        socket: ClientConnection

        async def open(self) -> None:
            self.waiting = {}
            self.socket = await connect(
                address, compression=None, subprotocols=[Subprotocol("guard.v3")]
            )
            await self.socket.recv()
            self.reading = asyncio.create_task(self.read())

        async def read(self) -> None:
            async for frame in self.socket:
                for answer in json.loads(frame)["answers"]:
                    self.waiting.pop(answer["id"]).set_result(answer["body"])

        async def ask(self) -> None:
            number = f"k-{next(numbers)}"
            ask = {"id": number, "op": "gate", "body": {**body, "call_id": number}}
            answer = self.waiting[number] = asyncio.get_running_loop().create_future()
            await self.socket.send(json.dumps({"type": "asks", "asks": [ask]}))
            assert (await answer)["decision"] == "allow"

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    behind, own = Exchange(), Exchange()
    asyncio.run_coroutine_threadsafe(behind.open(), loop).result()

    def work() -> None:
        asyncio.run_coroutine_threadsafe(behind.ask(), loop).result()

    async def work_async() -> None:
        if not hasattr(own, "socket"):
            await own.open()
        await own.ask()

    return work, work_async


def _launchdarkly(url: str, key: str) -> tuple[Call, AsyncCall]:
    """A decision in memory: ``variation`` of a flag with a rule."""
    import ldclient
    from ldclient.integrations.test_data import TestData

    data = TestData.data_source()
    data.update(data.flag("calls").variation_for_user("bench", True).fallthrough_variation(False))
    client = ldclient.LDClient(
        ldclient.Config("sdk-key", update_processor_class=data, send_events=False)
    )
    context = ldclient.Context.builder("bench").build()

    def work() -> None:
        assert client.variation("calls", context, False)

    async def work_async() -> None:
        work()

    return work, work_async


def _nullrun(url: str, key: str) -> tuple[Call, AsyncCall]:
    import nullrun

    nullrun.init(api_key=key, api_url=url)
    protect: Any = nullrun.protect

    def nothing() -> None: ...

    async def nothing_async() -> None: ...

    work: Call = protect(nothing)
    work_async: AsyncCall = protect(nothing_async)

    return work, work_async


CASES: dict[str, tuple[str, Callable[[str, str], tuple[Call, AsyncCall]]]] = {
    "bare httpx": ("http", _httpx),
    "guard, HTTP": ("http", _guard),
    "bare WebSocket": ("socket", _websocket),
    "guard, socket": ("socket", _guard),
    "guard, leased": ("lease", _guard),
    "nullrun": ("http", _nullrun),
    "LaunchDarkly": ("http", _launchdarkly),
}
"""By name: what the server offers, and how the calls are made."""

PEERS = ("nullrun", "LaunchDarkly")
RATIOS = (
    ("guard, leased", "LaunchDarkly", 0.8, 1.0, None),
    ("guard, socket", "nullrun", 0.2, None, None),
    ("guard, socket", "bare WebSocket", 1.3, 1.5, None),
    ("guard, socket", "bare httpx", None, None, 10.0),
    ("guard, HTTP", "bare httpx", 1.15, None, None),
)
"""Compared pairs with their targets: at most for sync and async, at least for many at once."""


def _round(work: Call, work_async: AsyncCall, runner: asyncio.Runner, calls: int) -> dict[str, Any]:
    clock = time.perf_counter
    blocking = []
    for _ in range(calls):
        began = clock()
        work()
        blocking.append((clock() - began) * 1e6)

    async def one_by_one() -> list[float]:
        took = []
        for _ in range(calls):
            began = clock()
            await work_async()
            took.append((clock() - began) * 1e6)
        return took

    async def together() -> float:
        async def some() -> None:
            for _ in range(calls // CONCURRENCY + 1):
                await work_async()

        began = clock()
        await asyncio.gather(*(some() for _ in range(CONCURRENCY)))
        return CONCURRENCY * (calls // CONCURRENCY + 1) / (clock() - began)

    return {
        "sync": blocking,
        "async": runner.run(one_by_one()),
        "per_s": runner.run(together()),
    }


def _work(name: str, url: str, calls: int) -> None:
    """Measure a round for every line on standard input."""
    import logging

    logging.disable(logging.CRITICAL)
    out, sys.stdout = sys.stdout, sys.stderr  # peers print
    work, work_async = CASES[name][1](url, KEY)
    with asyncio.Runner() as runner:
        _round(work, work_async, runner, calls)
        print("ready", file=out, flush=True)
        for _ in sys.stdin:
            print(json.dumps(_round(work, work_async, runner, calls)), file=out, flush=True)
    os._exit(0)


# -- the comparison -------------------------------------------------------------------------------


class Case:
    """A worker process and what it measured."""

    def __init__(self, python: str, name: str, url: str, calls: int) -> None:
        self.name = name
        self.sync: list[float] = []
        self.asynchronous: list[float] = []
        self.per_s: list[float] = []
        self.p99: list[float] = []
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.gate", "--work", name, "--url", url,
             "--calls", str(calls)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            cwd=_ROOT,
        )  # fmt: skip
        self.ready = self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def round(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._line()
        if not line:
            raise SystemExit(f"{self.name} has ended in the middle of a round")
        found = json.loads(line)
        self.sync.append(statistics.median(found["sync"]))
        self.asynchronous.append(statistics.median(found["async"]))
        self.p99.append(sorted(found["sync"])[len(found["sync"]) * 99 // 100])
        self.per_s.append(found["per_s"])

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--peers", help="an interpreter that has the peers")
    parser.add_argument("--results", type=Path, help="folder for a JSON file of the results")
    for hidden in ("--work", "--url"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        _work(given.work, given.url, given.calls)
        return
    servers = {kind: _null_gateway.serve(kind) for kind in ("http", "socket", "lease")}
    cases: dict[str, Case] = {}
    try:
        for name, (kind, _) in CASES.items():
            python = given.peers if name in PEERS else sys.executable
            if python is None:
                continue
            case = Case(python, name, servers[kind][0], given.calls)
            if case.ready:
                cases[name] = case
            else:
                print(f"{name} does not start here; left out", file=sys.stderr)
                case.stop()
        for _ in range(given.rounds):
            for case in cases.values():
                case.round()
    finally:
        for case in cases.values():
            case.stop()
        for _, server in servers.values():
            server.kill()
            server.communicate()
    _report(cases, given.results)


def _ratio(own: list[float], other: list[float]) -> float:
    """Return the median of the ratios of neighbours in time: the machine's drift cancels out."""
    return statistics.median(a / b for a, b in zip(own, other, strict=True))


def _report(cases: dict[str, Case], folder: Path | None) -> None:
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs; microseconds, medians")
    print(f"{'':16}{'sync':>8}{'p99':>8}{'async':>8}{f'{CONCURRENCY} at once':>15}")
    found: dict[str, Any] = {}
    for case in cases.values():
        median = statistics.median
        row = {
            "sync_us": median(case.sync), "sync_p99_us": median(case.p99),
            "async_us": median(case.asynchronous), "per_s": median(case.per_s),
        }  # fmt: skip
        found[case.name] = row
        print(f"{case.name:16}{row['sync_us']:8.1f}{row['sync_p99_us']:8.1f}"
              f"{row['async_us']:8.1f}{row['per_s']:13.0f}/s")  # fmt: skip
    print("\nratios (and targets)")
    for own, other, sync, asynchronous, at_once in RATIOS:
        if own not in cases or other not in cases:
            continue
        a, b = cases[own], cases[other]
        ratios = {
            "sync": (_ratio(a.sync, b.sync), sync, "<="),
            "async": (_ratio(a.asynchronous, b.asynchronous), asynchronous, "<="),
            "per_s": (_ratio(a.per_s, b.per_s), at_once, ">="),
        }
        texts = [
            f"{kind} {value:.2f}" + (f" ({sign} {target:g})" if target is not None else "")
            for kind, (value, target, sign) in ratios.items()
        ]
        print(f"{own} / {other}: {', '.join(texts)}")
        found[f"{own} / {other}"] = {kind: value for kind, (value, *_) in ratios.items()}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        day = time.strftime("%F")
        machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.python_version()}"
        text = json.dumps({"date": day, "machine": machine, "results": found}, indent=1)
        (folder / f"gate-{day}.json").write_text(text)


if __name__ == "__main__":
    main()
