"""Calls under one rate cap, beside calls under none: decisions a second and their p99.

Run: ``python -m benchmarks.rates [--database postgresql://...] [--seconds 2] [--rounds 3]``

A gateway of its own answers 1, 32 and 256 callers that ask one call after the other, over eight
sockets; the cap is one of the whole organisation that is never reached. Compare the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect

from guard.core import wire
from guard.gateway.embedded import Gateway, run_gateway

_AT_ONCE: Final = (1, 32, 256)
_SOCKETS: Final = 8
_CAP: Final = {"calls": 100_000, "per_ms": 1000}


class _Socket:
    """A socket of the control channel that many callers share."""

    def __init__(self, channel: ClientConnection) -> None:
        self._channel = channel
        self._waiting: dict[str, asyncio.Future[int]] = {}
        self._reader = asyncio.create_task(self._read())
        self._number = 0

    async def _read(self) -> None:
        async for text in self._channel:
            message = json.loads(text)
            for answer in message.get("answers", ()):
                self._waiting.pop(answer["id"]).set_result(answer["status"])

    async def ask(self) -> None:
        self._number += 1
        name = str(self._number)
        body = {"call_id": name, "kind": "call", "function": "work"}
        found = self._waiting[name] = asyncio.get_running_loop().create_future()
        asks = [{"id": name, "op": "gate", "body": body}]
        await self._channel.send(json.dumps({"type": "asks", "asks": asks}))
        if await found != 200:
            raise SystemExit(f"the gateway has refused a call with {found.result()}")

    async def close(self) -> None:
        self._reader.cancel()
        await self._channel.close()


_LEAST = 2
"""How many decisions a percentile needs, however short the time."""


async def _measured(gateway: Gateway, at_once: int, seconds: float) -> tuple[float, float]:
    """Return the decisions a second, and the p99 in milliseconds."""
    headers = {"X-API-Key": gateway.api_key, "X-Guard-Protocol": "3"}
    url = gateway.base_url.replace("http", "ws", 1) + f"{wire.CONTROL_WS_PATH}?after=0"
    sockets = [
        _Socket(await connect(url, additional_headers=headers, proxy=None))
        for _ in range(min(at_once, _SOCKETS))
    ]
    took: list[float] = []
    ends = time.perf_counter() + seconds

    async def calls(number: int) -> None:
        socket = sockets[number % len(sockets)]
        while (began := time.perf_counter()) < ends or len(took) < _LEAST:
            await socket.ask()
            took.append(time.perf_counter() - began)

    started = time.perf_counter()
    await asyncio.gather(*map(calls, range(at_once)))
    rate = len(took) / (time.perf_counter() - started)
    for socket in sockets:
        await socket.close()
    return rate, 1000 * statistics.quantiles(took, n=100)[-1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", help="a schema of PostgreSQL; else a SQLite file")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        run_gateway(options.database or str(Path(folder) / "g.sqlite3")) as gateway,
    ):
        found: dict[tuple[str, int], list[Any]] = {}
        for _ in range(options.rounds):
            for name, caps in (("no cap", []), ("one cap", [_CAP])):
                gateway.admin.set_policy(rate_caps=caps)
                for at_once in _AT_ONCE:
                    one = asyncio.run(_measured(gateway, at_once, options.seconds))
                    found.setdefault((name, at_once), []).append(one)
    print(f"{'at once':>8}{'':>10}{'a second':>10}{'p99 ms':>9}")
    for (name, at_once), values in sorted(found.items(), key=lambda item: item[0][1]):
        rate, p99 = (statistics.median(each) for each in zip(*values, strict=True))
        print(f"{at_once:>8}{name:>10}{rate:>10,.0f}{p99:>9.1f}")


if __name__ == "__main__":
    main()
