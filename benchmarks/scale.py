"""Replicas on PostgreSQL beside SQLite, a bare ``UPDATE`` and a bare Lua script.

Run: ``python -m benchmarks.scale [--replicas 1 2 4] [--seconds 3] [--rounds 3]``
``[--share 0] [--postgres URI] [--redis URI] [--results FOLDER]``

Rows, each with 32 questions or four connections in flight for each replica, in turns round after
round:

- *asked, one organisation*: every call is decided by the gateway, on the same two budgets.
- *asked, spread*: the same, with an organisation of its own for each connection.
- *leased*: one question grants a lease for a hundred calls, whose events are then reported.
- *events*: batches of two hundred.
- the limits: a bare ``UPDATE`` of one row, and of one row for each client, with 32 clients; a Lua
  script that adds to a counter, with 32 clients.

All processes share the machine: on few cores replicas take them from each other and from
PostgreSQL. So the CPU time that a decision takes is printed as well, for the replicas and for
PostgreSQL's processes together. ``--share 0.2`` gives each replica a fifth of a core and no more
(control groups of Linux, as root), as if each had a machine of its own, a fifth as fast; the
database and the clients have the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import platform
import secrets
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import msgspec
import psutil
import websockets

from benchmarks._cluster import CONNECTIONS, Cluster, cluster, fresh_database
from benchmarks.gateway import _BODY, _Asker, _handshake
from benchmarks.sizing import BATCH, _event
from guard.core.ids import IdFactory

IN_FLIGHT = 32
LEASED = 100
POSTGRES = "postgresql://root@127.0.0.1:5432/test"
REDIS = "redis://127.0.0.1:6379"
_LUA = "return redis.call('INCRBY', KEYS[1], ARGV[1])"
_JSON = {"X-Guard-Protocol": "3", "Content-Type": "application/json"}
_IDS = IdFactory()
_GUARD = websockets.Subprotocol("guard.v3")


@attrs.frozen
class Figures:
    """What one row of one round amounts to."""

    per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float = 0.0
    database_us: float = 0.0


def _postgres_cpu_s() -> float:
    total = 0.0
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "postgres":
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:2])
    return total


# -- rows --------------------------------------------------------------------------------------


async def asked(servers: Cluster, seconds: float, spread: bool) -> list[float]:
    """Ask over control sockets; return how long each decision took."""
    loop, until = asyncio.get_running_loop(), time.perf_counter() + seconds
    body, callers = json.dumps(_BODY).encode(), []
    for number, port in enumerate(servers.ports):
        for connection in range(CONNECTIONS):
            key = servers.keys[number * CONNECTIONS + connection if spread else 0]
            handshake = _handshake(port, key)
            _, caller = await loop.create_connection(
                lambda shake=handshake: _Asker(shake, body, IN_FLIGHT // CONNECTIONS, until),
                "127.0.0.1", port, family=socket.AF_INET,
            )  # fmt: skip
            callers.append(caller)
    async with asyncio.timeout(seconds + 30):
        await asyncio.gather(*(caller.done for caller in callers))
    if sum(caller.failures for caller in callers):
        raise RuntimeError("a request failed")
    return [took for caller in callers for took in caller.took]


async def leased(servers: Cluster, seconds: float) -> list[float]:
    """Spend leases of a hundred calls; return how long each call took, at a hundredth of a turn."""

    async def holder(number: int, http: httpx.AsyncClient, until: float) -> list[float]:
        lease_id, took = None, []
        address = f"ws://{http.base_url.netloc.decode()}/api/v1/control/ws?after=0"
        headers = {name: http.headers[name] for name in ("X-API-Key", "X-Guard-Protocol")}
        async with websockets.connect(
            address, additional_headers=headers, subprotocols=[_GUARD], compression=None
        ) as control:
            while not took or time.perf_counter() < until:
                began = time.perf_counter()
                lease = {"lease_id": lease_id, "demand_nanousd": 10**9, "demand_calls": LEASED}
                call = {**_BODY, "call_id": _key(), "lease": lease, "workflow_id": f"w{number}"}
                ask = {"id": _key(), "op": "gate", "body": call}
                await control.send(json.dumps({"type": "asks", "asks": [ask]}))
                while (told := json.loads(await control.recv()))["type"] != "answers":
                    pass
                lease_id = told["answers"][0]["body"]["lease"]["lease_id"]
                await _report(http, LEASED, workflow_id=f"w{number}", reservation_id=lease_id)
                took += [(time.perf_counter() - began) / LEASED] * LEASED
        return took

    return await _everywhere(servers, seconds, holder)


async def events(servers: Cluster, seconds: float) -> list[float]:
    """Report events in batches; return how long each took, as its part of its batch."""

    async def reporter(number: int, http: httpx.AsyncClient, until: float) -> list[float]:
        took: list[float] = []
        while not took or time.perf_counter() < until:
            began = time.perf_counter()
            await _report(http, BATCH)
            took += [(time.perf_counter() - began) / BATCH] * BATCH
        return took

    return await _everywhere(servers, seconds, reporter)


async def _report(http: httpx.AsyncClient, count: int, **more: Any) -> None:
    batch = {"batch_id": _key(), "sent_at_ms": 1,
             "events": [{**_event(number), **more} for number in range(count)]}  # fmt: skip
    reply = await http.post("/api/v1/events", content=msgspec.json.encode(batch))
    reply.raise_for_status()
    if reply.json()["accepted"] != count:
        raise RuntimeError(reply.text)


async def _everywhere(
    servers: Cluster,
    seconds: float,
    client: Callable[[int, httpx.AsyncClient, float], Awaitable[list[float]]],
) -> list[float]:
    until = time.perf_counter() + seconds
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for number, key in enumerate(servers.keys):
            http = httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{servers.ports[number % len(servers.ports)]}",
                headers={**_JSON, "X-API-Key": key}, timeout=30,
            )  # fmt: skip
            clients.append(client(number, await stack.enter_async_context(http), until))
        return _joined(await asyncio.gather(*clients))


def _joined(parts: Iterable[list[float]]) -> list[float]:
    return [took for part in parts for took in part]


def _key() -> str:
    return _IDS.uuid7(time.time_ns() // 1_000_000)


# -- limits ------------------------------------------------------------------------------------


async def bare_update(dsn: str, seconds: float, rows: int) -> list[float]:
    """Update rows, one for each transaction; return how long each took."""
    import psycopg

    async with contextlib.AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(
                await psycopg.AsyncConnection.connect(dsn, autocommit=True)
            )
            for _ in range(IN_FLIGHT)
        ]
        await connections[0].execute("DROP TABLE IF EXISTS bare")
        await connections[0].execute("CREATE TABLE bare (id int PRIMARY KEY, spent bigint)")
        fill = f"INSERT INTO bare SELECT n, 0 FROM generate_series(1, {rows}) n"
        await connections[0].execute(fill)
        until = time.perf_counter() + seconds

        async def update(number: int) -> list[float]:
            took = []
            while (began := time.perf_counter()) < until or not took:
                await connections[number].execute(
                    "UPDATE bare SET spent = spent + 1 WHERE id = %s", (number % rows + 1,)
                )
                took.append(time.perf_counter() - began)
            return took

        return _joined(await asyncio.gather(*map(update, range(IN_FLIGHT))))


async def bare_lua(url: str, seconds: float) -> list[float]:
    """Run a script that adds to one counter; return how long each took."""
    from redis.asyncio import Redis

    until, name = time.perf_counter() + seconds, f"guard_bench_{secrets.token_hex(4)}"
    async with Redis.from_url(url, max_connections=IN_FLIGHT) as redis:
        script = redis.register_script(_LUA)

        async def call() -> list[float]:
            took = []
            while (began := time.perf_counter()) < until or not took:
                await script(keys=[name], args=[1])
                took.append(time.perf_counter() - began)
            return took

        found = _joined(await asyncio.gather(*(call() for _ in range(IN_FLIGHT))))
        await redis.delete(name)
        return found


# -- all ---------------------------------------------------------------------------------------


def figures(measure: Callable[[], Awaitable[list[float]]], servers: Cluster | None) -> Figures:
    """Run one row and work out its figures."""
    own = 0.0 if servers is None else servers.cpu_s()
    database, began = _postgres_cpu_s(), time.perf_counter()

    async def run() -> list[float]:
        return await measure()

    took = sorted(asyncio.run(run()))
    elapsed, count = time.perf_counter() - began, len(took)
    return Figures(
        count / elapsed,
        took[count // 2] * 1e6,
        took[count * 99 // 100] * 1e6,
        0.0 if servers is None else (servers.cpu_s() - own) / count * 1e6,
        (_postgres_cpu_s() - database) / count * 1e6,
    )


def rows_of(servers: Cluster, seconds: float) -> dict[str, Callable[[], Awaitable[list[float]]]]:
    """Return what is measured of a cluster."""
    return {
        "asked, one organisation": lambda: asked(servers, seconds, spread=False),
        "asked, spread": lambda: asked(servers, seconds, spread=True),
        "leased": lambda: leased(servers, seconds),
        "events": lambda: events(servers, seconds),
    }


def measure(options: argparse.Namespace) -> dict[str, list[Figures]]:
    """Measure every row, round after round."""
    found: dict[str, list[Figures]] = {}
    with fresh_database(options.postgres) as dsn:
        limits = {
            "bare UPDATE, one row": lambda: bare_update(dsn, options.seconds, 1),
            "bare UPDATE, 32 rows": lambda: bare_update(dsn, options.seconds, IN_FLIGHT),
            "bare Lua": lambda: bare_lua(options.redis, options.seconds),
        }
        for _ in range(options.rounds):
            for name, row in limits.items():
                found.setdefault(name, []).append(figures(row, None))
            for name, replicas in [("SQLite", 1), *_names(options.replicas)]:
                share = options.share
                with (
                    _database(name, options) as database,
                    cluster(database, replicas, share) as servers,
                ):
                    for what, row in rows_of(servers, options.seconds).items():
                        found.setdefault(f"{name}: {what}", []).append(figures(row, servers))
    return found


def _names(replicas: list[int]) -> list[tuple[str, int]]:
    return [(f"PostgreSQL, {count} replica{'s'[: count > 1]}", count) for count in replicas]


@contextlib.contextmanager
def _database(name: str, options: argparse.Namespace) -> Iterator[str]:
    if name != "SQLite":
        with fresh_database(options.postgres) as dsn:
            yield dsn
        return
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "g.sqlite3")


def main() -> None:
    """Measure, print, and write a file of results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.0, help="of a core, for each replica")
    parser.add_argument("--postgres", default=POSTGRES, metavar="URI")
    parser.add_argument("--redis", default=REDIS, metavar="URI")
    parser.add_argument("--results", type=Path, help="folder for a JSON file of the results")
    options = parser.parse_args()
    found = measure(options)
    print(f"{'':44}{'per s':>9}{'p50 us':>9}{'p99 us':>10}{'replica us':>12}{'database us':>12}")
    report = {}
    for name, rounds in found.items():
        middle = {
            field.name: statistics.median(getattr(each, field.name) for each in rounds)
            for field in attrs.fields(Figures)
        }
        report[name] = {key: round(value, 1) for key, value in middle.items()}
        per_s, p50, p99, cpu, database = middle.values()
        print(f"{name:44}{per_s:9,.0f}{p50:9,.0f}{p99:10,.0f}{cpu:12.1f}{database:12.1f}")
    if options.results is not None:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        python = platform.python_version()
        machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {python}"
        target = options.results / f"scale{'_shares' if options.share else ''}-{today}.json"
        told = {"date": today, "machine": machine, "share": options.share, "rows": report}
        target.write_text(json.dumps(told, indent=1))
        print(f"written to {target}")


if __name__ == "__main__":
    main()
