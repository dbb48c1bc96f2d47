"""Thousands of callers at once, and callers that lose their patience."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import guard
from guard.breaker.exceptions import GuardTransportError
from guard.core import wire
from guard.loop import Admission, AdmissionError, BackgroundLoop, Concurrency
from guard.runtime.runtime import GuardRuntime
from guard.transport.http import GatewayHttp
from tests.guard.delivery.conftest import Answer, Scripted, against, scripted  # noqa: F401
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.proxy import ChaosProxy
from tests.support.waiting import WAIT_S, until, until_async


@guard.protect
async def nothing() -> None:
    """Ask the gate, and do nothing."""


@guard.protect
def nothing_sync() -> None:
    """Ask the gate, and do nothing."""


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[GatewayProcess]:
    """A gateway that does not compete with the crowd for the interpreter."""
    with gateway_process() as running:
        yield running


@pytest.fixture
def crowded(elsewhere: GatewayProcess) -> GuardRuntime:
    """A runtime that hears this gateway's kills at once, and asks it over HTTP."""
    runtime = GuardRuntime(elsewhere.key, elsewhere.url, timeout_ms=60_000).open()
    until(lambda: runtime.status().control_channel == "websocket", WAIT_S)
    assert runtime.link.session is not None
    runtime.link.session.asks.supports(False)
    return runtime


class TestThousandsAtOnce:
    @pytest.mark.asyncio
    @pytest.mark.parametrize("tasks", [2000, pytest.param(10_000, marks=pytest.mark.long)])
    async def test_each_gets_an_answer_or_a_refusal_and_the_client_stays_well(
        self,
        crowded: GuardRuntime,
        elsewhere: GatewayProcess,
        tasks: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Its own queue is not held against the gateway, and a kill does not wait in it."""
        most_tasks = 0
        left = tasks
        left_at_kill = 0
        seen, heard = threading.Event(), threading.Event()
        send, sent = GatewayHttp.send, itertools.count(1)

        async def paced(http: GatewayHttp, request: Any) -> Any:
            """Some are sent once the crowd was seen, the others once the kill was heard."""
            if request.endpoint == wire.GATE_PATH:
                may_go = seen if next(sent) <= 300 else heard
                while not may_go.is_set():
                    await asyncio.sleep(0.01)
            return await send(http, request)

        monkeypatch.setattr(GatewayHttp, "send", paced)

        async def one() -> object:
            nonlocal left
            try:
                return await nothing()
            except GuardTransportError as exc:
                return exc
            finally:
                left -= 1

        def look() -> None:
            nonlocal most_tasks
            found = asyncio.all_tasks(crowded._background.start())
            most_tasks = max(most_tasks, len(found))

        def kill() -> None:
            nonlocal left_at_kill
            until(lambda: len(crowded.gate._courier._admission) > 1000, WAIT_S)
            look()
            seen.set()
            elsewhere.admin.kill("another")
            until(lambda: "another" in crowded.enforcement.control.kills.exact, WAIT_S)
            left_at_kill = left
            look()
            heard.set()

        killing = asyncio.get_running_loop().run_in_executor(None, kill)
        results = await asyncio.gather(*(one() for _ in range(tasks)))
        await killing
        assert left_at_kill > 0, "the kill was heard while callers were waiting"
        assert results.count(None) >= 100
        sources = {each.source for each in results if isinstance(each, GuardTransportError)}
        assert sources <= {"NETWORK_ERROR"}
        assert 0 < most_tasks < 100, "who waits is no task of the loop"
        assert crowded.status().breaker == "closed"
        await nothing()

    def test_threads_are_served_in_their_turn(self, crowded: GuardRuntime) -> None:
        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            for done in [pool.submit(nothing_sync) for _ in range(1000)]:
                done.result(WAIT_S)
        assert crowded.status().breaker == "closed"


class TestTheDeadlineOfTheGateway:
    def test_what_is_sent_late_does_not_open_the_circuit(
        self,
        against: Callable[..., GuardRuntime],  # noqa: F811
        scripted: Scripted,  # noqa: F811
    ) -> None:
        """A request that has waited in this process gets what is left; too little is no proof."""
        runtime = against(timeout_ms=400, transport_mode="websocket")
        scripted.answer = lambda path, body: Answer(hang=True) if path == "/gate" else None
        session = until(lambda: runtime.link.session, WAIT_S)
        assert session is not None
        request = wire.GateRequest(call_id="c", kind="call", function="f")
        for _ in range(10):
            with pytest.raises(GuardTransportError, match="no answer"):
                runtime._background.run(lambda: session.client.gate(request, deadline_s=0.01))
        assert runtime.status().breaker == "closed"
        asked = 0
        # One that this process is late to notice counts for nothing.
        while runtime.status().breaker == "closed":
            with pytest.raises(GuardTransportError, match="no answer"):
                runtime._background.run(lambda: session.client.gate(request, deadline_s=0.4))
            asked += 1
        assert asked >= 5


Admit = Callable[..., Admission]


@pytest.fixture
def admit() -> Iterator[Admit]:
    """Makes the admission of two at a time to a loop that ends with the test."""
    background = BackgroundLoop()

    def made(wait_s: float = WAIT_S, waiting_max: int = 10) -> Admission:
        two = Concurrency(WAIT_S, least=2, most=2)
        return Admission(background, concurrency=two, waiting_max=waiting_max, wait_s=wait_s)

    yield made
    background.close()


class TestAdmission:
    def test_first_come_first_served_and_never_more_than_may_run(self, admit: Admit) -> None:
        admission = admit()
        go = threading.Event()
        running: list[int] = []
        most: list[int] = []
        order: list[int] = []

        async def work(number: int) -> int:
            order.append(number)
            running.append(number)
            most.append(len(running))
            while not go.is_set():
                await asyncio.sleep(0.001)
            running.remove(number)
            return number

        futures = [admission.submit(lambda n=n: work(n)) for n in range(10)]  # type: ignore[misc]
        assert len(admission) == 8
        until(lambda: len(running) == 2)
        go.set()
        assert [each.result(WAIT_S) for each in futures] == list(range(10))
        assert max(most) == 2
        assert order == sorted(order)

    def test_too_many_and_too_long(self, admit: Admit) -> None:
        wait_s = 2.0
        admission = admit(wait_s=wait_s, waiting_max=1)
        end = threading.Event()
        ran: list[str] = []

        async def work(name: str = "") -> None:
            ran.append(name)
            while not end.is_set():
                await asyncio.sleep(0.001)

        running = [admission.submit(work) for _ in range(2)]
        late = admission.submit(lambda: work("late"))
        with pytest.raises(AdmissionError, match="waiting already"):
            admission.submit(work)
        with pytest.raises(TimeoutError):
            late.result(wait_s)
        assert not late.started
        end.set()
        for each in running:
            each.result(WAIT_S)
        admission.submit(work).result(WAIT_S)
        assert "late" not in ran, "its caller has given up, or is about to"

    def test_a_failure_gives_its_place_back_as_well(self, admit: Admit) -> None:
        admission = admit()

        async def fails() -> None:
            raise LookupError

        for each in [admission.submit(fails) for _ in range(10)]:
            with pytest.raises(LookupError):
                each.result(WAIT_S)
        assert not len(admission)

    def test_who_leaves_the_line_is_never_run(self, admit: Admit) -> None:
        admission = admit()
        go = threading.Event()
        ran: list[str] = []

        async def work(name: str) -> None:
            ran.append(name)
            while not go.is_set():
                await asyncio.sleep(0.001)

        first = [admission.submit(lambda: work("first")) for _ in range(2)]
        waiting = admission.submit(lambda: work("waiting"))
        last = admission.submit(lambda: work("last"))
        assert waiting.cancel()
        go.set()
        for each in [*first, last]:
            each.result(WAIT_S)
        assert ran == ["first", "first", "last"]

    def test_who_is_dismissed_is_told_and_who_runs_goes_on(self, admit: Admit) -> None:
        admission = admit()
        go = threading.Event()
        ran: list[str] = []

        async def work(name: str) -> str:
            ran.append(name)
            while not go.is_set():
                await asyncio.sleep(0.001)
            return name

        first = [admission.submit(lambda: work("first")) for _ in range(2)]
        waiting = [admission.submit(lambda: work("waiting")) for _ in range(3)]
        admission.dismiss()
        assert all(each.cancelled() for each in waiting)
        assert not len(admission)
        go.set()
        assert [each.result(WAIT_S) for each in first] == ["first", "first"]
        assert admission.submit(lambda: work("next")).result(WAIT_S) == "next"
        assert ran == ["first", "first", "next"]

    def test_a_result_that_nobody_waits_for_is_told(self, admit: Admit) -> None:
        admission = admit()
        go, told, started = threading.Event(), threading.Event(), threading.Event()
        results: list[str] = []

        async def work() -> str:
            started.set()
            while not go.is_set():
                await asyncio.sleep(0.001)
            return "granted"

        def abandoned(result: str) -> None:
            results.append(result)
            told.set()

        future = admission.submit(work, abandoned)
        assert started.wait(WAIT_S)
        assert future.cancel()
        go.set()
        assert told.wait(WAIT_S)
        assert results == ["granted"]


class TestImpatientCallers:
    """A caller that is cancelled while it waits leaves no reservation behind."""

    @pytest.fixture
    def slow(
        self, proxy: ChaosProxy, tenant: Any, start: Callable[..., GuardRuntime]
    ) -> GuardRuntime:
        tenant.admin.set_budget(100)
        runtime = start(api_url=proxy.url, timeout_ms=20_000)
        with guard.workflow("w"):
            nothing_sync()  # the connection stands
        proxy.fault = "hang"  # the gateway decides, and its answer comes when the caller has gone
        return runtime

    @staticmethod
    def reserved(tenant: Any) -> int:
        return int(sum(each["reserved_nanousd"] for each in tenant.admin.request("GET", "/ledger")))

    @pytest.mark.asyncio
    async def test_in_a_task(self, slow: GuardRuntime, tenant: Any, proxy: ChaosProxy) -> None:
        async def call() -> None:
            with guard.workflow("w"):
                await nothing()

        tasks = [asyncio.create_task(call()) for _ in range(3)]
        await until_async(lambda: self.reserved(tenant) > 0, WAIT_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        proxy.fault = "none"
        await until_async(lambda: self.reserved(tenant) == 0, WAIT_S)

    def test_in_a_thread_that_a_kill_ends(
        self, slow: GuardRuntime, tenant: Any, proxy: ChaosProxy
    ) -> None:
        raised: list[BaseException] = []

        def call() -> None:
            with guard.workflow("w"):
                try:
                    nothing_sync()
                except BaseException as exc:
                    raised.append(exc)

        thread = threading.Thread(target=call)
        thread.start()
        until(lambda: self.reserved(tenant) > 0, WAIT_S)
        slow._background.call_soon(
            slow.enforcement.apply, wire.ControlMessage(seq=9**9, type="kill", workflow_id="w")
        )
        thread.join(WAIT_S)
        assert [type(each) for each in raised] == [guard.WorkflowKilledInterrupt]
        proxy.fault = "none"
        until(lambda: self.reserved(tenant) == 0, WAIT_S)
