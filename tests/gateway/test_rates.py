"""The counters of rate caps: one conformance suite, in memory and in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.gateway.domain.policy import CapUse
from guard.gateway.services.rate_shares import RateStore
from guard.gateway.storage.memory_rates import MemoryRates
from guard.gateway.storage.redis.connection import RedisConnection
from guard.gateway.storage.redis.rates import RedisRates
from tests.support import postgres
from tests.support.redis_server import redis_url  # noqa: F401  # a fixture
from tests.support.store import Clock

MINUTE = 60_000
TTL = 30_000
USES = [CapUse("b", 12, MINUTE)]
_numbers = itertools.count()


@contextlib.asynccontextmanager
async def in_redis(url: str, clock: Clock | None, **options: Any) -> AsyncIterator[RedisRates]:
    connection = RedisConnection(url, answer_wait_s=60)  # how it counts is tested, not how fast
    await connection.open()
    try:
        yield RedisRates(connection, clock_ms=clock, **options)
    finally:
        await connection.close()


@attrs.define
class Rates:
    """Counters of one organisation, and a clock to move."""

    store: RateStore
    clock: Clock
    own: str

    async def free(self) -> int:
        """Use up what is left, and return how much that was."""
        count = 0
        while await self.store.take(self.own, USES) is None:
            count += 1
        return count


Opened = Callable[[], AbstractAsyncContextManager[Rates]]


@pytest.fixture(params=["memory", "redis", "postgres"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """Open the counters inside of the test's loop."""

    @contextlib.asynccontextmanager
    async def opening() -> AsyncIterator[Rates]:
        clock, own = Clock(), f"o-{os.getpid()}-{next(_numbers)}"
        if request.param == "memory":
            yield Rates(MemoryRates(clock), clock, own)
            return
        if request.param == "postgres":
            storage = postgres.store(request.getfixturevalue("tmp_path"), clock_ms=clock)
            await storage.open(lambda _: None)
            yield Rates(storage.rates, clock, own)
            await storage.close()
            return
        async with in_redis(request.getfixturevalue("redis_url"), clock) as store:
            yield Rates(store, clock, own)

    return opening


@pytest.mark.asyncio
async def test_calls_count_for_one_window(opened: Opened) -> None:
    async with opened() as rates:
        for number in range(12):
            rates.clock.now += 1000
            assert await rates.store.take(rates.own, USES) is None, number
        assert await rates.store.take(rates.own, USES) == MINUTE - 11_000
        rates.clock.now += MINUTE - 11_000
        assert await rates.free() == 1


@pytest.mark.asyncio
async def test_a_call_counts_under_every_cap_or_under_none(opened: Opened) -> None:
    async with opened() as rates:
        wide, narrow = CapUse("wide", 3, MINUTE), CapUse("narrow", 1, 1000)
        assert await rates.store.take(rates.own, [wide, narrow]) is None
        assert await rates.store.take(rates.own, [wide, narrow]) == 1000
        assert await rates.store.take(rates.own, [wide]) is None
        assert await rates.store.take(rates.own, [wide]) is None, "the refused one did not count"
        assert await rates.store.take(rates.own, [wide]) == MINUTE


@pytest.mark.asyncio
async def test_organisations_count_apart(opened: Opened) -> None:
    async with opened() as rates:
        assert await rates.free() == 12
        assert await rates.store.take(f"{rates.own}-other", USES) is None


@pytest.mark.asyncio
async def test_a_cap_of_nothing_and_no_cap(opened: Opened) -> None:
    async with opened() as rates:
        assert await rates.store.take(rates.own, [CapUse("none", 0, MINUTE)]) == 1000
        assert await rates.store.take(rates.own, []) is None
        assert await rates.store.lend(rates.own, [], "a", 5, TTL) == 0
        await rates.store.settle(rates.own, "unknown", 1)
        await rates.store.extend(rates.own, "unknown", TTL, "other")


@pytest.mark.asyncio
async def test_calls_at_once_never_exceed_the_cap(opened: Opened) -> None:
    async with opened() as rates:
        waits = await asyncio.gather(*(rates.store.take(rates.own, USES) for _ in range(200)))
        assert waits.count(None) == 12


@pytest.mark.asyncio
async def test_lent_calls_count_until_they_are_returned(opened: Opened) -> None:
    async with opened() as rates:
        store, own = rates.store, rates.own
        assert await store.lend(own, USES, "a", 100, TTL) == 6, "half, for one to come"
        assert await store.lend(own, USES, "b", 1, TTL) == 1
        await store.settle(own, "a", 4)
        await store.settle(own, "a", 4)
        assert await rates.free() == 12 - 2 - 1
        await store.settle(own, "b", 1)
        assert await rates.free() == 1
        assert await store.lend(own, USES, "c", 5, TTL) == 0


@pytest.mark.asyncio
async def test_lent_calls_may_be_made_at_the_last_moment(opened: Opened) -> None:
    async with opened() as rates:
        await rates.store.lend(rates.own, USES, "a", 6, TTL)
        rates.clock.now += TTL + MINUTE - 1
        assert await rates.free() == 6
        rates.clock.now += 1
        assert await rates.free() == 6, "those of the loan are over"


@pytest.mark.asyncio
async def test_a_loan_is_renewed_and_renamed(opened: Opened) -> None:
    async with opened() as rates:
        store, own = rates.store, rates.own
        await store.lend(own, USES, "question", 6, TTL)
        await store.extend(own, "question", TTL, "lease")
        rates.clock.now += MINUTE
        await store.extend(own, "lease", TTL)
        rates.clock.now += MINUTE
        await store.settle(own, "lease", 3, unless="question")
        assert await rates.free() == 6, "the question is repeated: its own loan stays"
        await store.settle(own, "lease", 3, unless="another")
        assert await rates.free() == 3


@pytest.mark.asyncio
async def test_a_loan_that_is_only_extended_outlasts_the_deletion_of_old_rows(
    tmp_path: Path,
) -> None:
    """Another replica, which has nothing of it cached, counts it."""
    clock = Clock()
    lender, other = (postgres.store(tmp_path, clock_ms=clock) for _ in range(2))
    for storage in (lender, other):
        await storage.open(lambda _: None)
    assert await lender.rates.take("o", USES) is None
    assert await lender.rates.lend("o", USES, "a", 5, TTL) == 5
    for _ in range(26):
        clock.now += 60 * MINUTE
        await lender.rates.extend("o", "a", TTL)
    await lender.rates.delete_old()
    assert await Rates(other.rates, clock, "o").free() == 12 - 5
    for storage in (lender, other):
        await storage.close()


@pytest.mark.asyncio
async def test_what_a_dead_holder_was_lent_is_free_again_after_old_rows_are_deleted(
    tmp_path: Path,
) -> None:
    """The cap is by the week: its counter is in use for longer than rows without a use are kept."""
    clock = Clock()
    day = 24 * 60 * MINUTE
    weekly = [CapUse("a", 12, 7 * day)]
    for moves_ms in (0, 2 * day, 6 * day):  # each time by a replica with nothing cached
        clock.now += moves_ms
        store = postgres.store(tmp_path, clock_ms=clock)
        await store.open(lambda _: None)
        if moves_ms == 0:
            assert await store.rates.lend("o", weekly, "a", 5, TTL) == 5
        taken = [await store.rates.take("o", weekly) for _ in range(3)]
        assert taken == [None] * 3
        await store.rates.delete_old()
        await store.close()
    store = postgres.store(tmp_path, clock_ms=clock)
    await store.open(lambda _: None)
    took = [await store.rates.take("o", weekly) for _ in range(7)]
    await store.close()
    assert took == [None] * 6 + [took[-1]], "six of the last week count, and no loan"
    assert took[-1] is not None


@pytest.mark.asyncio
async def test_what_a_repeated_question_was_lent_is_freed(opened: Opened) -> None:
    async with opened() as rates:
        store, own = rates.store, rates.own
        for _ in range(2):
            assert await store.lend(own, USES, "question", 3, TTL) == 3
            await store.extend(own, "question", TTL, "lease")
        await store.settle(own, "lease", 3)
        assert await rates.free() == 12


@pytest.mark.asyncio
async def test_a_refused_wait_is_short_while_calls_are_lent(opened: Opened) -> None:
    async with opened() as rates:
        await rates.store.lend(rates.own, [CapUse("b", 2, MINUTE)], "a", 1, TTL)
        assert await rates.store.take(rates.own, [CapUse("b", 1, MINUTE)]) == 1000


_CAPS = [CapUse("a", 4, 1000), CapUse("b", 7, 5000), CapUse("c", 0, 1000)]
_uses = st.lists(st.sampled_from(_CAPS), max_size=3, unique=True)
_names = st.sampled_from(["l1", "l2", "l3"])
_steps = st.one_of(
    st.tuples(st.just("take"), _uses),
    st.tuples(st.just("lend"), _uses, _names, st.integers(1, 9), st.integers(1, 4000)),
    st.tuples(st.just("settle"), _names, st.integers(0, 9), st.sampled_from([None, "l1"])),
    st.tuples(st.just("extend"), _names, st.integers(1, 4000), st.sampled_from([None, "l2"])),
    st.tuples(st.just("pass"), st.integers(1, 6000)),
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(_steps, max_size=40))
def test_both_count_the_same(redis_url: str, steps: list[Any]) -> None:  # noqa: F811
    async def compare() -> None:
        clock, own = Clock(), f"p-{os.getpid()}-{next(_numbers)}"
        memory = MemoryRates(clock)
        async with in_redis(redis_url, clock) as redis:
            for name, *arguments in steps:
                if name == "pass":
                    clock.now += arguments[0]
                    continue
                named = {"unless": arguments.pop()} if name == "settle" else {}
                found = [await getattr(each, name)(own, *arguments, **named)
                         for each in (memory, redis)]  # fmt: skip
                assert found[0] == found[1], (name, arguments)

    asyncio.run(compare())


@pytest.mark.asyncio
async def test_the_servers_clock_is_used(redis_url: str) -> None:  # noqa: F811
    """Replicas whose clocks differ count together."""
    own, uses = f"t-{os.getpid()}", [CapUse("b", 2, MINUTE)]
    async with in_redis(redis_url, None) as one, in_redis(redis_url, None) as other:
        assert await one.take(own, uses) is None
        assert await other.take(own, uses) is None
        wait_ms = await one.take(own, uses)
        assert wait_ms is not None
        assert 0 < wait_ms <= MINUTE
        brief = [CapUse("c", 1, 200)]
        assert await one.take(own, brief) is None
        async with asyncio.timeout(60):
            while await other.take(own, brief) is not None:  # until the window has passed there
                await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_an_organisation_with_too_many_counters_is_refused_alone(redis_url: str) -> None:  # noqa: F811
    clock, own = Clock(), f"m-{os.getpid()}"
    async with in_redis(redis_url, clock, buckets_max=3) as rates:
        for number in range(3):
            assert await rates.take(own, [CapUse(f"b{number}", 9, 1000)]) is None
        assert await rates.take(own, [CapUse("b3", 9, 1000)]) == 1000
        assert await rates.lend(own, [CapUse("b3", 9, 1000)], "a", 1, TTL) == 0
        assert await rates.take(own, [CapUse("b0", 9, 1000)]) is None, "a known one goes on"
        assert await rates.take(f"{own}-other", [CapUse("b3", 9, 1000)]) is None
        clock.now += 1001
        assert await rates.take(own, [CapUse("b3", 9, 1000)]) is None


@pytest.mark.asyncio
async def test_nothing_stays_in_redis(redis_url: str) -> None:  # noqa: F811
    from redis.asyncio import Redis

    async with in_redis(redis_url, None) as rates, Redis.from_url(redis_url) as redis:

        async def kept(own: str, window_ms: int) -> list[bytes]:
            uses = [CapUse("b", 9, window_ms)]
            await rates.take(own, uses)
            assert await rates.lend(own, uses, "a", 1, window_ms // 2) == 1
            return [key async for key in redis.scan_iter(f"guard:rates:{{{own}}}*")]

        keys = await kept(f"x-{os.getpid()}", MINUTE)
        assert len(keys) == 5
        assert all([0 < await redis.pttl(key) <= MINUTE * 3 // 2 for key in keys])
        await redis.delete(*keys)
        brief = f"y-{os.getpid()}"
        await kept(brief, 200)
        async with asyncio.timeout(60):
            while [key async for key in redis.scan_iter(f"guard:rates:{{{brief}}}*")]:
                await asyncio.sleep(0.01)
