"""Leases of a process against the real gateway: covered, asked, returned, and never overspent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

import guard
from guard.breaker.exceptions import GuardTransportError
from guard.breaker.refusals import Refusal
from guard.core.leases import book
from guard.core.request_bound import RequestBound
from guard.core.usage import Usage
from guard.core.wire import LlmData
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import Entry, Scope, current_scope
from tests.support.proxy import ChaosProxy
from tests.support.waiting import WAIT_S, until, until_async

MODEL = "test-model"
COST = 1_000_000
"""Worst case of ``BOUND``, in nano-dollars: a tenth of a cent."""
BOUND = RequestBound("openai", MODEL, input_tokens=500, output_tokens=500)
USED = Usage(model=MODEL, input_tokens=250, output_tokens=250)


@guard.protect
def work() -> None:
    """Do nothing."""


@guard.protect
async def work_async() -> None:
    """Do nothing."""


@pytest.fixture
def price(tenant: Any) -> None:
    """A thousand nano-dollars for each token."""
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases stay for as long as a test looks at them, also where it is held up."""
    monkeypatch.setattr(book, "IDLE_S", WAIT_S)


@pytest.fixture
def leasing(start: Callable[..., GuardRuntime], price: None) -> GuardRuntime:
    """A runtime that asks over the socket and may hold leases.

    No batch leaves by itself: one that is under way could arrive after a question.
    """
    return able(start(timeout_ms=60_000, flush_interval_ms=60_000))


def able(runtime: GuardRuntime) -> GuardRuntime:
    until(lambda: runtime.link.session is not None and runtime.link.session.asks.can_lease, WAIT_S)
    return runtime


@pytest.fixture
def asked(leasing: GuardRuntime, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that were asked over the socket, as they come."""
    seen: list[str] = []
    session = leasing.link.session
    assert session is not None
    ask = session.asks.ask

    def watched(op: Any, *args: Any) -> None:
        seen.append(op)
        ask(op, *args)

    monkeypatch.setattr(session.asks, "ask", watched)
    return seen


@pytest.fixture
def no_http(leasing: GuardRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions over HTTP fail the test."""

    async def gate(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("asked over HTTP")

    session = leasing.link.session
    assert session is not None
    monkeypatch.setattr(session.client, "gate", gate)


def inside(name: str = "w") -> Scope:
    return Scope(workflow_id=name, run_id="r", entry=Entry(Scope()))


def spend(runtime: GuardRuntime, hold: Any, scope: Scope, usage: Usage = USED) -> None:
    """Report a request as the hooks do: the event names what pays for it."""
    data = LlmData(
        model=usage.model or MODEL,
        provider="openai",
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        source="auto",
    )
    runtime.events.record("llm", data, paid_by(scope, hold.reservation_id))
    runtime.leases.metered.clear()  # unlike an event that no hold covers
    hold.settle(usage)


def paid_by(scope: Scope, reservation_id: str | None) -> Scope:
    fields = (*scope.event_fields[:-1], reservation_id)
    return msgspec.structs.replace(scope, _event_fields=fields)


@pytest.mark.usefixtures("no_http")
class TestCalls:
    def test_a_covered_call_makes_no_round_trip(
        self, leasing: GuardRuntime, asked: list[str]
    ) -> None:
        with guard.workflow("w"):
            for _ in range(50):
                work()
        assert asked.count("gate") == 1
        status = leasing.status()
        assert (status.decisions, status.leases, status.leased_calls) == ("socket", 1, 0)
        assert status.leased_nanousd > 0

    @pytest.mark.asyncio
    async def test_callers_at_once_share_few_asks(
        self, leasing: GuardRuntime, asked: list[str]
    ) -> None:
        async with guard.workflow("w"):
            await asyncio.gather(*(work_async() for _ in range(200)))
        assert asked.count("gate") < 40

    def test_threads(self, leasing: GuardRuntime, asked: list[str]) -> None:
        def job() -> None:
            with guard.workflow("w"):
                for _ in range(20):
                    work()

        with ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(job) for _ in range(16)]:
                done.result(WAIT_S)
        assert asked.count("gate") < 60
        assert leasing.leases.totals().under_way == 0

    def test_a_sensitive_call_always_asks(self, leasing: GuardRuntime, asked: list[str]) -> None:
        @guard.sensitive
        @guard.protect
        def delete() -> None:
            """Do nothing."""

        with guard.workflow("w"):
            for _ in range(3):
                delete()
        assert asked.count("gate") == 3
        assert leasing.leases.totals().leases == 0

    def test_a_new_policy_is_asked_for(self, leasing: GuardRuntime, tenant: Any) -> None:
        with guard.workflow("w"):
            work()
            tenant.admin.set_policy("p", tools_block=["work"])
            lanes = leasing.leases._lanes

            def voided() -> bool:
                leases = [lane.lease for lane in lanes.values()]
                return all(lease is None or not lease.covered for lease in leases)

            until(voided, WAIT_S)
            with pytest.raises(guard.GuardToolBlockedError):
                work()

    def test_a_kill_comes_before_a_lease(self, leasing: GuardRuntime, tenant: Any) -> None:
        with guard.workflow("w"):
            work()
            tenant.admin.kill("w")
            until(lambda: leasing.enforcement.control.kills, WAIT_S)
            with pytest.raises(guard.WorkflowKilledInterrupt):
                work()

    def test_what_was_metered_by_hand_is_reported_with_the_next_call(
        self, leasing: GuardRuntime, tenant: Any, asked: list[str]
    ) -> None:
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")

        @guard.protect
        def metered() -> None:
            guard.track_llm(5_000, 5_000, model=MODEL)

        with guard.workflow("w"):
            metered()
            with pytest.raises(guard.GuardBudgetError):
                metered()
        assert tenant.spent_nanousd("w") == 10 * COST


class TestRequests:
    def test_covered_and_settled(
        self, leasing: GuardRuntime, tenant: Any, asked: list[str]
    ) -> None:
        scope = inside()
        for _ in range(100):
            hold = leasing.requests.hold(scope, BOUND) or leasing.requests.ask(scope, BOUND)
            assert hold.reservation_id is not None
            assert hold.output_tokens == 500
            spend(leasing, hold, scope)
        assert asked.count("gate") < 20
        leasing.flush()
        assert tenant.spent_nanousd("w") == 100 * COST // 2

    @pytest.mark.asyncio
    async def test_a_hundred_at_once_under_a_limit_for_ten(
        self, leasing: GuardRuntime, tenant: Any
    ) -> None:
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")
        scope = inside()
        ran = 0
        refused: list[guard.GuardError] = []

        async def one() -> None:
            nonlocal ran
            try:
                hold = leasing.requests.hold(scope, BOUND)
                if hold is None:
                    hold = await leasing.requests.ask_async(scope, BOUND)
            except Refusal as exc:
                refused.append(exc.error)
                return
            ran += 1
            await asyncio.sleep(0.01)
            full = Usage(model=MODEL, input_tokens=500, output_tokens=500)
            spend(leasing, hold, scope, full)

        await asyncio.gather(*(one() for _ in range(100)))
        await asyncio.to_thread(leasing.flush)
        assert tenant.spent_nanousd("w") <= 10 * COST
        assert ran == 10
        assert {type(error) for error in refused} == {guard.GuardBudgetError}
        assert "openai" in str(refused[0])
        assert MODEL in str(refused[0])
        assert "$0.001" in str(refused[0])

    def test_the_last_cent_is_decided_one_by_one(self, leasing: GuardRuntime, tenant: Any) -> None:
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")
        scope = inside()
        ran = 0

        def request() -> None:
            hold = leasing.requests.hold(scope, BOUND) or leasing.requests.ask(scope, BOUND)
            spend(leasing, hold, scope)

        with contextlib.suppress(Refusal):
            for _ in range(100):
                request()
                ran += 1
        leasing.flush()
        assert 18 <= ran <= 19, "half of its worst case is what each has cost"
        assert tenant.spent_nanousd("w") == ran * COST // 2

    def test_one_that_was_not_sent_costs_nothing(self, leasing: GuardRuntime) -> None:
        scope = inside()
        hold = leasing.requests.ask(scope, BOUND)
        before = leasing.leases.totals()
        hold.give_back()
        hold.settle(USED)
        after = leasing.leases.totals()
        assert (before.under_way, after.under_way) == (1, 0)
        assert before.nanousd == after.nanousd

    def test_a_stream_grows(self, leasing: GuardRuntime) -> None:
        scope = inside()
        bound = RequestBound("openai", MODEL, input_tokens=10, streams=True)
        hold = leasing.requests.ask(scope, bound)
        assumed = hold.output_tokens
        assert assumed is not None
        hold.grow(assumed)
        until(lambda: (hold.output_tokens or 0) > assumed, WAIT_S)
        hold.settle(Usage(model=MODEL, input_tokens=10, output_tokens=assumed + 5))
        assert leasing.leases.totals().under_way == 0
        assert leasing.leases.overshoots == 0

    def test_a_stream_that_may_not_grow_is_told_why(
        self, leasing: GuardRuntime, tenant: Any
    ) -> None:
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")
        hold = leasing.requests.ask(inside(), RequestBound("openai", MODEL, 10, 9_000))
        hold.grow(9_000)
        until(lambda: (hold.output_tokens or 0) > 9_000, WAIT_S)  # what there was

        def is_refused() -> bool:
            hold.grow(hold.output_tokens or 0)
            return hold.refusal is not None

        until(is_refused, WAIT_S)
        assert isinstance(hold.refusal, guard.GuardBudgetError)

    @pytest.mark.parametrize("transport_mode", ["auto", "http"])
    def test_a_hold_below_what_is_assumed_pays_for_less(
        self, start: Callable[..., GuardRuntime], tenant: Any, transport_mode: str
    ) -> None:
        tenant.admin.update_settings(unbounded_output="learned")
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")
        runtime = start(transport_mode=transport_mode)
        hold = runtime.requests.ask(inside(), RequestBound("openai", "gpt-4o", 10, None))
        assert hold.output_tokens == (10**7 - 10 * 2500) // 10_000, "of 4096, at these prices"

    def test_outside_of_any_scope_the_gateway_is_asked_too(self, leasing: GuardRuntime) -> None:
        outside = current_scope.get()
        assert outside.workflow_id == "default"
        assert leasing.requests.hold(outside, BOUND) is None
        leasing.requests.ask(outside, BOUND).settle(USED)

    def test_a_forbidden_model_is_refused(self, leasing: GuardRuntime, tenant: Any) -> None:
        tenant.admin.set_policy("p", models_block=[MODEL])
        with pytest.raises(Refusal) as refused:
            leasing.requests.ask(inside(), BOUND)
        assert isinstance(refused.value.error, guard.GuardError)
        assert MODEL in str(refused.value.error)

    def test_the_guess_of_its_call_is_released(self, leasing: GuardRuntime) -> None:
        before: list[int] = []
        after: list[int] = []

        @guard.protect
        def call() -> None:
            scope = current_scope.get()
            before.append(leasing.leases.totals().under_way)
            hold = leasing.requests.hold(scope, BOUND) or leasing.requests.ask(scope, BOUND)
            after.append(leasing.leases.totals().under_way)
            hold.settle(USED)

        with guard.workflow("w"):
            call()
        assert (before, after) == ([1], [1]), "the request's hold instead of the call's"
        assert leasing.leases.totals().under_way == 0


class TestReturning:
    def test_idle_money_goes_back(
        self, leasing: GuardRuntime, tenant: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")
        with guard.workflow("w"):
            work()
        assert leasing.status().leases == 1
        monkeypatch.setattr(book, "IDLE_S", 0.5)
        until(lambda: leasing.status().leases == 0, WAIT_S)
        until(lambda: reserved(tenant) == 0, WAIT_S)

    def test_the_end_returns_it_at_once(self, leasing: GuardRuntime, tenant: Any) -> None:
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")
        with guard.workflow("w"):
            work()
        assert reserved(tenant) > 0
        leasing.shutdown(WAIT_S)
        assert reserved(tenant) == 0
        assert leasing.status().decisions == "none"

    def test_another_process_gets_what_is_unused(
        self, leasing: GuardRuntime, tenant: Any, price: None
    ) -> None:
        """The gateway recalls it before it refuses."""
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")
        hold = leasing.requests.ask(inside(), RequestBound("openai", MODEL, 5_000, 4_500))
        hold.give_back()
        assert reserved(tenant) == 9_500_000
        import httpx

        reply = httpx.post(
            f"{tenant.url}/gate",
            headers={"X-API-Key": tenant.key, "X-Guard-Protocol": "3", "Idempotency-Key": "k"},
            json={
                "call_id": "c", "kind": "llm", "function": "openai", "model": MODEL, "tools": [],
                "workflow_id": "w", "max_input_tokens": 5_000, "max_output_tokens": 4_000,
            },
            timeout=120,
        )  # fmt: skip
        assert reply.status_code == 200, reply.text
        assert leasing.leases.totals().nanousd == 0

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_fork_starts_without_leases(self, leasing: GuardRuntime) -> None:
        with guard.workflow("w"):
            work()
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, bytes([leasing.leases.totals().leases]))
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 1) == b"\x00"
        os.close(reading)
        os.close(writing)
        assert leasing.leases.totals().leases == 1


def reserved(tenant: Any) -> int:
    """Return what is set aside on the workflow's budget."""
    balances = tenant.admin.request("GET", "/ledger")
    return sum(int(balance["reserved"]) for balance in balances)


class TestWithoutTheSocket:
    def test_over_http_each_has_a_reservation_of_its_own(
        self, start: Callable[..., GuardRuntime], tenant: Any, price: None
    ) -> None:
        runtime = start(transport_mode="http")
        scope = inside()
        hold = runtime.requests.hold(scope, BOUND) or runtime.requests.ask(scope, BOUND)
        assert hold.reservation_id is not None
        assert hold.output_tokens == 500
        assert runtime.status().leases == 0
        spend(runtime, hold, scope)
        runtime.flush()
        assert tenant.spent_nanousd("w") == COST // 2
        assert runtime.status().decisions == "http"

    def test_the_gateway_goes_and_comes(
        self, start: Callable[..., GuardRuntime], proxy: ChaosProxy, price: None
    ) -> None:
        runtime = able(start(api_url=proxy.url, timeout_ms=10_000))
        scope = inside()
        runtime.requests.ask(scope, BOUND).settle(USED)
        proxy.fault = "refuse"
        proxy.cut()
        until(lambda: runtime.requests.hold(scope, BOUND) is None, WAIT_S)
        with pytest.raises(Refusal) as refused:
            runtime.requests.ask(scope, BOUND)
        assert isinstance(refused.value.error, GuardTransportError)
        proxy.fault = "none"
        able(runtime)
        runtime.requests.ask(scope, BOUND).settle(USED)

    def test_in_open_mode_it_goes_on_without_cover(
        self, start: Callable[..., GuardRuntime], proxy: ChaosProxy, price: None
    ) -> None:
        runtime = able(start(api_url=proxy.url, timeout_ms=10_000, fallback_mode="open"))
        proxy.fault = "refuse"
        proxy.cut()
        hold = runtime.requests.ask(inside(), BOUND)
        assert hold.reservation_id is None
        assert hold.output_tokens is None
        hold.settle(USED)

    def test_a_question_survives_the_socket(
        self, start: Callable[..., GuardRuntime], proxy: ChaosProxy, price: None
    ) -> None:
        """It is asked again with the same key, and reserves once."""
        runtime = able(start(api_url=proxy.url, timeout_ms=60_000))
        session = runtime.link.session
        assert session is not None
        send = session.asks._send
        cut = threading.Event()

        def lose_the_answer(frame: bytes) -> bool:
            assert send is not None
            sent = send(frame)
            if not cut.is_set():
                cut.set()
                proxy.cut()
            return sent

        session.asks._send = lose_the_answer
        hold = runtime.requests.ask(inside(), BOUND)
        assert cut.is_set()
        assert hold.reservation_id is not None


class TestTheProcesssOwnWorkflow:
    @pytest.fixture
    def named(self, start: Callable[..., GuardRuntime], price: None) -> Iterator[GuardRuntime]:
        runtime = able(start(workflow="service"))
        yield runtime
        runtime.shutdown(WAIT_S)
        assert current_scope.get().workflow_id is None

    def test_requests_and_calls_belong_to_it(self, named: GuardRuntime, tenant: Any) -> None:
        work()
        scope = current_scope.get()
        assert scope.workflow_id == "service"
        spend(named, named.requests.ask(scope, BOUND), scope)
        named.flush()
        assert tenant.spent_nanousd("service") == COST // 2

    def test_a_refusal_is_a_public_error(self, named: GuardRuntime, tenant: Any) -> None:
        """No edge is around it that would make one of a carrier."""
        tenant.admin.set_budget(limit_cents=0, scope_kind="workflow", scope_id="service")
        with pytest.raises(guard.GuardBudgetError):
            named.requests.ask(current_scope.get(), BOUND)

    @pytest.mark.asyncio
    async def test_a_workflow_inside_is_its_own(self, named: GuardRuntime) -> None:
        async with guard.workflow("inner"):
            assert current_scope.get().workflow_id == "inner"
        await until_async(lambda: current_scope.get().workflow_id == "service")
