"""Rates and quotas, in the process and in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from spamdetect import AsyncSpamClient, SpamRateLimitError
from spamdetect.errors import SpamConfigError
from spamdetect.service import redis_limits
from spamdetect.service.app import open_limits, open_store
from spamdetect.service.keys import KeyRecord
from spamdetect.service.limits import BURST_S, Allowance, StoreLimits, utc_day
from spamdetect.service.metrics import Metrics
from spamdetect.service.respond import RefusalError
from spamdetect.service.settings import ServiceSettings
from spamdetect.service.shares import next_cell
from spamdetect.service.store import KeyStore
from spamdetect.testing import run_service_async
from tests.support.private_server import schema_in


@given(
    st.integers(1, 100_000),
    st.lists(st.floats(0, 5, allow_nan=False), min_size=1, max_size=200),
)
def test_the_rate_holds_over_any_window(rate_per_minute: int, gaps_s: list[float]) -> None:
    now_s = cell_s = 0.0
    taken: list[float] = []
    for gap_s in gaps_s:
        now_s += gap_s
        cell_s, wait_s = next_cell(cell_s, now_s, rate_per_minute, BURST_S)
        if wait_s == 0:
            taken.append(now_s)
        else:
            # Told to wait, one is taken after exactly that wait.
            assert next_cell(cell_s, now_s + wait_s + 1e-6, rate_per_minute, BURST_S)[1] == 0
    burst = max(1.0, rate_per_minute / 6)
    for first, start_s in enumerate(taken):
        for last in range(first, len(taken)):
            allowed = burst + (taken[last] - start_s) * rate_per_minute / 60
            assert last - first + 1 <= allowed + 1 + 1e-6


def _key(rate: int | None = None, quota: int | None = None, key_id: str = "") -> KeyRecord:
    key_id = key_id or f"test{secrets.token_hex(6)}"
    return KeyRecord(key_id, b"", "", "", 0.0, None, rate, quota)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[KeyStore]:
    opened = await open_store(f"sqlite:///{tmp_path / 'keys.sqlite3'}")
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
def _patient_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that cannot ask Redis in time counts by itself; here the machine may be busy."""
    monkeypatch.setattr(redis_limits, "_TIMEOUT_S", 60.0)


@pytest_asyncio.fixture(params=["memory", "redis"])
async def limits(request: pytest.FixtureRequest, store: KeyStore) -> AsyncIterator[Any]:
    url = "" if request.param == "memory" else request.getfixturevalue("redis_url")
    settings = ServiceSettings(redis_url=url, rate_per_minute=600, quota_per_day=0)
    opened = await open_limits(settings, store, Metrics())
    yield opened
    await opened.close()


class Bound:
    """How many requests a rate allows from now on, however slow the machine is."""

    def __init__(self, rate_per_minute: int) -> None:
        self._per_s = rate_per_minute / 60
        self._began_s = time.monotonic()

    def __call__(self) -> float:
        return self._per_s * (10 + time.monotonic() - self._began_s) + 1


@pytest.mark.asyncio
async def test_texts_that_come_together_fit_in_whole_or_not_at_all(limits: Any) -> None:
    key = _key(rate=0, quota=10)
    for texts, fits in ((7, True), (4, False), (3, True), (1, False)):
        if fits:
            await limits.admit(key, texts)
            continue
        with pytest.raises(RefusalError) as caught:
            await limits.admit(key, texts)
        left = "but for 3" if texts == 4 else "used up."
        assert left in caught.value.message
    assert await limits.usage_today(key.key_id) == 10
    # Beyond the rate they are taken together, and made up for.
    key = _key(rate=60)
    await limits.admit(key, 500)
    with pytest.raises(RefusalError) as caught:
        await limits.admit(key)
    assert 480 < int(dict(caught.value.headers)[b"retry-after"]) <= 500


async def _taken(limits: Any, key: KeyRecord, requests: int) -> tuple[int, RefusalError | None]:
    taken, refusal = 0, None
    for _ in range(requests):
        try:
            await limits.admit(key)
            taken += 1
        except RefusalError as error:
            refusal = error
    return taken, refusal


@pytest.mark.asyncio
async def test_the_burst_is_ten_seconds_worth_and_then_the_rate_holds(limits: Any) -> None:
    bound = Bound(60)
    taken, refusal = await _taken(limits, _key(rate=60), 100)
    assert 10 <= taken <= bound()
    assert refusal is not None
    assert (refusal.status_code, refusal.error_code.value) == (429, "RATE_LIMITED")
    assert dict(refusal.headers)[b"retry-after"] == b"1"
    assert "60 requests per minute" in refusal.message


@pytest.mark.asyncio
async def test_a_slow_rate_still_takes_the_first_request(limits: Any) -> None:
    taken, refusal = await _taken(limits, _key(rate=1), 3)
    assert taken == 1
    assert refusal is not None
    assert 1 <= int(dict(refusal.headers)[b"retry-after"]) <= 60


@pytest.mark.asyncio
async def test_the_quota_is_exact_also_at_once(limits: Any) -> None:
    key = _key(rate=0, quota=25)
    results = await asyncio.gather(*(_taken(limits, key, 5) for _ in range(20)))
    assert sum(taken for taken, _ in results) == 25
    refusal = results[-1][1] or results[0][1]
    assert refusal is not None
    assert (refusal.status_code, refusal.error_code.value) == (429, "QUOTA_EXCEEDED")
    assert 1 <= int(dict(refusal.headers)[b"retry-after"]) <= 86_400
    assert await limits.usage_today(key.key_id) == 25


@pytest.mark.asyncio
async def test_keys_do_not_share(limits: Any) -> None:
    one, other = _key(rate=60, quota=3), _key(rate=60, quota=3)
    assert (await _taken(limits, one, 10))[0] == 3
    assert (await _taken(limits, other, 10))[0] == 3


@pytest.mark.asyncio
async def test_zero_is_no_limit_and_none_is_the_default(limits: Any) -> None:
    assert (await _taken(limits, _key(rate=0, quota=0), 500))[0] == 500
    bound = Bound(600)
    assert 100 <= (await _taken(limits, _key(), 300))[0] <= bound()


@pytest.mark.asyncio
async def test_counts_survive_a_restart(store: KeyStore) -> None:
    key = _key(rate=0, quota=10)
    for expected in (6, 4, 0):
        limits = StoreLimits(store, Allowance(0, 0))
        assert (await _taken(limits, key, 6))[0] == expected
        await limits.close()
    assert await store.usage(key.key_id, utc_day(time.time())) == 10


@pytest.mark.asyncio
async def test_counts_are_written_while_the_service_runs(
    store: KeyStore, until: Callable[..., Awaitable[None]]
) -> None:
    limits = StoreLimits(store, Allowance(0, 0))
    key = _key()
    await _taken(limits, key, 3)
    day = utc_day(time.time())
    async with asyncio.timeout(60):
        while await store.usage(key.key_id, day) != 3:
            await asyncio.sleep(0.05)
    await limits.close()


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[KeyStore]]:
    """Two processes' ways to one store."""
    async with contextlib.AsyncExitStack() as stack:
        url = f"sqlite:///{tmp_path / 'keys.sqlite3'}"
        if request.param == "postgres":
            url = await stack.enter_async_context(
                schema_in(request.getfixturevalue("postgres_url"))
            )
        opened = [await open_store(url) for _ in range(2)]
        yield opened
        for each in opened:
            await each.close()


@pytest.mark.asyncio
async def test_processes_share_limits_through_the_store(stores: list[KeyStore]) -> None:
    both = [StoreLimits(store, Allowance(0, 0)) for store in stores]
    key, bound = _key(rate=60), Bound(60)
    taken = await asyncio.gather(*(_taken(limits, key, 20) for limits in both))
    assert 10 <= sum(count for count, _ in taken) <= bound()
    key = _key(rate=0, quota=50)
    results = await asyncio.gather(*(_taken(limits, key, 6) for limits in both for _ in range(10)))
    assert sum(count for count, _ in results) <= 50
    # What one of them holds for a moment comes back, and is used by the other.
    await both[0].close()
    rest, _ = await _taken(both[1], key, 50)
    assert sum(count for count, _ in results) + rest == 50
    assert await both[1].usage_today(key.key_id) == 50
    # And with a hundred a second.
    key, bound = _key(rate=6000), Bound(6000)
    taken = await asyncio.gather(*(_taken(limits, key, 1500) for limits in both))
    assert sum(count for count, _ in taken) <= bound()
    await both[1].close()


@pytest.mark.asyncio
async def test_replicas_share_a_rate_through_redis(store: KeyStore, redis_url: str) -> None:
    settings = ServiceSettings(redis_url=redis_url)
    replicas = [await open_limits(settings, store, Metrics()) for _ in range(3)]
    key = _key(rate=60, quota=1000)
    bound = Bound(60)
    taken = await asyncio.gather(*(_taken(replica, key, 20) for replica in replicas))
    assert 10 <= sum(count for count, _ in taken) <= bound()
    for replica in replicas:
        await replica.close()


@pytest.mark.asyncio
async def test_without_redis_the_process_counts_and_then_redis_again(
    store: KeyStore, private_redis: Any
) -> None:
    metrics = Metrics()
    limits = await open_limits(ServiceSettings(redis_url=private_redis.url), store, metrics)
    key = _key(rate=60)
    await limits.admit(key)
    private_redis.stop()
    try:
        bound = Bound(60)
        taken, refusal = await _taken(limits, key, 30)
        assert 9 <= taken <= bound()
        assert refusal is not None
        assert b"spamdetect_limit_fallbacks_total 30" in metrics.render()
        assert await limits.usage_today(key.key_id) >= taken
    finally:
        private_redis.start()
    other = _key(rate=60)
    async with asyncio.timeout(60):
        while True:
            before = metrics.render()
            await limits.admit(_key())
            if metrics.render() == before:
                break
            await asyncio.sleep(0.05)
    await limits.admit(other)
    await limits.close()


@pytest.mark.asyncio
async def test_a_wrong_redis_url_is_refused(store: KeyStore) -> None:
    with pytest.raises(SpamConfigError, match="redis://"):
        await open_limits(ServiceSettings(redis_url="http://x"), store, Metrics())


@pytest.mark.asyncio
async def test_the_client_sees_the_limit_and_keeps_silent(
    answering: Any,
) -> None:
    async with (
        run_service_async(rate_per_minute=1) as service,
        AsyncSpamClient(service.base_url, service.api_key, timeout=30) as spam,
    ):
        await spam.predict("hello")
        for _ in range(3):
            with pytest.raises(SpamRateLimitError) as caught:
                await spam.predict("hello")
            assert caught.value.retry_after is not None
            assert 0 < caught.value.retry_after <= 60
