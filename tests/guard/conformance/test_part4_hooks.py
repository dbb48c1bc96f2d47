"""Spec part 4: ``on_error``; part 2: ErrorContext."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import guard
from guard import ErrorContext, GuardRuntime
from guard.breaker.exceptions import (
    BreakerTransportError,
    GuardAuthError,
    GuardError,
    GuardTransportError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from tests.support.waiting import until

Seen = list[tuple[GuardError, ErrorContext]]


@pytest.fixture
def seen() -> Iterator[Seen]:
    """Every error that a hook was told of, with its context."""
    told: Seen = []
    unregister = guard.on_error(lambda error, context: told.append((error, context)))
    yield told
    unregister()


@guard.protect
def step() -> str:
    return "ran"


class TestRegistration:
    @pytest.mark.usefixtures("runtime")
    def test_hooks_fire_in_registration_order(self, tenant: Any) -> None:
        """Part 4, on_error: in registration order."""
        order: list[int] = []
        for number in range(5):
            guard.on_error(lambda _e, _c, number=number: order.append(number))
        tenant.admin.set_policy("p", tools_block=["step"])
        with pytest.raises(GuardError):
            step()
        assert order == [0, 1, 2, 3, 4]

    @pytest.mark.usefixtures("runtime")
    def test_hooks_fire_before_the_exception_propagates(self, tenant: Any, seen: Seen) -> None:
        """Part 4, on_error: before the exception propagates, with that exception."""
        tenant.admin.set_policy("p", tools_block=["step"])
        when: list[list[GuardError]] = []

        def attempt() -> None:
            try:
                step()
            finally:
                when.append([error for error, _ in seen])

        with pytest.raises(GuardError) as raised:
            attempt()
        assert when == [[raised.value]]

    @pytest.mark.usefixtures("runtime")
    def test_exceptions_in_a_hook_are_caught_and_logged_at_debug_level(
        self, tenant: Any, seen: Seen, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Part 4, on_error: exceptions in a hook are caught and logged at debug level."""

        def broken(_error: GuardError, _context: ErrorContext) -> None:
            raise LookupError("the hook's own")

        guard.on_error(broken)
        last: list[GuardError] = []
        guard.on_error(lambda error, _context: last.append(error))
        tenant.admin.set_policy("p", tools_block=["step"])
        with (
            caplog.at_level(logging.DEBUG, logger="guard"),
            pytest.raises(guard.GuardToolBlockedError),
        ):
            step()
        assert len(seen) == len(last) == 1
        records = [r for r in caplog.records if r.exc_info and r.exc_info[0] is LookupError]
        assert [record.levelno for record in records] == [logging.DEBUG]

    @pytest.mark.usefixtures("runtime")
    def test_returns_an_idempotent_unregister_callable(self, tenant: Any) -> None:
        """Part 4, on_error: returns an idempotent unregister callable."""
        told: list[str] = []

        def hook(_error: GuardError, _context: ErrorContext) -> None:
            told.append("hook")

        first, second = guard.on_error(hook), guard.on_error(hook)
        first()
        first()
        tenant.admin.set_policy("p", tools_block=["step"])
        with pytest.raises(GuardError):
            step()
        assert told == ["hook"]  # the second registration is one of its own
        second()
        with pytest.raises(GuardError):
            step()
        assert told == ["hook"]

    def test_something_that_cannot_be_called_is_refused(self) -> None:
        """Part 4, on_error: registers a hook."""
        with pytest.raises(TypeError):
            guard.on_error("not a hook")  # type: ignore[arg-type]

    @pytest.mark.usefixtures("runtime")
    def test_the_hook_is_global(self, tenant: Any, seen: Seen) -> None:
        """Part 4, on_error: a global hook, for every thread."""
        tenant.admin.set_policy("p", tools_block=["step"])

        def attempt(_: int) -> None:
            with pytest.raises(GuardError):
                step()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(attempt, range(8)))
        assert len(seen) == 8


class TestEveryPath:
    def test_init_without_a_key(self, seen: Seen) -> None:
        """Part 4, on_error: for every GuardError; stage init."""
        with pytest.raises(GuardError) as refused:
            guard.init()
        assert [(e, c.stage) for e, c in seen] == [(refused.value, "init")]

    def test_init_with_a_rejected_key(self, tenant: Any, seen: Seen) -> None:
        """Part 4, on_error: stage init."""
        with pytest.raises(GuardAuthError) as refused:
            guard.init("gdk_unknown", tenant.url)
        assert [(e, c.stage) for e, c in seen] == [(refused.value, "init")]

    def test_init_or_die(self, seen: Seen) -> None:
        """Part 4, on_error: before the message and the exit."""
        with pytest.raises(SystemExit):
            guard.init_or_die()
        assert [(e.error_code, c.stage) for e, c in seen] == [("GD-C001", "init")]

    def test_a_bad_setting(self, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
        """Part 4, on_error: stage init."""
        monkeypatch.setenv("GUARD_BATCH_SIZE", "x")
        with pytest.raises(GuardError):
            guard.init("gdk_key")
        assert [(e.error_code, c.stage) for e, c in seen] == [("GD-C003", "init")]

    def test_the_constructor(self, seen: Seen) -> None:
        """Part 4, on_error: a runtime that is made directly."""
        with pytest.raises(GuardError):
            GuardRuntime()
        assert [(e.error_code, c.stage) for e, c in seen] == [("GD-C001", "init")]

    @pytest.mark.asyncio
    async def test_start(self, tenant: Any, seen: Seen) -> None:
        """Part 4, on_error: ``await GuardRuntime.start()``."""
        with pytest.raises(GuardError):
            await GuardRuntime.start("gdk_unknown", tenant.url)
        assert [(e.error_code, c.stage) for e, c in seen] == [("GD-A003", "init")]

    @pytest.mark.usefixtures("runtime")
    def test_gate(self, tenant: Any, seen: Seen) -> None:
        """Part 4, on_error: stage gate, with the workflow and the tool."""
        tenant.admin.set_policy("p", tools_block=["step"])
        with guard.workflow("w"), pytest.raises(GuardError) as refused:
            step()
        ((error, context),) = seen  # once, although the workflow's boundary saw it too
        assert error is refused.value
        assert (context.stage, context.workflow_id, context.tool_name) == ("gate", "w", "step")

    @pytest.mark.usefixtures("runtime")
    @pytest.mark.asyncio
    async def test_gate_of_a_coroutine(self, tenant: Any, seen: Seen) -> None:
        """Part 4, on_error: asynchronous calls as well."""

        @guard.protect
        async def call() -> None: ...

        await asyncio.to_thread(tenant.admin.set_policy, "p", tools_block=["call"])
        with pytest.raises(GuardError):
            await call()
        assert [context.stage for _, context in seen] == ["gate"]

    @pytest.mark.usefixtures("runtime")
    def test_pause(self, tenant: Any, seen: Seen) -> None:
        """Part 4, on_error: for every GuardError subclass; WorkflowPausedException is one."""
        tenant.admin.pause("w")
        with guard.workflow("w"), pytest.raises(WorkflowPausedException):
            step()
        assert [type(error) for error, _ in seen] == [WorkflowPausedException]

    def test_gate_without_a_gateway(self, start: Callable[..., GuardRuntime], seen: Seen) -> None:
        """Part 4, on_error: transport errors."""
        start(api_url="http://127.0.0.1:1", timeout_ms=200)
        with pytest.raises(GuardTransportError) as refused:
            step()
        assert (refused.value, "gate") in [(e, c.stage) for e, c in seen]

    def test_gate_without_a_gateway_that_goes_on(
        self, start: Callable[..., GuardRuntime], seen: Seen
    ) -> None:
        """Part 4, on_error (semantics, fallback): a call that goes on is not silent."""
        start(api_url="http://127.0.0.1:1", timeout_ms=200, fallback_mode="open")
        assert step() == "ran"
        assert "gate" in [context.stage for _, context in seen]

    def test_lazy_initialisation_by_protect(self, run_python: Callable[..., Any]) -> None:
        """Part 4, on_error: a protected call that cannot initialise."""
        ran = run_python(
            """
            import guard
            guard.on_error(lambda error, context: print(error.error_code, context.stage))

            @guard.protect
            def step(): ...

            try:
                step()
            except guard.GuardError:
                pass
            """
        )
        assert ran.stdout.splitlines() == ["GD-C001 init"], ran.stderr

    def test_track_without_a_key(self, run_python: Callable[..., Any]) -> None:
        """Part 4, on_error: track functions."""
        ran = run_python(
            """
            import guard
            guard.on_error(lambda error, context: print(error.error_code, context.stage))
            for track in (lambda: guard.track_llm(1), lambda: guard.track_tool("a"),
                          lambda: guard.track_event("a")):
                try:
                    track()
                except guard.GuardError:
                    pass
            """
        )
        told = ran.stdout.splitlines()
        assert [line.split()[0] for line in told] == ["GD-C001"] * 3, ran.stderr
        assert {line.split()[1] for line in told} <= {"init", "track"}

    def test_status_before_init(self, run_python: Callable[..., Any]) -> None:
        """Part 4, on_error: the config error of ``status()`` is a GuardError as well."""
        ran = run_python(
            """
            import guard
            guard.on_error(lambda error, context: print(error.error_code, context.stage))
            try:
                guard.status()
            except guard.GuardConfigError:
                pass
            """
        )
        assert ran.stdout.splitlines() == ["GD-C002 status"], ran.stderr

    def test_flush_that_is_asked_for(
        self, scripted: Any, scripted_runtime: GuardRuntime, seen: Seen
    ) -> None:
        """Part 4, on_error: stage flush."""
        scripted.answer("/api/v1/events", 401, {"error_code": "GD-A003"})
        guard.track_tool("search")
        with pytest.raises(BreakerTransportError):
            scripted_runtime.flush()
        until(lambda: seen)  # the hooks have a thread of their own
        assert [(type(e), c.stage) for e, c in seen] == [(GuardAuthError, "flush")]

    def test_flush_in_the_background(
        self, scripted: Any, start: Callable[..., GuardRuntime], seen: Seen
    ) -> None:
        """Part 4, on_error: stage flush, where nobody is there to catch the error."""
        start(api_url=scripted.url, transport_mode="http", flush_interval_ms=20)
        scripted.answer("/api/v1/events", 401, {"error_code": "GD-A003"})
        guard.track_tool("search")
        until(lambda: seen)
        assert (type(seen[0][0]), seen[0][1].stage) == (GuardAuthError, "flush")

    def test_over_budget_commit(
        self, scripted: Any, scripted_runtime: GuardRuntime, seen: Seen
    ) -> None:
        """Part 6 and 7: a 422 is GuardConsumeOverbudgetError; the hooks hear of it."""
        scripted.answer(
            "/api/v1/events",
            422,
            {"accepted": 1, "error_code": "GD-O001", "workflow_id": "w", "reason": "over"},
        )
        guard.track_llm(1, 1)
        scripted_runtime.flush()
        until(lambda: seen)
        assert [(e.error_code, c.stage) for e, c in seen] == [("GD-O001", "flush")]

    def test_shutdown(self, scripted: Any, scripted_runtime: GuardRuntime, seen: Seen) -> None:
        """Part 4, on_error: while shutting down."""
        scripted.answer("/api/v1/events", 401, {"error_code": "GD-A003"})
        guard.track_tool("search")
        with pytest.raises(BreakerTransportError):
            guard.shutdown()
        until(lambda: seen)
        assert [type(error) for error, _ in seen] == [GuardAuthError]
        assert {context.stage for _, context in seen} <= {"flush", "shutdown"}

    @pytest.mark.usefixtures("runtime")
    def test_a_guard_error_of_the_body(self, seen: Seen) -> None:
        """Part 4, on_error: one that the body itself raises; once, through every boundary."""

        @guard.protect
        def inner() -> None:
            raise guard.GuardError("mine")

        @guard.protect
        def outer() -> None:
            inner()

        with guard.workflow("w"), pytest.raises(GuardError) as raised:
            outer()
        assert [(e, c.stage) for e, c in seen] == [(raised.value, "call")]


class TestNever:
    @pytest.mark.usefixtures("runtime")
    def test_for_the_interrupt_before_the_call(self, tenant: Any, seen: Seen) -> None:
        """Part 4, on_error: does not fire for WorkflowKilledInterrupt."""
        tenant.admin.kill("w")
        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            step()
        assert seen == []

    def test_for_the_interrupt_in_mid_call(
        self, runtime: GuardRuntime, tenant: Any, seen: Seen
    ) -> None:
        """Part 4, on_error: does not fire for WorkflowKilledInterrupt."""
        until(lambda: guard.status().control_channel == "websocket")

        @guard.protect
        def body() -> None:
            tenant.admin.kill("w")
            until(lambda: False)

        with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
            body()
        assert seen == []

    @pytest.mark.usefixtures("runtime")
    def test_for_an_error_that_is_not_the_sdks(self, seen: Seen) -> None:
        """Part 4, on_error: for every GuardError subclass, and nothing else."""

        @guard.protect
        def body() -> None:
            raise LookupError

        with guard.workflow("w"), pytest.raises(LookupError):
            body()
        assert seen == []
