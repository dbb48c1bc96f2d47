"""How long a kill takes while others attack the gateway: below 100 ms at the 99th percentile?

Attackers, in a process of their own and at an address of their own, connect again as soon as the
gateway has closed. The clock is that of :mod:`benchmarks.kill`: from the operator's request to the
exception inside the body.

    python -m benchmarks.kill_beside_attackers [--kills 100] [--attackers 4] [--only ATTACK]
        [--source 127.0.0.2] [--results FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import guard
from benchmarks._kill_bodies import ASYNC, WAIT_S
from benchmarks.kill import Bench, Table, _operate, _process, _serve_gateway, _serve_http
from tests.support.attacker import connect, pour, read_to_end
from tests.support.waiting import until

TARGET_MS: Final = 100.0
_POURED_MAX: Final = 64 << 20
_CHUNKED: Final = (
    b"POST /gate HTTP/1.1\r\nHost: x\r\nX-Guard-Protocol: 3\r\nX-API-Key: %s\r\n"
    b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)
ATTACKS: Final = {
    "endless trailer": (_CHUNKED + b"2\r\n{}\r\n0\r\nX: ", b"a" * 1024),
    "many trailers": (_CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: b\r\n"),
    "chunks of one byte": (_CHUNKED, b"1\r\n \r\n"),
    "chunk extension": (_CHUNKED + b"1;a=", b"a" * 1024),
    "empty lines": (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),
    "many headers": (b"GET /healthz HTTP/1.1\r\n", b"a: b\r\n"),
    "tiny requests": (b"", b"GET /healthz HTTP/1.1\r\n\r\n"),
}


def _attack(pipe: Connection, url: str, key: str, attack: str, number: int, source: str) -> None:
    first, endless = ATTACKS[attack]
    if b"%s" in first:
        first = first % key.encode()
    ended = threading.Event()

    def again_and_again() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), connect(url, source) as sock:
                sock.settimeout(1.0)
                pour(sock, first, endless, _POURED_MAX)
                read_to_end(sock)

    for _ in range(number):
        threading.Thread(target=again_and_again, daemon=True).start()
    pipe.send(True)
    pipe.recv()
    ended.set()


@contextlib.contextmanager
def _beside(attack: str | None, *args: Any) -> Iterator[None]:
    if attack is None:
        yield
        return
    url, key, number, source = args
    with _process(_attack, url, key, attack, number, source, end=None) as pipe:
        pipe.recv()
        yield


def main() -> None:
    """Measure a kill alone, then beside each attack, without a key and with one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--attackers", type=int, default=4, help="connections at once")
    parser.add_argument("--source", default="127.0.0.2", help="the attackers' address")
    parser.add_argument("--only", default="", help="part of an attack's name")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep the table there")
    options = parser.parse_args()
    table = Table()
    body = next(iter(ASYNC.values()))
    with (
        _process(_serve_http, end="end") as server,
        _process(_serve_gateway, end=None) as gateway,
    ):
        slow_url = server.recv()
        url, api_key, admin_key = gateway.recv()
        with _process(_operate, url, admin_key, end=None) as operator:
            runtime = guard.GuardRuntime(api_key=api_key, api_url=url).open()
            until(lambda: runtime.status().control_channel == "websocket", WAIT_S)
            bench = Bench(slow_url, server, operator, options.kills)
            table.latencies("alone", "", bench.measure(body, in_task=True))
            for attack in ATTACKS:
                if options.only not in attack:
                    continue
                keys = {"stranger": "gdk_stranger"}
                if b"%s" in ATTACKS[attack][0]:
                    keys["tenant"] = api_key
                for who, key in keys.items():
                    with _beside(attack, url, key, options.attackers, options.source):
                        table.latencies(who, attack, bench.measure(body, in_task=True))
            runtime.shutdown(flush=False)
    late = [row for row in table.rows if row["p99_ms"] > TARGET_MS]
    print(f"{len(late)} of {len(table.rows)} above {TARGET_MS:.0f} ms at the 99th percentile")
    if options.results:
        table.keep(options.results, "kill-beside-attackers")


if __name__ == "__main__":
    main()
