"""Cost of an event on the caller's thread, delivery and memory, beside other telemetry clients.

Run: ``python -m benchmarks.events [--events 100000] [--rounds 5] [--json FILE]``

Every client runs in a process of its own against a sink that reads requests and answers 202 at
once; each keeps its own defaults but for a buffer that holds the burst. Clients take turns, round
after round, so that the machine's other load affects every one alike. A client that is not
installed is printed as such; ``--python`` names an interpreter that has the peers.

Caller's cost: nanoseconds of the calling thread per event (its own processor time, so that other
programs on the machine count for little), with a drain running. p99: of single calls, by the wall
clock. Delivered: events per second from the first call to the last event's arrival. Memory: bytes
per event while the sink hangs, by tracemalloc. Compare the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import _event_clients as clients

_ROOT = Path(__file__).parents[1]


class Sink:
    """An HTTP server that accepts everything and counts events by a marker in the bodies."""

    def __init__(self) -> None:
        self.events = 0
        self.hang = False
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()

        def main() -> None:
            asyncio.set_event_loop(self._loop)
            server = self._loop.run_until_complete(
                asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24)
            )
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            self._loop.run_forever()

        threading.Thread(target=main, daemon=True).start()
        ready.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                low = head.lower()
                length = re.search(rb"content-length: *(\d+)", low)
                if length:
                    raw = await reader.readexactly(int(length[1]))
                elif b"transfer-encoding: chunked" in low:
                    raw = b""
                    while size := int(await reader.readline(), 16):
                        raw += await reader.readexactly(size)
                        await reader.readline()
                    await reader.readline()
                else:
                    raw = b""
                if b"gzip" in low.partition(b"content-encoding:")[2].partition(b"\r\n")[0]:
                    raw = gzip.decompress(raw)
                if self.hang and raw:
                    await asyncio.sleep(3600)
                if b"/api/v1/control" in head[:40]:
                    await asyncio.sleep(5)  # a long poll
                self.events += raw.count(clients.MARKER)
                writer.write(clients.reply(head, raw))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def _measure(name: str, what: str, events: int, port: int) -> dict[str, float]:
    """In a process of its own: run one client."""
    client = clients.CLIENTS[name](f"http://127.0.0.1:{port}", events)
    send = client.send
    if what == "memory":
        import tracemalloc

        for _ in range(200):
            send()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        count = min(events, 20_000)
        for _ in range(count):
            send()
        after, _ = tracemalloc.get_traced_memory()
        print(json.dumps({"bytes": (after - before) / count}), flush=True)
        os._exit(0)
    for _ in range(1000):
        send()
    print("warm", flush=True)
    sys.stdin.readline()
    began, cpu = time.perf_counter(), time.thread_time_ns()
    for _ in range(events):
        send()
    cost_ns = (time.thread_time_ns() - cpu) / events
    single: list[int] = []
    clock = time.perf_counter_ns
    for _ in range(2000):
        start = clock()
        send()
        single.append(clock() - start)
    client.flush()
    took_s = time.perf_counter() - began
    single.sort()
    print(json.dumps({"cost_ns": cost_ns, "p99_ns": single[1980], "took_s": took_s}), flush=True)
    sys.stdin.readline()  # some flush in the background only
    os._exit(0)


def _run(python: str, name: str, events: int) -> dict[str, float] | None:
    def start(what: str, sink: Sink) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [python, "-m", "benchmarks.events", "--client", name, "--what", what,
             "--events", str(events), "--port", str(sink.port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, cwd=_ROOT,
        )  # fmt: skip

    sink = Sink()
    process = start("cost", sink)
    assert process.stdin is not None
    assert process.stdout is not None
    if process.stdout.readline().strip() != "warm":
        process.kill()
        process.communicate()
        return None
    # Let the warm-up arrive first, so that later arrivals were sent from here on.
    deadline = time.monotonic() + 20
    while sink.events < 1000 and time.monotonic() < deadline:
        time.sleep(0.01)
    arrived = sink.events
    began = time.perf_counter()
    process.stdin.write("go\n")
    process.stdin.flush()
    wanted, quiet_s, last = events + 2000, 0.0, (arrived, began)
    while sink.events - arrived < wanted and quiet_s < 15:
        time.sleep(0.002)
        now = time.perf_counter()
        if sink.events != last[0]:
            last = (sink.events, now)
        quiet_s = now - last[1]
    delivered = sink.events - arrived
    line = process.stdout.readline()
    process.communicate("done\n", timeout=60)
    if not line:
        return None
    result: dict[str, float] = json.loads(line)
    result["delivered"] = delivered / wanted
    result["per_s"] = delivered / max(1e-9, last[1] - began)
    memory = Sink()
    memory.hang = True
    process = start("memory", memory)
    out, _ = process.communicate(timeout=300)
    result["bytes"] = json.loads(out.splitlines()[-1])["bytes"] if out else float("nan")
    return result


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable, help="interpreter with the peers")
    parser.add_argument("--only", nargs="*", default=list(clients.CLIENTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--client")
    parser.add_argument("--what", default="cost")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    if given.client:
        _measure(given.client, given.what, given.events, given.port)
        return
    results: dict[str, list[dict[str, float]]] = {name: [] for name in given.only}
    for _ in range(given.rounds):
        for name in list(results):
            # A client that takes a hundred times longer is measured on fewer events.
            scale = clients.SLOW.get(name, 1)
            result = _run(given.python, name, max(2000, given.events // scale))
            if result is not None:
                results[name].append(result)
    base = {
        key: statistics.median(row[key] for row in results["launchdarkly"])
        for key in ("cost_ns", "p99_ns", "per_s", "bytes")
    } if results.get("launchdarkly") else None  # fmt: skip
    print(f"{platform.python_version()} {platform.machine()}, {os.cpu_count()} cores; medians")
    print(f"{'client':14}{'ns/event':>10}{'p99 ns':>10}{'events/s':>11}{'arrived':>9}{'B/event':>9}"
          "   ratios to launchdarkly: cost, p99, events/s")  # fmt: skip
    summary: dict[str, Any] = {}
    for name, rows in results.items():
        if not rows:
            print(f"{name:14}not installed")
            continue
        median = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        summary[name] = median
        ratios = "" if base is None else "   " + ", ".join(
            f"{median[key] / max(1e-9, base[key]):.2f}x" for key in ("cost_ns", "p99_ns", "per_s")
        )  # fmt: skip
        print(f"{name:14}{median['cost_ns']:10.0f}{median['p99_ns']:10.0f}{median['per_s']:11.0f}"
              f"{median['delivered']:9.1%}{median['bytes']:9.0f}{ratios}")  # fmt: skip
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(
            json.dumps({"when": time.strftime("%F"), "results": summary}, indent=1)
        )


if __name__ == "__main__":
    main()
