"""Money that is only set aside is waited for; a refusal means that it is spent."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import pytest

import guard
from guard.breaker.refusals import Refusal
from guard.core.events import InstrumentedCall
from guard.core.request_bound import RequestBound
from guard.core.usage import Usage
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import Entry, Scope, current_scope
from tests.support.prometheus import metrics_of
from tests.support.vendor_transport import VendorTransport
from tests.support.waiting import WAIT_S, until, until_async

MODEL: Final = "gpt-4o"
WORST: Final = 1_000_000
"""What a request is held at, in nano-dollars."""
COST: Final = WORST // 10
GAUGE: Final = "guard_gateway_waiting_calls "
BOUND: Final = RequestBound("openai", MODEL, input_tokens=500, output_tokens=500)


Start = Callable[..., GuardRuntime]


@pytest.fixture(params=["socket", "http"])
def runtime(start: Start, tenant: Any, request: pytest.FixtureRequest) -> GuardRuntime:
    """One that asks over the control socket, with leases, and one that asks over HTTP.

    It waits for room for longer than any test does: who is refused was refused at once.
    """
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)
    over_socket = request.param == "socket"
    mode = "auto" if over_socket else "http"
    started = start(timeout_ms=60_000, wait_for_room_ms=3_600_000, transport_mode=mode)
    if over_socket:
        until(lambda: started.link.session and started.link.session.asks.can_lease, WAIT_S)
    else:
        until(lambda: started.link.session is not None, WAIT_S)
    return started


def scope(workflow_id: str = "w") -> Scope:
    return Scope(workflow_id=workflow_id, run_id="r", entry=Entry(Scope()))


def in_line(runtime: GuardRuntime) -> int:
    """Return how many questions of a process have a place in the gateway's line."""
    return len(runtime._keeper._desk._parked)


def limit(tenant: Any, requests: float, **fields: Any) -> None:
    tenant.admin.set_budget(limit_nanousd=int(requests * WORST), **fields)


def balance(tenant: Any) -> dict[str, Any]:
    [found] = tenant.admin.ledger()
    return dict(found)


def held(runtime: GuardRuntime, bound: RequestBound = BOUND, where: Scope | None = None) -> Any:
    where = where or scope()
    return runtime.requests.hold(where, bound) or runtime.requests.ask(where, bound)


def settle(runtime: GuardRuntime, hold: Any, cost: int = COST) -> None:
    """The answer has come: charge what it cost."""
    usage = Usage(model=MODEL, input_tokens=0, output_tokens=cost // 1000)
    hold.settle(usage)
    call = InstrumentedCall("openai", 1.0, usage=usage, reservation_id=hold.reservation_id)
    runtime.events.record("llm", call, scope())


def test_a_request_waits_until_one_before_it_has_ended(runtime: GuardRuntime, tenant: Any) -> None:
    limit(tenant, 1.5)
    first = held(runtime)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(held, runtime)
        until(lambda: in_line(runtime) == 1, WAIT_S)
        assert not second.done()
        settle(runtime, first)
        assert second.result(WAIT_S).reservation_id


def test_the_status_and_the_metrics_count_who_waits(runtime: GuardRuntime, tenant: Any) -> None:
    """Three behind each other in one lane, of which the gateway may know the first only."""
    limit(tenant, 1.5)
    # What the tests before it have left in line leaves in its time.
    until(lambda: waiting_at_gateway(tenant) == 0, WAIT_S)
    first = held(runtime)
    assert runtime.status().waiting_calls == 0
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(held, runtime) for _ in range(3)]
        until(lambda: runtime.status().waiting_calls == 3, WAIT_S)
        until(lambda: waiting_at_gateway(tenant) >= 1, WAIT_S)
        settle(runtime, first)
        for other in concurrent.futures.as_completed(others, WAIT_S):
            settle(runtime, other.result())
    until(lambda: runtime.status().waiting_calls == 0, WAIT_S)
    until(lambda: waiting_at_gateway(tenant) == 0, WAIT_S)


def waiting_at_gateway(tenant: Any) -> int:
    text = metrics_of(tenant.url)
    [line] = [each for each in text.splitlines() if each.startswith(GAUGE)]
    return int(float(line.split()[1]))


def test_what_is_spent_is_refused_at_once(runtime: GuardRuntime, tenant: Any) -> None:
    limit(tenant, 1.5)
    settle(runtime, held(runtime), WORST)
    runtime.flush()
    with ThreadPoolExecutor(1) as pool:
        # An hour would be the wait.
        refused = pool.submit(held, runtime).exception(WAIT_S)
    assert isinstance(refused, Refusal)
    assert "budget exhausted" in str(refused)


def test_a_crowd_is_served_one_after_the_other(runtime: GuardRuntime, tenant: Any) -> None:
    """Forty at once, of which three fit: each settles for a tenth of what it holds."""
    limit(tenant, 3.5 + 40 * 0.1)
    served = []

    def one() -> None:
        hold = held(runtime)
        time.sleep(0.02)
        settle(runtime, hold)
        served.append(hold)

    with ThreadPoolExecutor(40) as pool:
        for done in [pool.submit(one) for _ in range(40)]:
            done.result(WAIT_S)
    assert len(served) == 40
    runtime.flush()
    until(lambda: balance(tenant)["reserved"] == 0, WAIT_S)
    assert balance(tenant)["committed"] == 40 * COST


async def _crowd(runtime: GuardRuntime, number: int) -> None:
    async def one() -> None:
        hold = await runtime.requests.ask_async(scope(), BOUND)
        await asyncio.sleep(0.02)
        settle(runtime, hold)

    await asyncio.gather(*(one() for _ in range(number)))


@pytest.mark.asyncio
async def test_a_crowd_of_tasks_is_served(runtime: GuardRuntime, tenant: Any) -> None:
    limit(tenant, 3.5 + 100 * 0.1)
    await asyncio.wait_for(_crowd(runtime, 100), 100)


def test_a_kill_ends_the_wait(runtime: GuardRuntime, tenant: Any) -> None:
    limit(tenant, 1.5)
    held(runtime)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(held, runtime)
        until(lambda: in_line(runtime) == 1, WAIT_S)
        tenant.admin.kill("w")
        with pytest.raises(guard.WorkflowKilledInterrupt):
            second.result(WAIT_S)


def test_whose_caller_gives_up_holds_up_nobody(runtime: GuardRuntime, tenant: Any) -> None:
    limit(tenant, 1.5)
    first = held(runtime)

    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await runtime.requests.ask_async(scope(), BOUND)

    asyncio.run(impatient())
    settle(runtime, first)
    assert held(runtime).reservation_id


def test_nobody_waits_who_does_not_want_to(start: Start, tenant: Any) -> None:
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)
    runtime = start(wait_for_room_ms=0)
    limit(tenant, 1.5)
    held(runtime)
    with pytest.raises(Refusal, match="budget exhausted"):
        held(runtime)


def test_a_pace_is_kept_by_who_waits_for_no_money(start: Start, tenant: Any) -> None:
    """As with ``guard run --rate 2/s --wait 0``."""
    tenant.admin.set_policy(rate_caps=[{"calls": 2, "per_ms": 1000, "on_limit": "wait"}])
    runtime = start(wait_for_room_ms=0)
    assert all(held(runtime).reservation_id for _ in range(5))


def test_a_cap_cuts_no_stream_that_has_begun(runtime: GuardRuntime, tenant: Any) -> None:
    """What a stream needs more is no other request."""
    limit(tenant, 100)
    tenant.admin.set_policy(rate_caps=[{"calls": 1, "per_ms": 3_600_000}])
    hold = held(runtime, RequestBound("openai", MODEL, 500, 500, streams=True))
    with pytest.raises(Refusal):
        held(runtime)
    for _ in range(3):
        paid = hold.output_tokens
        hold.grow(paid)
        until(lambda paid=paid: hold.refusal or hold.output_tokens > paid, WAIT_S)
        assert hold.refusal is None
    settle(runtime, hold)


def test_a_wait_ends_when_nothing_has_come_back(start: Start, tenant: Any) -> None:
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)
    runtime = start(wait_for_room_ms=1500)
    limit(tenant, 1.5)
    held(runtime)
    began_s = time.monotonic()
    with pytest.raises(Refusal, match="budget exhausted"):
        held(runtime)
    assert time.monotonic() - began_s > 1.4


def test_who_came_first_is_served_first(runtime: GuardRuntime, tenant: Any) -> None:
    limit(tenant, 1.9)
    first = held(runtime)
    order: list[int] = []
    threads = []

    def wait(number: int) -> None:
        hold = held(runtime, where=scope(f"w{number}"))
        order.append(number)
        settle(runtime, hold)

    for number in range(6):
        thread = threading.Thread(target=wait, args=(number,))
        thread.start()
        threads.append(thread)
        until(lambda number=number: in_line(runtime) == number + 1, WAIT_S)
    settle(runtime, first)
    for thread in threads:
        thread.join(WAIT_S)
    assert order == sorted(order)
    assert len(order) == 6


@guard.protect
def pay() -> str:
    """A tool that needs a person."""
    return "paid"


@guard.protect
async def pay_async() -> str:
    """The same, as a coroutine function."""
    return "paid"


def pay_in_workflow(how: str) -> str:
    with guard.workflow("w"):
        return pay() if how == "sync" else asyncio.run(_pay_async())


async def _pay_async() -> str:
    return await pay_async()


@pytest.mark.parametrize("how", ["sync", "async"])
def test_who_was_approved_waits_in_line_as_everybody(
    runtime: GuardRuntime, tenant: Any, how: str
) -> None:
    """People approve before the line: a yes is not followed by a refusal while money is held."""
    tenant.admin.set_policy("p", approval_tools=["pay", "pay_async"])
    limit(tenant, 1.5)
    first = held(runtime, RequestBound("openai", MODEL, input_tokens=750, output_tokens=750))
    with ThreadPoolExecutor(2) as pool:
        approved = pool.submit(pay_in_workflow, how)
        [approval] = until(tenant.admin.approvals, WAIT_S)
        ahead = pool.submit(held, runtime, where=scope("other"))
        until(lambda: in_line(runtime) == 1, WAIT_S)
        tenant.admin.answer_approval(approval["approval_id"], approved=True)
        until(lambda: in_line(runtime) == 2, WAIT_S)
        assert not approved.done()
        settle(runtime, first)
        settle(runtime, ahead.result(WAIT_S))
        assert approved.result(WAIT_S) == "paid"


@guard.protect
def inner() -> str:
    """A call in another one."""
    return "done"


@guard.protect
def outer() -> str:
    """A call around another one."""
    return inner()


def test_a_nested_call_does_not_wait_for_the_one_around_it(
    runtime: GuardRuntime, tenant: Any
) -> None:
    tenant.admin.set_budget(limit_nanousd=1000)  # the first call's guess takes all of it
    with guard.workflow("w"):
        assert outer() == "done"
        assert outer() == "done"
    until(lambda: balance(tenant)["reserved"] == 0, WAIT_S)


def test_a_request_two_calls_deep_draws_on_both(runtime: GuardRuntime, tenant: Any) -> None:
    limit(tenant, 1)
    with guard.workflow("w"):
        settle(runtime, two_deep(runtime))


@guard.protect
def two_deep(runtime: GuardRuntime) -> Any:
    return one_deep(runtime)


@guard.protect
def one_deep(runtime: GuardRuntime) -> Any:
    return held(runtime, where=current_scope.get())


CHAT: Final = "https://api.openai.com/v1/chat/completions"


async def _chunks() -> AsyncIterator[bytes]:
    for text in ("a", "b"):
        delta = {"model": MODEL, "choices": [{"index": 0, "delta": {"content": text}}]}
        yield b"data: " + json.dumps(delta).encode() + b"\n\n"
    used = {"prompt_tokens": 10, "completion_tokens": 2}
    last = {"model": MODEL, "choices": [], "usage": used}
    yield b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n"


async def streaming_vendor(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=_chunks())


async def _read_and_ask(runtime: GuardRuntime) -> None:
    body = {"model": MODEL, "max_tokens": 1200, "stream": True, "messages": []}
    transport = VendorTransport(streaming_vendor)
    async with httpx.AsyncClient(transport=transport) as client:
        async with client.stream("POST", CHAT, json=body) as answer:
            chunks = answer.aiter_bytes()
            await anext(chunks)
            with pytest.raises(Refusal, match="set aside"):
                await runtime.requests.ask_async(current_scope.get(), BOUND)
            other = asyncio.create_task(runtime.requests.ask_async(current_scope.get(), BOUND))
            while not in_line(runtime):
                assert not other.done(), "this task reads on while that one waits"
                await asyncio.sleep(0.01)
            async for _ in chunks:
                pass
        settle(runtime, await other)
        settle(runtime, await runtime.requests.ask_async(current_scope.get(), BOUND))


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", ["auto", "http"])
async def test_who_reads_a_stream_does_not_wait_for_it(
    start: Start, tenant: Any, mode: str
) -> None:
    """Others do, whether they have inherited the reader's context or not."""
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)
    runtime = start(transport_mode=mode, wait_for_room_ms=3_600_000)
    await until_async(lambda: runtime.link.session is not None, WAIT_S)
    limit(tenant, 2)
    with pytest.raises(guard.GuardBudgetError), guard.workflow("w"):
        await asyncio.wait_for(_read_and_ask(runtime), 2 * WAIT_S)


def test_a_small_one_passes_a_large_one_that_has_just_come(
    runtime: GuardRuntime, tenant: Any
) -> None:
    limit(tenant, 2.2)
    first = held(runtime)
    large = RequestBound("openai", MODEL, input_tokens=500, output_tokens=1500)
    small = RequestBound("openai", MODEL, input_tokens=50, output_tokens=50)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(held, runtime, large)
        until(lambda: in_line(runtime) == 1, WAIT_S)
        settle(runtime, held(runtime, small))
        assert not waiting.done()
        settle(runtime, first, 1000)
        assert waiting.result(WAIT_S)
