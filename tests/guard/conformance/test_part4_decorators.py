"""Spec part 4: ``@protect``, ``@sensitive``, ``@guarded``, ``handle``, in every stacking."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import guard
from guard import GuardRuntime
from guard.breaker.exceptions import (
    BreakerTransportError,
    GuardBudgetError,
    GuardError,
    GuardRateLimitRedisError,
    GuardToolBlockedError,
    GuardTransportError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from tests.support.waiting import until

STACKINGS: dict[str, list[Callable[..., Any]]] = {
    # From the inside out. ``sensitive`` may stand on either side, ``guarded`` outside of protect.
    "protect": [guard.protect],
    "sensitive outside protect": [guard.protect, guard.sensitive],
    "sensitive inside protect": [guard.sensitive, guard.protect],
    "guarded outside protect": [guard.protect, guard.guarded],
    "guarded, sensitive, protect": [guard.protect, guard.sensitive, guard.guarded],
    "guarded, protect, sensitive": [guard.sensitive, guard.protect, guard.guarded],
    "sensitive, guarded, protect": [guard.protect, guard.guarded, guard.sensitive],
}


def _stacked(function: Any, decorators: list[Callable[..., Any]]) -> Any:
    for decorate in decorators:
        function = decorate(function)
    return function


def _run(kind: str, decorators: list[Callable[..., Any]]) -> Any:
    """Make a callable of one kind with decorators around it, and run it to its result."""
    if kind == "function":

        def tool(number: int, *, add: int = 0) -> int:
            return number + add

        return _stacked(tool, decorators)(1, add=2)
    if kind == "coroutine":

        async def tool(number: int, *, add: int = 0) -> int:  # type: ignore[no-redef]
            await asyncio.sleep(0)
            return number + add

        decorated = _stacked(tool, decorators)
        assert inspect.iscoroutinefunction(decorated)
        return asyncio.run(decorated(1, add=2))
    if kind == "generator":

        def tool(number: int) -> Iterator[int]:  # type: ignore[no-redef]
            yield number
            yield number + 1

        decorated = _stacked(tool, decorators)
        assert inspect.isgeneratorfunction(decorated)
        return sum(decorated(1))
    if kind == "async generator":

        async def tool(number: int) -> AsyncIterator[int]:  # type: ignore[no-redef]
            yield number
            yield number + 1

        decorated = _stacked(tool, decorators)
        assert inspect.isasyncgenfunction(decorated)

        async def consume() -> int:
            return sum([item async for item in decorated(1)])

        return asyncio.run(consume())
    return _run_method(kind, decorators)


def _run_method(kind: str, decorators: list[Callable[..., Any]]) -> Any:
    class Tools:
        base = 1

        if kind == "method":

            def tool(self, add: int) -> int:
                return self.base + add

            tool = _stacked(tool, decorators)
        elif kind == "classmethod outside":

            def tool(cls, add: int) -> int:  # noqa: N805
                return cls.base + add

            tool = classmethod(_stacked(tool, decorators))
        elif kind == "classmethod inside":

            def tool(cls, add: int) -> int:  # noqa: N805
                return cls.base + add

            tool = _stacked(classmethod(tool), decorators)
        elif kind == "staticmethod outside":

            def tool(add: int) -> int:  # noqa: N805  # becomes a static method
                return 1 + add

            tool = staticmethod(_stacked(tool, decorators))
        else:

            def tool(add: int) -> int:  # noqa: N805  # becomes a static method
                return 1 + add

            tool = _stacked(staticmethod(tool), decorators)

    if kind == "method":
        return Tools().tool(2)  # type: ignore[call-arg]
    assert Tools().tool(2) == 3  # type: ignore[call-arg]
    return Tools.tool(2)  # type: ignore[arg-type]


KINDS = [
    "function",
    "coroutine",
    "generator",
    "async generator",
    "method",
    "classmethod outside",
    "classmethod inside",
    "staticmethod outside",
    "staticmethod inside",
]


@pytest.mark.parametrize("stacking", STACKINGS)
class TestEveryStacking:
    def test_an_allowed_call_runs_and_gates_once(
        self, scripted: Any, scripted_runtime: GuardRuntime, stacking: str
    ) -> None:
        """Part 4: ``@protect`` with ``@sensitive`` and ``@guarded``; semantics, protect."""
        for kind in KINDS:
            before = len(scripted.calls("/gate"))
            assert _run(kind, STACKINGS[stacking]) == 3, kind
            asked = scripted.calls("/gate")[before:]
            per_run = 2 if kind.startswith(("classmethod", "staticmethod")) else 1
            assert len(asked) == per_run, kind  # once for each time that it was called
            for each in asked:
                assert each.json["tool_name"] == "tool", kind
                assert each.json.get("sensitive", False) is ("sensitive" in stacking), kind

    def test_a_refused_call_does_not_run(
        self, scripted: Any, scripted_runtime: GuardRuntime, stacking: str
    ) -> None:
        """Part 4: the check is before the call; ``@guarded`` makes it exit code 1."""
        scripted.answer("/gate", 403, {"error_code": "GD-T001", "tool_name": "tool"})
        expected = SystemExit if "guarded" in stacking else GuardToolBlockedError
        for kind in KINDS:
            with pytest.raises(expected) as raised:
                _run(kind, STACKINGS[stacking])
            assert getattr(raised.value, "code", 1) == 1, kind

    def test_a_sensitive_call_fails_closed_and_another_falls_back(
        self, scripted: Any, start: Callable[..., GuardRuntime], stacking: str
    ) -> None:
        """Part 4, @sensitive: fails closed on transport error regardless of the fallback mode."""
        start(api_url=scripted.url, transport_mode="http", fallback_mode="open")
        scripted.answer("/gate", 404, b"<html>")
        expected = SystemExit if "guarded" in stacking else GuardTransportError
        for kind in KINDS:
            if "sensitive" not in stacking:
                assert _run(kind, STACKINGS[stacking]) == 3, kind
                continue
            with pytest.raises(expected):
                _run(kind, STACKINGS[stacking])


@pytest.mark.usefixtures("runtime")
class TestProtect:
    def test_budget_preflight(self, tenant: Any) -> None:
        """Part 4, @protect: gate enforcement, budget pre-flight."""
        tenant.admin.set_budget(limit_cents=0, scope_kind="workflow", scope_id="w")
        with guard.workflow("w"), pytest.raises(GuardBudgetError):
            _run("function", [guard.protect])

    def test_kill_and_pause_check(self, tenant: Any) -> None:
        """Part 4, @protect: kill or pause check."""
        tenant.admin.pause("w")
        with guard.workflow("w"), pytest.raises(WorkflowPausedException):
            _run("function", [guard.protect])
        tenant.admin.kill("k")
        with guard.workflow("k"), pytest.raises(WorkflowKilledInterrupt):
            _run("coroutine", [guard.protect])

    def test_sensitive_tool_decision(self, tenant: Any) -> None:
        """Part 4, @protect: sensitive-tool decision."""
        tenant.admin.set_policy("p", sensitive_action="block")
        assert _run("function", [guard.protect]) == 3
        with pytest.raises(guard.GuardError) as refused:
            _run("function", [guard.protect, guard.sensitive])
        assert refused.value.error_code == "GD-X001"

    def test_nested_calls_each_gate(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Semantics, protect: nested protected calls each gate."""

        @guard.protect
        def inner() -> None: ...

        @guard.protect
        def outer() -> None:
            inner()

        tenant.admin.set_policy("p", tools_block=["inner"])
        with pytest.raises(GuardToolBlockedError) as refused:
            outer()
        assert refused.value.tool_name == "inner"

    def test_recorded_as_a_span(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Semantics, protect: step 5, the ``span`` event; a sensitive one is a ``tool`` too."""
        with guard.workflow("w"):
            _run("function", [guard.protect])
            _run("function", [guard.protect, guard.sensitive])
        runtime.flush()
        events = tenant.admin.events(workflow_id="w")
        calls = [e for e in events if e["type"] == "span" and e["data"]["kind"] == "call"]
        tools = [e for e in events if e["type"] == "tool"]
        assert [call["data"]["outcome"] for call in calls] == ["ok", "ok"]
        assert [tool["data"]["tool_name"] for tool in tools] == ["tool"]

    def test_gives_back_what_was_not_used(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Semantics, protect: step 5, release of what was not used."""
        tenant.admin.set_budget(limit_cents=100, scope_kind="workflow", scope_id="w")
        with guard.workflow("w"):
            _run("function", [guard.protect])
        runtime.flush()
        (balance,) = until(tenant.admin.ledger)
        # If a lease covered it, that is given back a moment later.
        until(lambda: tenant.admin.ledger()[0]["reserved"] == 0)
        assert balance["committed"] == 0


class TestSensitive:
    def test_marks_and_does_not_check_by_itself(self, scripted: Any) -> None:
        """Part 4, @sensitive: marks a function; ``@protect`` pre-checks it."""

        @guard.sensitive
        def tool() -> str:
            return "ran"

        assert tool() == "ran"
        assert scripted.asked == []

    @pytest.mark.parametrize("fallback", ["open", "closed"])
    def test_fails_closed_whatever_the_transport_error(
        self, scripted: Any, start: Callable[..., GuardRuntime], fallback: str
    ) -> None:
        """Part 4, @sensitive: fails closed on transport error, with nothing executed."""
        start(api_url=scripted.url, transport_mode="http", fallback_mode=fallback)

        @guard.sensitive
        @guard.protect
        def tool() -> None:
            raise AssertionError("ran")

        replies: list[tuple[int, Any]] = [
            (502, b"<html>Bad gateway</html>"),
            (200, b""),
            (200, {"decision": "maybe"}),
            (404, b"nothing here"),
            (429, {"error_code": "GD-R001"}),
        ]
        for status, body in replies:
            scripted.answer("/gate", status, body)
            with pytest.raises(GuardTransportError):
                tool()

    def test_fails_closed_without_a_gateway(self, start: Callable[..., GuardRuntime]) -> None:
        """Part 4, @sensitive: regardless of the runtime fallback mode."""
        start(api_url="http://127.0.0.1:1", timeout_ms=200, fallback_mode="open")
        assert _run("function", [guard.protect]) == 3
        with pytest.raises(GuardTransportError):
            _run("function", [guard.protect, guard.sensitive])

    def test_gd_r002_always_refuses(
        self, scripted: Any, start: Callable[..., GuardRuntime]
    ) -> None:
        """Part 7: GuardRateLimitRedisError fails closed; semantics: GD-R002 always refuses."""
        start(api_url=scripted.url, transport_mode="http", fallback_mode="open")
        scripted.answer("/gate", 503, {"error_code": "RATE_LIMIT_STORE"})
        with pytest.raises(GuardRateLimitRedisError):
            _run("function", [guard.protect])

    @pytest.mark.parametrize("status", [401, 402, 403, 409, 429])
    def test_refusals_are_never_fallback(
        self, scripted: Any, start: Callable[..., GuardRuntime], status: int
    ) -> None:
        """Semantics, fallback: auth, protocol and policy refusals are never "fallback"."""
        start(api_url=scripted.url, transport_mode="http", fallback_mode="open")
        scripted.answer("/gate", status)
        with pytest.raises(GuardError):
            _run("function", [guard.protect])


class TestGuarded:
    def test_the_user_message_on_standard_error_and_exit_code_1(
        self, run_python: Callable[..., Any]
    ) -> None:
        """Part 4, @guarded: the user message on standard error, and exits with code 1."""
        ran = run_python(
            """
            import guard

            @guard.guarded
            def main():
                raise guard.GuardBudgetError(reason="internal wf-1")

            main()
            print("went on")
            """
        )
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr == guard.get_user_message("GD-B004") + "\n"

    def test_any_guard_error_by_its_message(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Part 4, @guarded: converts any GuardError raised inside."""
        guard.set_user_message("GD-X000", "Sorry!")

        @guard.guarded
        def main() -> None:
            raise GuardError("internal")

        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 1
        assert capsys.readouterr() == ("", "Sorry!\n")

    @pytest.mark.parametrize(
        "error",
        [
            WorkflowKilledInterrupt(workflow_id="w"),
            BreakerTransportError("not a GuardError"),
            LookupError("mine"),
            KeyboardInterrupt(),
        ],
    )
    def test_everything_else_propagates_unchanged(
        self, error: BaseException, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Part 4, @guarded: WorkflowKilledInterrupt propagates unchanged."""

        @guard.guarded
        def main() -> None:
            raise error

        with pytest.raises(type(error)) as raised:
            main()
        assert raised.value is error
        with pytest.raises(type(error)) as raised, guard.handle():
            raise error
        assert raised.value is error
        assert capsys.readouterr().err == ""

    def test_a_result_passes(self) -> None:
        """Part 4, @guarded: a decorator."""

        @guard.guarded
        def main(number: int) -> int:
            return number

        assert main(3) == 3

    def test_a_generator_takes_what_is_sent(self) -> None:
        """Part 4, @guarded: generators keep ``send``, ``throw`` and their value."""

        @guard.guarded
        def echo() -> Any:
            try:
                got = yield 1
            except KeyError:
                got = "thrown"
            yield got
            return "end"

        stream = echo()
        assert (next(stream), stream.send("sent")) == (1, "sent")
        with pytest.raises(StopIteration) as stopped:
            next(stream)
        assert stopped.value.value == "end"
        stream = echo()
        next(stream)
        assert stream.throw(KeyError()) == "thrown"

    @pytest.mark.asyncio
    async def test_an_async_generator_takes_what_is_sent(self) -> None:
        """Part 4, @guarded: so do asynchronous generators, and they close."""
        closed = []

        @guard.guarded
        async def echo() -> Any:
            try:
                got = yield 1
                yield got
            finally:
                closed.append(True)

        stream = echo()
        assert await anext(stream) == 1
        assert await stream.asend("sent") == "sent"
        await stream.aclose()
        assert closed == [True]


class TestHandle:
    def test_is_the_context_manager_form(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Part 4, handle: context-manager form of ``@guarded``, exit_code=1."""
        with pytest.raises(SystemExit) as stopped, guard.handle():
            raise GuardBudgetError
        assert stopped.value.code == 1
        assert capsys.readouterr().err == guard.get_user_message("GD-B004") + "\n"

    def test_takes_another_exit_code(self) -> None:
        """Part 4, handle: ``exit_code``, by keyword only."""
        with pytest.raises(SystemExit) as stopped, guard.handle(exit_code=7):
            raise GuardBudgetError
        assert stopped.value.code == 7
        with pytest.raises(TypeError):
            guard.handle(7)  # type: ignore[misc]

    def test_of_a_process(self, run_python: Callable[..., Any]) -> None:
        """Part 4, handle: the exit code is the process's."""
        ran = run_python(
            """
            import guard
            with guard.handle(exit_code=3):
                raise guard.GuardToolBlockedError(tool_name="rm")
            """
        )
        assert (ran.returncode, ran.stdout) == (3, "")
        assert ran.stderr == guard.get_user_message("GD-T001") + "\n"

    @pytest.mark.asyncio
    async def test_async_with(self) -> None:
        """Semantics, context managers: as ``async with`` too."""
        with pytest.raises(SystemExit):
            async with guard.handle():
                raise GuardBudgetError
