"""Many callers at once before there is a socket: who waits for HTTP moves to it when it opens.

The generator: every kind of caller at every moment at which there is no socket. Questions over HTTP
are held back before they leave, so only the socket can bring the answers.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, cast

import httpx
import pytest

import guard
from guard.core import wire
from guard.runtime import active_runtime
from guard.runtime.runtime import GuardRuntime
from guard.session import session
from guard.transport.http import GatewayHttp
from tests.support.llm_vendor import vendor_process
from tests.support.proxy import ChaosProxy
from tests.support.waiting import WAIT_S, until

CALLS: Final = 200
SOCKET: Final = b"GET /api/v1/control/ws"

Call = Callable[[int], Coroutine[Any, Any, object]]


@guard.protect
async def work() -> None:
    """Do nothing."""


@guard.protect
def work_in_a_thread() -> None:
    """Do nothing."""


@guard.sensitive
@guard.protect
async def sensitive() -> None:
    """Do nothing, by a fresh decision."""


async def alike(number: int) -> None:
    with guard.workflow("w"):
        await work()


async def apart(number: int) -> None:
    with guard.workflow(f"w-{number}"):
        await work()


async def fresh(number: int) -> None:
    with guard.workflow("w"):
        await sensitive()


@pytest.fixture(scope="module")
def vendor() -> Iterator[str]:
    with vendor_process() as url:
        yield url


class Burst:
    """Callers of one process, all at once, in a thread of their own.

    Attributes:
        outcomes: of those that were answered: None, or why they were refused.
    """

    def __init__(self, run: Callable[[Burst], object]) -> None:
        self.outcomes: list[BaseException | None] = []
        self._thread = threading.Thread(target=run, args=(self,))
        self._thread.start()

    async def tasks(self, call: Call) -> None:
        async def one(number: int) -> None:
            with self._noting():
                await call(number)

        await asyncio.gather(*map(one, range(CALLS)))

    def threads(self, call: Callable[[], object]) -> None:
        def one() -> None:
            with self._noting():
                call()

        with concurrent.futures.ThreadPoolExecutor(CALLS) as pool:
            for _ in range(CALLS):
                pool.submit(one)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:
            self.outcomes.append(exc)
        else:
            self.outcomes.append(None)

    @property
    def waiting(self) -> int:
        """How many wait for HTTP without having been sent."""
        return len(_courier()._admission)

    @property
    def under_way(self) -> int:
        """How many are under way over HTTP."""
        return _courier().asking

    @property
    def is_complete(self) -> bool:
        """Whether all have asked."""
        return active_runtime() is not None and (
            len(self.outcomes) + self.waiting + self.under_way == CALLS
        )

    def end(self) -> None:
        self._thread.join(WAIT_S)
        assert self.outcomes == [None] * CALLS


def _courier() -> Any:
    return cast("GuardRuntime", active_runtime()).gate._courier


def _tasks(call: Call) -> Callable[[Burst], object]:
    return lambda burst: asyncio.run(burst.tasks(call))


def _threads(burst: Burst) -> None:
    burst.threads(work_in_a_thread)


@pytest.fixture(params=["alike", "apart", "fresh", "threads", "llm"])
def callers(request: pytest.FixtureRequest) -> Callable[[Burst], object]:
    """Each kind of caller: one lane, a lane each, no lane, blocking ones, LLM requests."""
    if request.param == "threads":
        return _threads
    if request.param == "llm":
        return _tasks(_llm(request.getfixturevalue("vendor")))
    return _tasks({"alike": alike, "apart": apart, "fresh": fresh}[request.param])


def _llm(vendor: str) -> Call:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}

    async def ask(number: int) -> None:
        async with httpx.AsyncClient() as client:
            with guard.workflow("w"):
                answer = await client.post(f"{vendor}/v1/chat/completions", json=body)
        assert answer.status_code == 200

    return ask


@pytest.fixture
def http_may_go(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Holds back questions over HTTP until it is set."""
    go, send = threading.Event(), GatewayHttp.send

    async def held(http: GatewayHttp, request: Any) -> Any:
        while request.endpoint == wire.GATE_PATH and not go.is_set():
            await asyncio.sleep(0.01)
        return await send(http, request)

    monkeypatch.setattr(GatewayHttp, "send", held)
    return go


@pytest.fixture
def proxied(tenant: Any, proxy: ChaosProxy, monkeypatch: pytest.MonkeyPatch) -> ChaosProxy:
    """The way to a gateway at which money is set aside for each call."""
    tenant.admin.set_budget(1_000_000)
    monkeypatch.setattr(session, "_RETURN_S", WAIT_S)  # else a slow gateway gets no lease back
    monkeypatch.setenv("GUARD_API_KEY", tenant.key)
    monkeypatch.setenv("GUARD_API_URL", proxy.url)
    return proxy


@pytest.mark.parametrize("moment", ["before init", "after init", "between two sockets"])
def test_a_burst_without_a_socket_is_not_refused(
    moment: str,
    callers: Callable[[Burst], object],
    tenant: Any,
    proxied: ChaosProxy,
    http_may_go: threading.Event,
) -> None:
    if moment != "between two sockets":
        proxied.holds = (SOCKET,)
    if moment != "before init":
        guard.init()
    if moment == "between two sockets":
        until(lambda: guard.status().decisions == "socket")
        proxied.holds = (SOCKET,)
        proxied.cut()
        until(lambda: guard.status().control_channel != "websocket")
    _answered_over_the_socket(Burst(callers), proxied, http_may_go)
    _nothing_is_left_over(tenant)


def test_questions_whose_answers_were_lost_are_asked_again_over_the_next_socket(
    tenant: Any, proxied: ChaosProxy, http_may_go: threading.Event
) -> None:
    runtime = guard.init()
    until(lambda: guard.status().decisions == "socket")
    session = runtime.link.session
    assert session is not None
    proxied.fault = "hang"
    burst = Burst(_tasks(fresh))
    until(lambda: len(session.asks) == CALLS)
    until(lambda: _reserved(tenant) > 0)  # the gateway has decided
    proxied.holds = (SOCKET,)
    proxied.cut()
    proxied.fault = "none"
    _answered_over_the_socket(burst, proxied, http_may_go)
    _nothing_is_left_over(tenant)


def _answered_over_the_socket(
    burst: Burst, proxied: ChaosProxy, http_may_go: threading.Event
) -> None:
    until(lambda: burst.is_complete)
    proxied.holds = ()
    until(lambda: not burst.waiting)
    until(lambda: len(burst.outcomes) + burst.under_way == CALLS)
    http_may_go.set()
    burst.end()


def _nothing_is_left_over(tenant: Any) -> None:
    guard.shutdown(WAIT_S)
    assert _reserved(tenant) == 0, "what was asked twice was granted once"
    assert guard.status().events_lost == 0


def _reserved(tenant: Any) -> int:
    return int(sum(each["reserved_nanousd"] for each in tenant.admin.request("GET", "/ledger")))
