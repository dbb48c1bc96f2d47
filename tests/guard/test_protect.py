"""``@protect`` and ``@sensitive`` on every kind of callable, against the real gateway."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import guard
from guard.breaker.exceptions import GuardTransportError, WorkflowPausedException
from guard.runtime.runtime import GuardRuntime
from tests.guard.conftest import settled
from tests.support.proxy import ChaosProxy
from tests.support.waiting import until, until_async


@pytest.mark.usefixtures("runtime")
class TestKinds:
    def test_function(self) -> None:
        @guard.protect
        def double(number: int, *, add: int = 0) -> int:
            """Double it."""
            return number * 2 + add

        assert double(4, add=1) == 9
        assert double.__doc__ == "Double it."
        assert list(inspect.signature(double).parameters) == ["number", "add"]

    @pytest.mark.asyncio
    async def test_coroutine_function(self) -> None:
        @guard.protect
        async def double(number: int) -> int:
            await asyncio.sleep(0)
            return number * 2

        assert inspect.iscoroutinefunction(double)
        assert await double(4) == 8

    def test_generator_with_send_throw_and_return(self) -> None:
        seen: list[object] = []

        @guard.protect
        def echo() -> Iterator[Any]:
            try:
                seen.append((yield 1))
            except KeyError as exc:
                seen.append(exc)
            yield 2
            return "end"

        stream = echo()
        assert next(stream) == 1
        assert stream.send("hello") == 2  # type: ignore[attr-defined]
        with pytest.raises(StopIteration) as stop:
            next(stream)
        assert stop.value.value == "end"
        stream = echo()
        next(stream)
        assert stream.throw(KeyError("x")) == 2  # type: ignore[attr-defined]
        assert seen[0] == "hello"
        assert isinstance(seen[1], KeyError)

    @pytest.mark.asyncio
    async def test_async_generator(self) -> None:
        @guard.protect
        async def numbers() -> AsyncIterator[int]:
            for number in range(3):
                yield number

        assert inspect.isasyncgenfunction(numbers)
        assert [number async for number in numbers()] == [0, 1, 2]

    def test_methods_in_either_order(self) -> None:
        class Tools:
            @guard.protect
            def method(self) -> str:
                return "method"

            @classmethod
            @guard.protect
            def inner_class(cls) -> str:
                return cls.__name__

            @guard.protect
            @classmethod
            def outer_class(cls) -> str:
                return cls.__name__

            @staticmethod
            @guard.protect
            def inner_static() -> str:
                return "static"

            @guard.protect
            @staticmethod
            def outer_static() -> str:
                return "static"

        tools = Tools()
        assert tools.method() == "method"
        assert tools.inner_class() == Tools.outer_class() == "Tools"
        assert tools.inner_static() == Tools.outer_static() == "static"

    @pytest.mark.asyncio
    async def test_partials_and_callable_objects(self) -> None:
        class Adder:
            async def __call__(self, number: int) -> int:
                return number + 1

        async def add(one: int, two: int) -> int:
            return one + two

        assert await guard.protect(functools.partial(add, 1))(2) == 3
        assert await guard.protect(Adder())(2) == 3

    def test_not_a_callable(self) -> None:
        with pytest.raises(TypeError, match="callable"):
            guard.protect(3)  # type: ignore[type-var]

    def test_an_error_of_the_body_is_the_callers(self) -> None:
        @guard.protect
        def broken() -> None:
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            broken()


def test_generator_asks_when_iteration_begins_and_closes_when_abandoned(
    start: Callable[..., GuardRuntime],
) -> None:
    runtime = settled(start(flush_interval_ms=3_600_000))
    closed = []

    @guard.protect
    def numbers() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.append(True)

    before = len(runtime.events.buffer)
    stream = numbers()
    assert len(runtime.events.buffer) == before
    assert next(stream) == 0
    stream.close()  # type: ignore[attr-defined]
    assert closed == [True]
    assert len(runtime.events.buffer) == before + 1  # the closing event


class TestRefusals:
    def test_budget(self, runtime: GuardRuntime, tenant: Any) -> None:
        ran = []

        @guard.protect
        def call() -> None:
            ran.append(True)

        tenant.admin.set_price("m", input_per_mtok=10**12, output_per_mtok=10**12)
        tenant.admin.set_budget(limit_cents=1, scope_kind="workflow", scope_id="w")
        with guard.workflow("w"):
            call()
            guard.track_llm(100, 100, model="m")
            with pytest.raises(guard.GuardBudgetError) as refused:
                call()
        error = refused.value
        assert error.error_code == "GD-B004"
        assert error.status_code == 402
        assert error.workflow_id == "w"
        assert ran == [True]
        assert "limit" in guard.format_user_message(error)

    def test_blocked_tool_by_name_and_by_call_context(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        @guard.protect
        def delete_files() -> None:
            raise AssertionError("ran")

        @guard.protect
        def ask() -> None:
            raise AssertionError("ran")

        tenant.admin.set_policy("p", tools_block=["delete_*", "shell"])
        with pytest.raises(guard.GuardToolBlockedError) as refused:
            delete_files()
        assert refused.value.tool_name == "delete_files"
        with guard.span():  # the call context ends with it
            guard.set_call_context(model=None, tools=["search", "shell"])
            with pytest.raises(guard.GuardToolBlockedError) as refused:
                ask()
        assert refused.value.tool_name == "shell"

    def test_pause_and_resume(self, runtime: GuardRuntime, tenant: Any) -> None:
        @guard.protect
        def call() -> str:
            return "ran"

        tenant.admin.pause("w", reason="lunch", resume_after_ms=60_000)
        with guard.workflow("w"):
            with pytest.raises(WorkflowPausedException) as paused:
                call()
            assert paused.value.reason == "lunch"
            assert paused.value.resume_after is not None
            tenant.admin.resume("w")
        with guard.workflow("other"):
            assert call() == "ran"

    @pytest.mark.asyncio
    async def test_refusals_reach_async_callers(self, start: Any, tenant: Any) -> None:
        await asyncio.to_thread(start)

        @guard.protect
        async def call() -> None:
            raise AssertionError("ran")

        await asyncio.to_thread(tenant.admin.set_policy, "p", tools_block=["call"])
        with pytest.raises(guard.GuardToolBlockedError):
            await call()


class TestWithoutGateway:
    def test_closed_refuses(self, start: Callable[..., GuardRuntime]) -> None:
        start(api_url="http://127.0.0.1:1", timeout_ms=300)

        @guard.protect
        def call() -> None:
            raise AssertionError("ran")

        with pytest.raises(GuardTransportError) as refused:
            call()
        assert refused.value.retryable
        assert guard.status().state == "offline"

    def test_open_goes_on_but_not_for_sensitive(self, start: Callable[..., GuardRuntime]) -> None:
        start(api_url="http://127.0.0.1:1", timeout_ms=300, fallback_mode="open")

        @guard.protect
        def call() -> str:
            return "ran"

        @guard.sensitive
        @guard.protect
        def outside() -> None:
            raise AssertionError("ran")

        @guard.protect
        @guard.sensitive
        def inside() -> None:
            raise AssertionError("ran")

        assert call() == "ran"
        for dangerous in (outside, inside):
            with pytest.raises(GuardTransportError):
                dangerous()

    def test_a_gateway_that_comes_back(
        self, proxy: ChaosProxy, start: Callable[..., GuardRuntime]
    ) -> None:
        proxy.fault = "refuse"
        start(api_url=proxy.url)

        @guard.protect
        def call() -> str:
            return "ran"

        with pytest.raises(GuardTransportError):
            call()
        proxy.fault = "none"

        until(lambda: guard.status().control_channel == "websocket")
        assert call() == "ran"


@pytest.mark.asyncio
async def test_concurrent_coroutines_wait_together_and_the_loop_stays_free(
    proxy: ChaosProxy, start: Callable[..., GuardRuntime]
) -> None:
    """All five ask before one is answered, and the caller's loop runs meanwhile."""
    await asyncio.to_thread(start, api_url=proxy.url, transport_mode="http")

    @guard.protect
    async def call() -> str:
        return "ran"

    proxy.fault = "hang"
    calls = asyncio.gather(*(call() for _ in range(5)))
    await until_async(lambda: proxy.bytes_up.count(b"POST /gate ") == 5)
    assert not calls.done()
    proxy.fault = "none"
    assert await calls == ["ran"] * 5
