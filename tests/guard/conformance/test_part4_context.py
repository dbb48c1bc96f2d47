"""Spec part 4: ``workflow``, ``chain``, ``span``, ``agent``, ``set_call_context``, ``carry``."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import guard
from guard import GuardRuntime
from guard.context import carry

MANAGERS: list[Callable[..., Any]] = [guard.workflow, guard.chain, guard.span, guard.agent]
FIELD = {
    guard.workflow: ("workflow_id", "workflow_id"),
    guard.chain: ("chain_id", "chain_id"),
    guard.agent: ("agent_id", "agent"),
}
OUTSIDE = {"workflow_id": "default", "chain_id": None, "agent": None}
"""What an event outside of a context manager says in its place."""


def _workflow() -> object:
    """Return the workflow that the SDK sees here, as its decision tells it."""
    return guard.track_llm(0)["workflow_id"]


def _tracked(tenant: Any, runtime: GuardRuntime) -> list[dict[str, Any]]:
    runtime.flush()
    return list(tenant.admin.events(type="tool"))


class TestManagers:
    @pytest.mark.parametrize("manager", FIELD)
    def test_with(self, runtime: GuardRuntime, tenant: Any, manager: Callable[..., Any]) -> None:
        """Part 4: context manager; what it names reaches the recorded events."""
        attribute, column = FIELD[manager]
        with manager("named") as entered:
            assert getattr(entered, attribute) == "named"
            guard.track_tool("inside")
        guard.track_tool("outside")
        inside, outside = _tracked(tenant, runtime)
        assert inside[column] == "named"
        assert outside[column] == OUTSIDE[column]

    @pytest.mark.parametrize("manager", FIELD)
    @pytest.mark.asyncio
    async def test_async_with(
        self, runtime: GuardRuntime, tenant: Any, manager: Callable[..., Any]
    ) -> None:
        """Part 4 (semantics, context managers): as ``async with``."""
        async with manager("named"):
            await asyncio.sleep(0)
            guard.track_tool("inside")
        guard.track_tool("outside")
        inside, outside = await asyncio.to_thread(_tracked, tenant, runtime)
        assert inside[FIELD[manager][1]] == "named"
        assert outside[FIELD[manager][1]] == OUTSIDE[FIELD[manager][1]]

    @pytest.mark.parametrize("manager", FIELD)
    @pytest.mark.asyncio
    async def test_decorator(
        self, runtime: GuardRuntime, tenant: Any, manager: Callable[..., Any]
    ) -> None:
        """Part 4 (semantics, context managers): as decorators, of both kinds of functions."""

        @manager("named")
        def function(number: int) -> int:
            """Do it."""
            guard.track_tool("function")
            return number

        @manager("named")
        async def coroutine(number: int) -> int:
            guard.track_tool("coroutine")
            return number

        assert (function.__name__, function.__doc__) == ("function", "Do it.")
        assert inspect.iscoroutinefunction(coroutine)
        assert (function(1), await coroutine(2), function(3)) == (1, 2, 3)
        guard.track_tool("outside")
        events = await asyncio.to_thread(_tracked, tenant, runtime)
        assert [event[FIELD[manager][1]] for event in events] == [
            *["named"] * 3,
            OUTSIDE[FIELD[manager][1]],
        ]

    @pytest.mark.parametrize("manager", FIELD)
    @pytest.mark.asyncio
    async def test_decorator_of_generators(
        self, runtime: GuardRuntime, tenant: Any, manager: Callable[..., Any]
    ) -> None:
        """Part 4 (semantics): a decorated generator's body runs inside, not its creation."""

        @manager("named")
        def generator() -> Any:
            guard.track_tool("generator")
            yield 1

        @manager("named")
        async def asynchronous() -> Any:
            guard.track_tool("asynchronous")
            yield 1

        assert list(generator()) == [1]
        assert [item async for item in asynchronous()] == [1]
        events = await asyncio.to_thread(_tracked, tenant, runtime)
        assert [event[FIELD[manager][1]] for event in events] == ["named", "named"]

    @pytest.mark.usefixtures("runtime")
    def test_a_generators_consumer_stays_outside(self) -> None:
        """Part 4 (semantics): what a decorator sets for a body ends at each ``yield``."""
        left: list[str] = []

        @guard.workflow("inside")
        def numbers() -> Any:
            try:
                got = yield _workflow()
                yield got
                yield _workflow()
            finally:
                left.append(str(_workflow()))

        with guard.workflow("outside"):
            stream = numbers()
            assert next(stream) == "inside"
            assert _workflow() == "outside"
            assert stream.send("sent") == "sent"
            assert _workflow() == "outside"
            stream.close()
            assert (left, _workflow()) == (["inside"], "outside")

    @pytest.mark.usefixtures("runtime")
    def test_decorator_of_methods(self) -> None:
        """Part 4 (semantics): methods, classmethods and staticmethods, in either order."""

        class Tools:
            @guard.workflow("w")
            def method(self) -> Any:
                return _workflow()

            @guard.workflow("w")
            @classmethod
            def of_class(cls) -> Any:
                return (cls.__name__, _workflow())

            @staticmethod
            @guard.workflow("w")
            def inner_static() -> Any:
                return _workflow()

            @guard.workflow("w")
            @staticmethod
            def outer_static() -> Any:
                return _workflow()

        tools = Tools()
        assert tools.method() == tools.inner_static() == Tools.outer_static() == "w"
        assert Tools.of_class() == ("Tools", "w")

    @pytest.mark.usefixtures("switched_off")
    @pytest.mark.parametrize("manager", MANAGERS)
    def test_the_name_is_optional(self, manager: Callable[..., Any]) -> None:
        """Part 4: ``name=None``; without one, each entry gets an id of its own."""
        ids = []
        for _ in range(2):
            with manager() as entered:
                ids.append(
                    {
                        guard.workflow: "workflow_id",
                        guard.chain: "chain_id",
                        guard.span: "span_id",
                        guard.agent: "agent_id",
                    }[manager]
                )
                ids[-1] = getattr(entered, ids[-1])
        assert all(ids)
        assert ids[0] != ids[1]

    @pytest.mark.parametrize("manager", MANAGERS)
    def test_a_bad_name_is_refused(self, manager: Callable[..., Any]) -> None:
        """Part 4: a name is a text of some length."""
        with pytest.raises(TypeError):
            manager(3)
        for name in ("", "x" * 257):
            with pytest.raises(ValueError, match="1 to 256"):
                manager(name)

    @pytest.mark.usefixtures("switched_off")
    @pytest.mark.parametrize("manager", MANAGERS)
    def test_what_is_raised_inside_passes_unchanged(self, manager: Callable[..., Any]) -> None:
        """Part 4: context managers; they hide nothing."""
        error = LookupError("mine")
        with pytest.raises(LookupError) as raised, manager("named"):
            raise error
        assert raised.value is error

    @pytest.mark.parametrize("manager", ["workflow", "chain"])
    def test_without_a_key_they_are_refused(
        self, run_python: Callable[..., Any], manager: str
    ) -> None:
        """Part 7: GD-C001 when the key is missing; nothing inside runs uncontrolled."""
        ran = run_python(
            f"""
            import guard
            with guard.span("s"), guard.agent("a"):  # these name things, and need no key
                guard.set_call_context("m", ["t"])
            try:
                with guard.{manager}("w"):
                    print("ran")
            except guard.GuardAuthenticationError as exc:
                print(exc.error_code)
            """
        )
        assert (ran.stdout, ran.stderr, ran.returncode) == ("GD-C001\n", "", 0)

    def test_nesting(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Part 4: an inner name holds until its exit; then the outer one again."""
        with guard.workflow("outer"), guard.agent("one"):
            with guard.workflow("inner"), guard.agent("two"):
                guard.track_tool("inside")
            guard.track_tool("after")
        inside, after = _tracked(tenant, runtime)
        assert (inside["workflow_id"], inside["agent"]) == ("inner", "two")
        assert (after["workflow_id"], after["agent"]) == ("outer", "one")


class TestSpans:
    def test_nested_spans_share_the_trace_and_name_their_parent(
        self, scripted: Any, scripted_runtime: GuardRuntime
    ) -> None:
        """Part 4, span: context manager for nested spans (W3C Trace Context ids)."""
        with guard.span("outer") as outer, guard.span("inner") as inner:
            guard.track_tool("search")
        scripted_runtime.flush()
        events = [e for asked in scripted.calls("/api/v1/events") for e in asked.json["events"]]
        by_name = {e["data"].get("name", e["data"].get("tool_name")): e for e in events}
        assert inner.trace_id is not None
        assert inner.span_id is not None
        assert (len(inner.trace_id), len(inner.span_id)) == (32, 16)
        assert inner.trace_id == outer.trace_id
        assert by_name["inner"]["parent_span_id"] == outer.span_id
        assert by_name["search"]["span_id"] == inner.span_id
        assert "parent_span_id" not in by_name["outer"]

    def test_a_protected_call_is_a_span_of_its_own(
        self, scripted: Any, scripted_runtime: GuardRuntime
    ) -> None:
        """Part 4, span and protect: the gate gets the span and its parent."""

        @guard.protect
        def step() -> None: ...

        with guard.span("outer") as outer:
            step()
        (asked,) = scripted.calls("/gate")
        assert asked.json["trace_id"] == outer.trace_id
        assert asked.json["parent_span_id"] == outer.span_id
        assert asked.json["span_id"] != outer.span_id

    def test_a_failed_span_says_so(self, scripted: Any, scripted_runtime: GuardRuntime) -> None:
        """Part 4, span: what happened is recorded."""
        with pytest.raises(LookupError), guard.span("bad"):
            raise LookupError
        scripted_runtime.flush()
        (asked,) = scripted.calls("/api/v1/events")
        assert asked.json["events"][0]["data"]["outcome"] == "error"


class TestCallContext:
    @pytest.mark.parametrize(
        ("model", "tools", "error"),
        [
            (3, None, TypeError),
            ("", None, ValueError),
            ("x" * 257, None, ValueError),
            (None, "search", TypeError),
            (None, [3], TypeError),
            (None, [""], ValueError),
        ],
    )
    def test_validation(self, model: Any, tools: Any, error: type[Exception]) -> None:
        """Part 2, Call context: model is a string and tools a list."""
        with pytest.raises(error):
            guard.set_call_context(model, tools)

    def test_holds_until_the_enclosing_context_ends(
        self, scripted: Any, scripted_runtime: GuardRuntime
    ) -> None:
        """Part 4, set_call_context (documented): until set again, or the context ends."""

        @guard.protect
        def step() -> None: ...

        with guard.workflow("w"):
            guard.set_call_context("one", ["a"])
            step()
            step()
        step()
        models = [asked.json["model"] for asked in scripted.calls("/gate")]
        assert models == ["one", "one", "unknown"]


class TestConcurrency:
    @pytest.mark.asyncio
    async def test_interleaved_tasks(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Semantics, context managers: safe with interleaved tasks."""

        async def one(name: str) -> None:
            async with guard.workflow(name), guard.agent(name):
                for _ in range(5):
                    await asyncio.sleep(0)
                    guard.track_tool(name)

        await asyncio.gather(*(one(f"w{number}") for number in range(10)))
        events = await asyncio.to_thread(_tracked, tenant, runtime)
        assert len(events) == 50
        for event in events:
            assert event["workflow_id"] == event["agent"] == event["data"]["tool_name"]

    @pytest.mark.asyncio
    async def test_to_thread(self, runtime: GuardRuntime, tenant: Any) -> None:
        """Semantics, context managers: in threads started by ``asyncio.to_thread``."""
        async with guard.workflow("w"):
            await asyncio.to_thread(guard.track_tool, "in a thread")
        (event,) = await asyncio.to_thread(_tracked, tenant, runtime)
        assert event["workflow_id"] == "w"

    def test_carry_binds_the_context_for_plain_threads_and_executors(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        """Semantics, context managers: ``guard.context.carry(fn)``."""
        with guard.workflow("w"):
            carried = carry(guard.track_tool)
            thread = threading.Thread(target=carried, args=("carried",))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(carried, "carried").result()
            pool.submit(guard.track_tool, "plain").result()  # the worker itself stays clean
        events = _tracked(tenant, runtime)
        found = sorted((e["data"]["tool_name"], e["workflow_id"]) for e in events)
        assert found == [("carried", "w"), ("carried", "w"), ("plain", "default")]

    @pytest.mark.usefixtures("switched_off")
    def test_one_instance_is_one_entry_at_a_time(self) -> None:
        """Part 4: an open context manager cannot be entered again; a decorator makes its own."""
        flow = guard.workflow("w")
        with flow, pytest.raises(RuntimeError), flow:
            pass
        with flow as again:
            assert again.workflow_id == "w"
