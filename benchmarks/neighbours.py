"""What one organisation waits for while another asks for all that a gateway does, at its largest.

Run: ``python -m benchmarks.neighbours [--seconds 4] [--engines sqlite postgres]``
``[--only TEXT] [--events 200000] [--connections 3] [--postgres URI] [--results FOLDER]``

A gateway in a process of its own serves two organisations. Three connections of the one, in another
process, repeat one operation without a pause: batches of a thousand events, bills of 4,000 rows,
exports, lists, pages, previews, a thousand rules at once. The other one asks for one call after
another, 5 ms apart, and its answers are timed. Before each operation it is timed alone for a
moment; compare the ratios. Printed are the median and p95 of the calls in milliseconds, beside
those alone, operations per second, and the largest size of SQLite's write-ahead log.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import json
import multiprocessing
import platform
import statistics
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from benchmarks._cluster import _serve, _wait_for, database_on
from benchmarks._many_events import fill
from benchmarks.operator_pages import p95
from benchmarks.scale import POSTGRES
from guard.gateway.admin import AdminClient
from guard.gateway.embedded import run_gateway
from tests.support.neighbour import PASSWORD, Neighbour, told

PAUSE_S: Final = 0.005


def _repeat(pipe: Connection, number: int, user: str, *args: Any) -> None:
    """Repeat the operations that the pipe names, on so many connections."""
    clients = [Neighbour(*args, each) for each in range(number)]
    for client in clients:
        client.sign_in(args[0], user)
    while (name := pipe.recv()) is not None:
        ended, done, problems = threading.Event(), [0] * number, list[str]()

        def again_and_again(each: int, name: str = name) -> None:
            operation = clients[each].operations()[name]
            while not ended.is_set():  # noqa: B023
                answer = operation()
                if answer.status_code >= 400:
                    problems.append(told(name, answer))  # noqa: B023
                done[each] += 1  # noqa: B023

        threads = [threading.Thread(target=again_and_again, args=(n,)) for n in range(number)]
        for thread in threads:
            thread.start()
        pipe.send(None)
        pipe.recv()
        ended.set()
        counted = sum(done)
        for thread in threads:
            thread.join()
        pipe.send((counted, problems[:1]))


class Victim:
    """Asks for one call after another, and times each answer."""

    def __init__(self, port: int, api_key: str) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"X-API-Key": api_key, "X-Guard-Protocol": "3",
                         "Content-Type": "application/json"}  # fmt: skip
        self._number = 0

    def measure(self, seconds: float) -> list[float]:
        """Return the milliseconds of each answer."""
        taken = []
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._number += 1
            body = json.dumps({"call_id": f"v{self._number}", "kind": "call", "function": "f"})
            began = time.perf_counter()
            self._http.request("POST", "/gate", body, self._headers)
            answer = self._http.getresponse()
            text = answer.read()
            taken.append((time.perf_counter() - began) * 1000)
            if answer.status != 200:
                raise SystemExit(f"the victim: {answer.status} {text[:300]!r}")
            time.sleep(PAUSE_S)
        return taken


@contextlib.contextmanager
def _process(target: Any, *args: Any) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *args), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.terminate()
        process.join(30)


def measure(database: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Fill a database, serve it, and return the figures of each operation."""
    names = ("neighbour", "victim")
    with run_gateway(database) as gateway:
        root = gateway.admin
        owned = [root.create_organisation(name)["organisation_id"] for name in names]
        keys = [root.create_key(organisation=each) for each in owned]
        with contextlib.closing(
            AdminClient(gateway.base_url, gateway.admin_key, organisation=owned[0])
        ) as own:
            own.set_budget(10**11, window="month")
            own.set_budget(10**11, scope_kind="workflow", scope_id="*", window="day")
            own.put_operator("neighbour", password=PASSWORD, role="owner")
        admin_key = gateway.admin_key
    now_ms = time.time_ns() // 1_000_000
    fill(database, owned[0], options.events, now_ms, 10)
    log = Path(f"{database}-wal")
    figures: dict[str, dict[str, float]] = {}
    with _process(_serve, database) as served:
        port, _ = served.recv()
        _wait_for(port)
        url = f"http://127.0.0.1:{port}"
        victim = Victim(port, keys[1])
        args = (url, admin_key, owned[0], keys[0], now_ms)
        victim.measure(1)
        with _process(_repeat, options.connections, "neighbour", *args) as pipe:
            for name in Neighbour(*args, 0).operations():
                if options.only not in name:
                    continue
                alone = victim.measure(1)
                pipe.send(name)
                pipe.recv()
                time.sleep(0.3)
                began = time.perf_counter()
                beside = victim.measure(options.seconds)
                size = log.stat().st_size if log.exists() else 0
                pipe.send(None)
                done, problems = pipe.recv()
                seconds = time.perf_counter() - began
                for problem in problems:
                    print(problem)
                figures[name] = row = {
                    "p50_ms": statistics.median(beside), "p95_ms": p95(beside),
                    "max_ms": max(beside), "alone_p50_ms": statistics.median(alone),
                    "alone_p95_ms": p95(alone), "per_s": done / seconds, "log_mb": size / 2**20,
                }  # fmt: skip
                print(f"{name:40}" + "".join(f"{value:9.1f}" for value in row.values()), flush=True)
    return figures


def main() -> None:
    """Measure both engines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--events", type=int, default=200_000, help="that the neighbour has had")
    parser.add_argument("--connections", type=int, default=3)
    parser.add_argument("--only", default="", help="operations whose name contains this")
    parser.add_argument("--engines", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--postgres", default=POSTGRES, help="a server to make a database on")
    parser.add_argument("--results", type=Path, help="a folder to write a JSON file into")
    options = parser.parse_args()
    found = {}
    for engine in options.engines:
        with database_on(engine, options.postgres) as database:
            heads = ("p50 ms", "p95 ms", "max ms", "alone", "p95", "a second", "log MB")
            print(f"\n{engine:40}" + "".join(f"{head:>9}" for head in heads))
            found[engine] = measure(database, options)
    if options.results is not None:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        content = {"date": today, "machine": platform.machine(),
                   "python": platform.python_version(), "events": options.events,
                   "connections": options.connections, "operations": found}  # fmt: skip
        options.results.mkdir(parents=True, exist_ok=True)
        path = options.results / f"neighbours-{today}.json"
        path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
