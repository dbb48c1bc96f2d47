"""What is held without a lease is renewed while somebody uses it, and no longer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import guard
from guard.runtime.runtime import GuardRuntime
from tests.guard.asking.test_waiting_in_line import COST, MODEL, balance, held, limit, settle
from tests.support.proxy import ChaosProxy
from tests.support.waiting import until

LIFE_S: Final = 1.0


@pytest.fixture(autouse=True)
def short_life(tenant: Any) -> None:
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)
    tenant.admin.update_settings(lease_ttl_ms=int(1000 * LIFE_S), lease_grace_ms=3000)
    limit(tenant, 1.5)


@pytest.fixture
def runtime(start: Callable[..., GuardRuntime], proxy: ChaosProxy, tmp_path: Path) -> GuardRuntime:
    started = start(transport_mode="http", api_url=proxy.url, spool_dir=tmp_path)
    until(lambda: started.link.session is not None)
    return started


def reserved(tenant: Any) -> int:
    return int(balance(tenant)["reserved"])


def until_reserved(tenant: Any) -> int:
    """Return what is reserved; where this process was not heard for a life, once it is again."""
    return until(lambda: reserved(tenant))


def pass_time(lives: float) -> None:
    ends_s = time.monotonic() + lives * LIFE_S
    until(lambda: time.monotonic() > ends_s)


def test_a_request_under_way_keeps_what_it_holds(runtime: GuardRuntime, tenant: Any) -> None:
    hold = held(runtime)
    pass_time(3)
    assert until_reserved(tenant) > 0
    settle(runtime, hold)
    until(lambda: balance(tenant)["committed"] == COST)
    assert reserved(tenant) == 0


def test_a_protected_call_keeps_what_it_holds(runtime: GuardRuntime, tenant: Any) -> None:
    @guard.protect
    def work() -> int:
        pass_time(3)
        return until_reserved(tenant)

    with guard.workflow("w"):
        assert work() > 0
    until(lambda: reserved(tenant) == 0)


def test_what_nobody_uses_any_more_is_not_held_for_ever(runtime: GuardRuntime, tenant: Any) -> None:
    hold = held(runtime)
    assert until_reserved(tenant) > 0
    del hold
    gc.collect()
    until(lambda: reserved(tenant) == 0)


def test_what_was_under_way_in_an_outage_is_charged_until_it_is_known(
    runtime: GuardRuntime, tenant: Any, proxy: ChaosProxy
) -> None:
    hold = held(runtime)
    before = until_reserved(tenant)
    proxy.part("refuse")
    until(lambda: reserved(tenant) == 0)
    assert balance(tenant)["committed"] == before
    proxy.fault = "none"
    settle(runtime, hold)
    until(lambda: balance(tenant)["committed"] == COST)
    assert (reserved(tenant), tenant.admin.doubts()) == (0, [])


def test_a_call_holds_after_an_outage_what_it_did(
    runtime: GuardRuntime, tenant: Any, proxy: ChaosProxy
) -> None:
    @guard.protect
    def work() -> None:
        before = until_reserved(tenant)
        proxy.part("refuse")
        until(lambda: reserved(tenant) == 0)
        proxy.fault = "none"
        until(lambda: reserved(tenant) == before)

    with guard.workflow("w"):
        work()
    until(lambda: reserved(tenant) == 0)
    assert balance(tenant)["committed"] == 0


def plain() -> None:
    """Do nothing."""


def raises() -> None:
    raise LookupError("the call's own")


async def awaited() -> None:
    await asyncio.sleep(0)


async def cancelled() -> None:
    raise asyncio.CancelledError


def generates() -> Iterator[int]:
    yield 1


async def generates_async() -> AsyncIterator[int]:
    yield 1


def use(body: Callable[[], Any]) -> None:
    """Make a protected call and drop all of it."""

    async def awaits(made: Any) -> None:
        await made

    async def reads(made: Any) -> None:
        async for _ in made:
            pass

    with contextlib.suppress(LookupError, asyncio.CancelledError):
        made = guard.protect(body)()
        if inspect.isawaitable(made):
            asyncio.run(awaits(made))
        elif isinstance(made, AsyncIterator):
            asyncio.run(reads(made))
        else:
            list(made or ())


@pytest.mark.parametrize("mode", ["http", "socket"])
@pytest.mark.parametrize(
    "body",
    [plain, raises, awaited, cancelled, generates, generates_async],
    ids=lambda b: b.__name__,
)
def test_a_call_lets_go_at_its_end_and_not_when_garbage_is_collected(
    mode: str, body: Callable[[], Any], start: Callable[..., GuardRuntime], tenant: Any
) -> None:
    tenant.admin.update_settings(lease_ttl_ms=600_000)  # else it would be over before the garbage
    runtime = start(transport_mode="http" if mode == "http" else "auto")
    until(lambda: runtime.link.session is not None)
    use(body)  # so that all is imported that leaves cycles
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            use(body)
        until(lambda: not runtime._keeper.renewing)
    finally:
        gc.enable()
