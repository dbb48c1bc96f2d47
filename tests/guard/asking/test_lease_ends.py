"""The end of a lease: what it has paid for is delivered first."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from typing import Any

import pytest

import guard
from guard.asking import lease_clock, updates
from guard.asking.courier import Courier
from guard.asking.keeper import Keeper
from guard.asking.updates import LeaseUpdates
from guard.breaker.exceptions import BreakerTransportError
from guard.core.leases import Desk, LeaseBook, book
from guard.core.usage import Usage
from guard.gateway.ledger import leases
from guard.instrumentation.unread_answers import UnreadAnswers
from guard.runtime.runtime import GuardRuntime
from guard.session import lease_requests
from guard.session import session as session_module
from tests.guard.asking.test_waiting_in_line import (
    BOUND,
    COST,
    MODEL,
    balance,
    held,
    limit,
    scope,
    settle,
)
from tests.support.waiting import WAIT_S, until


def test_a_lease_is_not_closed_while_its_costs_cannot_be_delivered(
    runtime: GuardRuntime, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would become room for others until they are."""
    monkeypatch.setattr(leases, "CLOSING_MS", 0)
    monkeypatch.setattr(updates, "_RETRY_S", 0.1)
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)
    limit(tenant, 10)
    session = until(lambda: runtime.link.session, WAIT_S)
    until(lambda: session.asks.can_lease, WAIT_S)
    tries: list[None] = []
    flush, is_broken = session.flusher.flush, True

    async def broken_flush() -> None:
        tries.append(None)
        if is_broken:
            raise BreakerTransportError("no way")
        await flush()

    monkeypatch.setattr(session.flusher, "flush", broken_flush)
    usage = Usage(model=MODEL, input_tokens=0, output_tokens=COST // 1000)
    held(runtime).settle(usage)  # and its event is on its way
    until(lambda: len(tries) > 3, WAIT_S)
    assert balance(tenant)["reserved"] >= COST
    is_broken = False
    until(lambda: balance(tenant)["reserved"] == 0, WAIT_S)


@pytest.mark.skipif(sys.platform != "linux", reason="the clock is Linux'")
def test_the_clock_of_leases_counts_the_time_in_which_the_machine_is_suspended() -> None:
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    now_s = lease_clock.now_s()
    assert before_s <= now_s <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_nothing_is_sent_by_a_lease_that_ended_while_the_machine_was_suspended(
    runtime: GuardRuntime, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)
    limit(tenant, 10)
    session = until(lambda: runtime.link.session, WAIT_S)
    until(lambda: session.asks.can_lease, WAIT_S)
    hold = held(runtime)
    assert not hold.has_lapsed()
    awake_s = lease_clock.now_s
    monkeypatch.setattr(lease_clock, "now_s", lambda: awake_s() + 60)
    assert hold.has_lapsed()
    assert runtime.requests.hold(scope(), BOUND) is None
    hold.give_back()


def test_a_lease_that_is_being_closed_as_the_program_ends_is_waited_for(
    runtime: GuardRuntime, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its money would be missing to others until it expires."""
    monkeypatch.setattr(book, "IDLE_S", 0.1)
    monkeypatch.setattr(session_module, "_RETURN_S", WAIT_S)
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)
    limit(tenant, 10)
    session = until(lambda: runtime.link.session, WAIT_S)
    until(lambda: session.asks.can_lease, WAIT_S)
    closing, ending = threading.Event(), asyncio.Event()
    request, close = session.asks.request, LeaseUpdates.close

    async def held_back(kind: str, *arguments: Any) -> Any:
        if kind == "gate/lease":
            closing.set()
            await ending.wait()
            await asyncio.sleep(0.3)  # on a slow way, of which the end may not cut off the rest
        return await request(kind, *arguments)

    async def closed(lease_updates: LeaseUpdates) -> None:
        ending.set()
        await close(lease_updates)

    monkeypatch.setattr(session.asks, "request", held_back)
    monkeypatch.setattr(LeaseUpdates, "close", closed)
    settle(runtime, held(runtime))
    assert closing.wait(WAIT_S)
    assert balance(tenant)["reserved"] > 0
    runtime.shutdown(WAIT_S)
    assert balance(tenant)["reserved"] == 0


def test_many_leases_go_back_over_http_a_few_at_a_time(
    runtime: GuardRuntime, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, they would wait in the client's pool, which compares all that wait in it."""
    monkeypatch.setattr(session_module, "_RETURN_S", WAIT_S)
    monkeypatch.setattr(book, "IDLE_S", 3600)
    tenant.admin.set_budget(1000)
    session = until(lambda: runtime.link.session, WAIT_S)
    until(lambda: session.asks.can_lease, WAIT_S)
    request, update_lease = session.asks.request, session.client.update_lease
    at_once: list[int] = []
    under_way = 0

    async def unanswered(kind: str, *arguments: Any) -> Any:
        return None if kind == "gate/lease" else await request(kind, *arguments)

    async def counted(*arguments: Any) -> Any:
        nonlocal under_way
        under_way += 1
        at_once.append(under_way)
        try:
            return await update_lease(*arguments)
        finally:
            under_way -= 1

    monkeypatch.setattr(session.asks, "request", unanswered)
    monkeypatch.setattr(session.client, "update_lease", counted)
    work = guard.protect(lambda: None)
    for number in range(3 * lease_requests._HTTP_AT_ONCE):
        with guard.workflow(f"w-{number}"):
            work()
    assert balance(tenant)["reserved"] > 0
    runtime.shutdown(WAIT_S)
    assert balance(tenant)["reserved"] == 0
    assert len(at_once) >= 3 * lease_requests._HTTP_AT_ONCE
    assert max(at_once) == lease_requests._HTTP_AT_ONCE


def test_a_failure_does_not_end_the_care_for_the_leases(caplog: pytest.LogCaptureFixture) -> None:
    ticks: list[int] = []

    class Failing(Courier):
        def __init__(self) -> None:
            pass

        @property
        def is_idle(self) -> bool:
            return False

        def tick(self) -> None:
            ticks.append(len(ticks))
            if len(ticks) == 4:
                raise asyncio.CancelledError
            if len(ticks) < 3:
                raise RuntimeError("a defect")

    async def run() -> None:
        nothing: Any = None
        with contextlib.suppress(asyncio.CancelledError):
            await Keeper(Desk(LeaseBook()), Failing(), nothing, UnreadAnswers(), nothing).run()

    asyncio.run(run())
    assert len(ticks) == 4
    said = [each.message for each in caplog.records if each.name == "guard.leases"]
    assert said == ["the leases could not be looked after"]
