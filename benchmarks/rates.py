"""Calls counted under a rate cap a second: in memory, in Redis, and bare Lua beside them.

Run: ``python -m benchmarks.rates [--redis redis://127.0.0.1:6379/0] [--seconds 1] [--rounds 3]``

One process asks, with 1, 32 and 256 calls at once, case after case, round after round. Bare Lua is
one script that increments a key, asked for by redis-py one call at a time for each connection.
Compare the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from redis.asyncio import BlockingConnectionPool, Redis

from guard.gateway.domain.policy import CapUse
from guard.gateway.storage.memory_rates import MemoryRates
from guard.gateway.storage.redis.connection import RedisConnection
from guard.gateway.storage.redis.rates import RedisRates

Ask = Callable[[], Awaitable[object]]
_AT_ONCE = (1, 32, 256)
_USES = [CapUse("cap", 1_000_000_000, 1000)]
_BARE = "return redis.call('INCR', KEYS[1])"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextlib.asynccontextmanager
async def cases(url: str) -> AsyncIterator[dict[str, Ask]]:
    """Open every case; each counts in an organisation of its own."""
    memory = MemoryRates(_now_ms)
    connection = RedisConnection(url)
    await connection.open()
    if not connection.is_up:
        raise SystemExit(f"no Redis answers at {url}")
    shared = RedisRates(connection)
    pool = BlockingConnectionPool.from_url(url, max_connections=32)
    bare = Redis(connection_pool=pool)
    script = bare.register_script(_BARE)
    own, key = secrets.token_hex(8), f"guard:bench:{secrets.token_hex(8)}"
    try:
        yield {
            "in memory": lambda: memory.take(own, _USES),
            "in Redis": lambda: shared.take(own, _USES),
            "bare Lua": lambda: script(keys=[key]),
        }
        await bare.delete(key)
    finally:
        await bare.aclose()
        await pool.disconnect()
        await connection.close()


async def _rate(ask: Ask, at_once: int, seconds: float) -> float:
    """Return the calls a second."""
    ends = time.perf_counter() + seconds
    done = 0

    async def one() -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await ask()
            done += 1
            if not done % 64:
                await asyncio.sleep(0)  # counting in memory never waits

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(at_once)))
    return done / (time.perf_counter() - started)


async def _run(url: str, seconds: float, rounds: int) -> None:
    async with cases(url) as asks:
        print(f"{'':>10}" + "".join(f"{each:>12} at once" for each in _AT_ONCE))
        found = {name: {each: list[float]() for each in _AT_ONCE} for name in asks}
        for _ in range(rounds):
            for name, ask in asks.items():
                for at_once in _AT_ONCE:
                    found[name][at_once].append(await _rate(ask, at_once, seconds))
        medians = {name: [statistics.median(found[name][each]) for each in _AT_ONCE]
                   for name in asks}  # fmt: skip
        for name, values in medians.items():
            print(f"{name:>10}" + "".join(f"{each:>18,.0f}/s" for each in values))
        ratios = zip(medians["in Redis"], medians["bare Lua"], strict=True)
        print(f"{'ratio':>10}" + "".join(f"{ours / bare:>19.2f}x" for ours, bare in ratios))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    asyncio.run(_run(options.redis, options.seconds, options.rounds))


if __name__ == "__main__":
    main()
