"""What a protected call costs: ``@guard.protect`` beside the bare HTTP request that it makes.

Run: ``python -m benchmarks.gate [--rounds 9] [--calls 300] [--peers PYTHON] [--results FOLDER]``

The limit is one POST of the same size by a bare ``httpx.AsyncClient`` through the same hop: on a
loop in a background thread. A protected call does more: its end is reported with the next one.
All talk to one server that answers at once, so that only the SDK is measured; the gateway's part is
in ``benchmarks/gateway.py``. ``PYTHON`` is an interpreter that has ``nullrun``.
Every case is a process of its own; they take turns, round after round, so that the machine's other
load affects every one alike. Compare the ratios.
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

from benchmarks.events import Sink

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


def _nullrun(url: str, key: str) -> tuple[Call, AsyncCall]:
    import nullrun

    nullrun.init(api_key=key, api_url=url)
    protect: Any = nullrun.protect

    def nothing() -> None: ...

    async def nothing_async() -> None: ...

    work: Call = protect(nothing)
    work_async: AsyncCall = protect(nothing_async)

    return work, work_async


CASES: dict[str, Callable[[str, str], tuple[Call, AsyncCall]]] = {
    "bare httpx": _httpx,
    "guard": _guard,
    "nullrun": _nullrun,
}


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
    work, work_async = CASES[name](url, KEY)
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
        found = json.loads(self._line())
        self.sync.append(statistics.median(found["sync"]))
        self.asynchronous.append(statistics.median(found["async"]))
        self.p99.append(sorted(found["sync"])[len(found["sync"]) * 99 // 100])
        self.per_s.append(found["per_s"])

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def _serve() -> None:
    server: Any = Sink()
    print(f"http://127.0.0.1:{server.port}", flush=True)
    sys.stdin.read()


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--peers", help="an interpreter that has the peer")
    parser.add_argument("--results", type=Path, help="folder for a JSON file of the results")
    for hidden in ("--work", "--url"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        _serve()
        return
    if given.work:
        _work(given.work, given.url, given.calls)
        return
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gate", "--serve"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
    )  # fmt: skip
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    cases = [Case(sys.executable, name, url, given.calls) for name in ("bare httpx", "guard")]
    if given.peers:
        cases.append(Case(given.peers, "nullrun", url, given.calls))
    for case in [case for case in cases if not case.ready]:
        print(f"{case.name} does not start here; left out", file=sys.stderr)
        cases.remove(case)
    try:
        for _ in range(given.rounds):
            for case in cases:
                case.round()
    finally:
        for case in cases:
            case.stop()
        server.kill()
        server.communicate()
    _report(cases, given.results)


def _report(cases: list[Case], folder: Path | None) -> None:
    bare = cases[0]

    def ratio(own: list[float], other: list[float]) -> float:
        # Ratios of neighbours in time, so that the machine's drift cancels out.
        return statistics.median(a / b for a, b in zip(own, other, strict=True))

    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs; microseconds, medians")
    print(f"{'':12}{'sync':>8}{'p99':>8}{'ratio':>8}{'async':>8}{'ratio':>8}"
          f"{f'{CONCURRENCY} at once':>14}{'ratio':>8}")  # fmt: skip
    found = {}
    for case in cases:
        median = statistics.median
        row = {
            "sync_us": median(case.sync), "sync_p99_us": median(case.p99),
            "sync_ratio": ratio(case.sync, bare.sync),
            "async_us": median(case.asynchronous),
            "async_ratio": ratio(case.asynchronous, bare.asynchronous),
            "per_s": median(case.per_s), "per_s_ratio": ratio(case.per_s, bare.per_s),
        }  # fmt: skip
        found[case.name] = row
        print(f"{case.name:12}{row['sync_us']:8.0f}{row['sync_p99_us']:8.0f}"
              f"{row['sync_ratio']:8.2f}{row['async_us']:8.0f}{row['async_ratio']:8.2f}"
              f"{row['per_s']:12.0f}/s{row['per_s_ratio']:8.2f}")  # fmt: skip
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        day = time.strftime("%F")
        machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.python_version()}"
        text = json.dumps({"date": day, "machine": machine, "results": found}, indent=1)
        (folder / f"gate-{day}.json").write_text(text)


if __name__ == "__main__":
    main()
