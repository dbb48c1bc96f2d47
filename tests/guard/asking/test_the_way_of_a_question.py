"""What must not be lost on the way of a question to the gateway and back."""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

import guard
from guard.breaker.exceptions import GuardRateLimitRedisError
from guard.breaker.refusals import Refusal
from guard.core import wire
from guard.core.events import InstrumentedCall
from guard.core.leases import request_subject
from guard.core.request_bound import RequestBound
from guard.core.usage import Usage
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import Entry, Scope
from guard.transport.replies import Reply
from tests.support.waiting import WAIT_S, until, until_async

MODEL: Final = "gpt-4o"
BOUND: Final = RequestBound("openai", MODEL, input_tokens=500, output_tokens=500)
WORST: Final = 1_000_000
"""Worst case of ``BOUND``, in nano-dollars."""


@guard.protect
def work() -> None:
    """Do nothing."""


@guard.protect
async def work_async() -> None:
    """Do nothing."""


class Wire:
    """What a runtime asks its gateway, over the socket and over HTTP.

    Attributes:
        over_socket, over_http: the questions' bodies. Top-ups, for which no call waits and which
            come when they are due, are left out.
        keys: of the questions over HTTP.
        is_holding: whether frames are kept here, as if they had been sent.
        kept: those frames.
    """

    def __init__(self, runtime: GuardRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
        assert runtime.link.session is not None
        self.asks, http = runtime.link.session.asks, runtime.link.session.client._http
        self.over_socket: list[dict[str, Any]] = []
        self.over_http: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.is_holding = False
        self.kept: list[bytes] = []
        self._send: Any = self.asks._send
        self._ask, self._send_http = self.asks.ask, http.send
        monkeypatch.setattr(self.asks, "_send", self._sent)
        monkeypatch.setattr(self.asks, "ask", self._asked)
        monkeypatch.setattr(http, "send", self._sent_over_http)

    def _asked(self, op: Any, key: str, body: bytes, answered: Any, wait_s: float) -> None:
        if op == "gate":
            _keep(self.over_socket, body)
        self._ask(op, key, body, answered, wait_s)

    def _sent(self, frame: bytes) -> bool:
        if self.is_holding:
            self.kept.append(frame)
            return True
        sent: bool = self._send(frame)
        return sent

    async def _sent_over_http(self, request: Any) -> Any:
        if request.endpoint == wire.GATE_PATH:
            body = request.body
            if request.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if _keep(self.over_http, body):
                self.keys.append(request.headers[wire.HEADER_IDEMPOTENCY])
        return await self._send_http(request)

    def let_go(self) -> None:
        """Send what was kept."""
        self.is_holding = False
        for frame in self.kept:
            self._send(frame)


def _keep(questions: list[dict[str, Any]], body: bytes) -> bool:
    question = msgspec.json.decode(body)
    is_top_up = (question.get("lease") or {}).get("ahead", False)
    if not is_top_up:
        questions.append(question)
    return not is_top_up


@pytest.fixture
def timeout_ms() -> int:
    """How long a question may take; more than any machine needs."""
    return 120_000


@pytest.fixture
def runtime(start: Callable[..., GuardRuntime], tenant: Any, timeout_ms: int) -> GuardRuntime:
    """One that may hold leases, and delivers nothing by itself."""
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)
    started = start(timeout_ms=timeout_ms, flush_interval_ms=3_600_000)
    until(lambda: started.link.session is not None and started.link.session.asks.can_lease, WAIT_S)
    return started


@pytest.fixture
def seen(runtime: GuardRuntime, monkeypatch: pytest.MonkeyPatch) -> Wire:
    return Wire(runtime, monkeypatch)


def test_buffered_events_travel_with_a_question(runtime: GuardRuntime, seen: Wire) -> None:
    with guard.workflow("w"):
        runtime.flush()
        session = runtime.link.session
        assert session is not None
        for number in range(3):
            guard.track_llm(number + 1, 1, model=MODEL)
        work()
        [question] = seen.over_socket
    counts = [event["data"]["input_tokens"] for event in question["events"]]
    assert counts == [1, 2, 3], "the ledger knows of them before it decides"


@pytest.mark.parametrize(
    ("loss", "timeout_ms"), [("no answer", 20_000), ("the socket is lost", 120_000)]
)
def test_a_question_goes_over_http_with_the_same_key_and_body(
    runtime: GuardRuntime, seen: Wire, loss: str
) -> None:
    """Half of its deadline it waits for the socket; a lost socket is noticed at once."""
    seen.is_holding = True
    if loss == "the socket is lost":

        def cut() -> None:
            until(lambda: seen.kept, WAIT_S)
            runtime._background.call_soon(seen.asks.closed)

        threading.Thread(target=cut).start()
    with guard.workflow("w"):
        guard.track_llm(7, 1, model=MODEL)
        work()
    [asked], [again], [key] = seen.over_socket, seen.over_http, seen.keys
    assert again == asked
    assert key == asked["call_id"]


def test_what_a_store_has_granted_that_failed_is_given_back(
    start: Callable[..., GuardRuntime], tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails while it commits: the call is refused, and nobody uses its money."""
    tenant.admin.set_price(MODEL, input_per_mtok=10**9, output_per_mtok=10**9)
    tenant.admin.set_budget(limit_nanousd=10 * WORST)
    runtime = start(transport_mode="http", timeout_ms=120_000)
    with guard.workflow("w"):
        work()
    assert runtime.link.session is not None
    http = runtime.link.session.client._http
    send, granted = http.send, list[int]()

    async def failed(request: Any) -> Any:
        reply = await send(request)
        if request.endpoint != wire.GATE_PATH or granted:
            return reply
        granted.append(tenant.admin.ledger()[0]["reserved"])
        problem = {"error_code": "GD-R002", "title": "RATE_LIMIT_STORE", "status": 503}
        return Reply(reply.endpoint, 503, msgspec.json.encode(problem), now_s=time.time())

    monkeypatch.setattr(http, "send", failed)
    scope = Scope(workflow_id="w", run_id="r", entry=Entry(Scope()))
    with pytest.raises(Refusal) as refused:
        runtime.requests.ask(scope, BOUND)
    assert isinstance(refused.value.error, GuardRateLimitRedisError)
    assert granted == [WORST]
    until(lambda: not tenant.admin.ledger()[0]["reserved"], WAIT_S)
    assert tenant.admin.ledger()[0]["committed"] == 0
    assert tenant.admin.doubts() == []


def test_unread_answers_are_read_before_the_gateway_is_asked(
    runtime: GuardRuntime, tenant: Any
) -> None:
    """They hold more than they cost, and without that money there is no room."""
    heard = runtime.enforcement.control.seq
    tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=WORST + WORST // 2)
    # A lease whose grant crosses the news of the budget covers nothing.
    until(lambda: runtime.enforcement.control.seq > heard, WAIT_S)
    scope = Scope(workflow_id="w", run_id="r", entry=Entry(Scope()))
    first = runtime.requests.ask(scope, BOUND)

    class Answer:
        def read(self, call: InstrumentedCall) -> None:
            first.settle(Usage(model=MODEL, input_tokens=250, output_tokens=250))

    runtime.instrumentation._unread.calls.append(InstrumentedCall("openai", 1.0, Answer()))
    second = runtime.requests.ask(scope, BOUND)
    assert second.reservation_id == first.reservation_id
    rates = runtime.leases.rates(("w", None, None, None, MODEL), request_subject("openai"))
    assert rates is not None


@pytest.mark.asyncio
async def test_what_a_cancelled_caller_was_granted_goes_back(
    runtime: GuardRuntime, seen: Wire
) -> None:
    seen.is_holding = True

    async def ask() -> None:
        with guard.workflow("w"):
            await work_async()

    caller = asyncio.create_task(ask())
    await until_async(lambda: bool(seen.kept), WAIT_S)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    seen.let_go()
    await until_async(lambda: runtime.leases.totals().leases == 1, WAIT_S)
    await until_async(lambda: runtime.leases.totals().under_way == 0, WAIT_S)


def test_a_fork_forgets_its_parents_callers(runtime: GuardRuntime, seen: Wire) -> None:
    seen.is_holding = True
    caller = threading.Thread(target=_ask)
    caller.start()
    until(lambda: seen.kept, WAIT_S)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        courier = runtime.gate._courier
        os.write(writing, bytes([len(courier.inbox) + len(courier._desk._lines)]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == b"\x00"
    os.close(reading)
    os.close(writing)
    assert runtime.gate._courier._desk._lines, "its parent still waits"
    seen.let_go()
    caller.join(WAIT_S)
    assert not caller.is_alive()


def _ask() -> None:
    with guard.workflow("w"):
        work()


@pytest.mark.asyncio
async def test_thousands_that_wait_in_one_line_are_refused_at_once(runtime: GuardRuntime) -> None:
    """Each refusal makes the desk ask for the next one: that must not go deeper and deeper."""
    session = runtime.link.session
    assert session is not None
    session.client._retry_after.set(wire.GATE_PATH, 300.0, now_s=time.monotonic())

    async def ask() -> object:
        with guard.workflow("w"):
            try:
                return await work_async()
            except guard.RateLimitError as exc:
                return exc

    outcomes = await asyncio.gather(*(ask() for _ in range(3000)))
    assert all(isinstance(each, guard.RateLimitError) for each in outcomes)
    assert not runtime.gate._courier._desk._lines
