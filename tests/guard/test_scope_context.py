"""workflow, chain, span, agent without a runtime: scopes, tasks, threads, traces (spec 2, 3)."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import random
import re
import threading
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import guard
from guard.breaker.exceptions import GuardBudgetError, WorkflowKilledInterrupt
from guard.breaker.refusals import Refusal
from guard.context import carry
from guard.contexts import work
from guard.contexts.caller import caller
from guard.core.ids import IdFactory
from guard.scope.scope import OUTSIDE, CallRecord, Entry, Scope, current_scope
from guard.scope.span_ids import call_scope

pytestmark = pytest.mark.usefixtures("switched_off")

KINDS: list[Callable[..., Any]] = [guard.workflow, guard.chain, guard.span, guard.agent]
FIELD = {"workflow": "workflow_id", "chain": "chain_id", "span": "span_id", "agent": "agent"}


def here() -> Scope:
    return current_scope.get()


def named(kind: Callable[..., Any]) -> str | None:
    """The field of the current scope that a kind of context manager sets."""
    value = getattr(here(), FIELD[kind.__name__])
    assert value is None or isinstance(value, str)
    return value


@pytest.fixture(autouse=True)
def _outside() -> Iterator[None]:
    token = current_scope.set(OUTSIDE)
    yield
    current_scope.reset(token)


@pytest.mark.parametrize("kind", KINDS)
class TestEachKind:
    def test_with(self, kind: Callable[..., Any]) -> None:
        with kind("x") as entered:
            assert getattr(entered, f"{kind.__name__}_id") == named(kind)
            if kind is not guard.span:
                assert named(kind) == "x"
        assert here() is OUTSIDE

    @pytest.mark.asyncio
    async def test_async_with(self, kind: Callable[..., Any]) -> None:
        async with kind("x") as entered:
            await asyncio.sleep(0)
            assert getattr(entered, f"{kind.__name__}_id") == named(kind)
        assert here() is OUTSIDE

    def test_decorating_a_function(self, kind: Callable[..., Any]) -> None:
        @kind("x")
        def work(a: int, *, b: int = 2) -> tuple[int, str | None]:
            """Work."""
            return a + b, named(kind)

        first, second = work(1), work(1, b=5)
        assert first[0] == 3
        assert second[0] == 6
        assert first[1] is not None
        assert (work.__name__, work.__doc__) == ("work", "Work.")
        assert list(inspect.signature(work).parameters) == ["a", "b"]
        assert here() is OUTSIDE

    @pytest.mark.asyncio
    async def test_decorating_a_coroutine_function(self, kind: Callable[..., Any]) -> None:
        @kind("x")
        async def work() -> str | None:
            await asyncio.sleep(0)
            return named(kind)

        assert inspect.iscoroutinefunction(work)
        assert await work() is not None
        assert here() is OUTSIDE

    def test_a_name_is_made_when_none_is_given(self, kind: Callable[..., Any]) -> None:
        made = set()
        for _ in range(3):
            with kind():
                made.add(named(kind))
        assert len(made) == 3
        assert None not in made

    def test_an_exception_passes_and_the_scope_ends(self, kind: Callable[..., Any]) -> None:
        with pytest.raises(ZeroDivisionError), kind("x"):
            _ = 1 / 0
        assert here() is OUTSIDE

    def test_a_refusal_leaves_as_its_public_exception(self, kind: Callable[..., Any]) -> None:
        error = GuardBudgetError(reason="used up")
        for raised in (Refusal(error), BaseExceptionGroup("tasks", [Refusal(error)])):
            with pytest.raises(GuardBudgetError) as caught, kind("x"):
                raise raised
            assert caught.value is error
        assert here() is OUTSIDE

    def test_a_kill_leaves_as_it_is(self, kind: Callable[..., Any]) -> None:
        kill = WorkflowKilledInterrupt(workflow_id="x")
        for raised in (kill, BaseExceptionGroup("tasks", [kill])):
            with pytest.raises(WorkflowKilledInterrupt) as caught, kind("x"):
                raise raised
            assert caught.value is kill

    def test_one_instance_is_one_entry_at_a_time(self, kind: Callable[..., Any]) -> None:
        entry = kind("x")
        with entry, pytest.raises(RuntimeError, match="open already"):
            entry.__enter__()
        with entry:
            assert named(kind) is not None
        with pytest.raises(RuntimeError, match="not open"):
            entry.__exit__(None, None, None)
        assert here() is OUTSIDE

    @pytest.mark.parametrize("name", [5, b"x", ["x"]])
    def test_a_name_is_a_string(self, kind: Callable[..., Any], name: object) -> None:
        with pytest.raises(TypeError, match="name"):
            kind(name)

    @pytest.mark.parametrize("name", ["", "x" * 257])
    def test_a_name_has_a_length(self, kind: Callable[..., Any], name: str) -> None:
        with pytest.raises(ValueError, match="256"):
            kind(name)

    @pytest.mark.asyncio
    async def test_interleaved_tasks_do_not_mix(self, kind: Callable[..., Any]) -> None:
        async def task(number: int) -> None:
            async with kind(f"n{number}") as entered:
                for _ in range(20):
                    await asyncio.sleep(0)
                    assert named(kind) == getattr(entered, f"{kind.__name__}_id")
            assert here() is OUTSIDE

        await asyncio.gather(*(task(number) for number in range(50)))
        assert here() is OUTSIDE

    @pytest.mark.asyncio
    async def test_a_decorated_coroutine_function_runs_many_times_at_once(
        self, kind: Callable[..., Any]
    ) -> None:
        @kind()
        async def work() -> str | None:
            before = named(kind)
            for _ in range(5):
                await asyncio.sleep(0)
            assert named(kind) == before
            return before

        made = await asyncio.gather(*(work() for _ in range(50)))
        assert len(set(made)) == 50

    @pytest.mark.asyncio
    async def test_to_thread_takes_the_scope_along(self, kind: Callable[..., Any]) -> None:
        async with kind("x"):
            inside = here()
            assert await asyncio.to_thread(here) is inside

    def test_plain_threads_need_carry(self, kind: Callable[..., Any]) -> None:
        found: list[Scope] = []
        with kind("x"):
            inside = here()
            bare = threading.Thread(target=lambda: found.append(here()))
            bound = threading.Thread(target=carry(lambda: found.append(here())))
            for thread in (bare, bound):
                thread.start()
                thread.join(120)
        assert found[0] is OUTSIDE
        assert found[1].event_fields == inside.event_fields


def test_an_inner_scope_keeps_the_outer_one_and_gives_it_back() -> None:
    with guard.workflow("w") as flow:
        outer = here()
        with guard.agent("a"), guard.chain("c"), guard.span("s") as span:
            inner = here()
            assert (inner.workflow_id, inner.run_id) == ("w", flow.run_id)
            assert (inner.agent, inner.chain_id, inner.span_id) == ("a", "c", span.span_id)
            assert inner.trace_id == outer.trace_id
            assert inner.parent_span_id == outer.span_id
            with guard.agent("b"):
                assert (here().agent, here().workflow_id) == ("b", "w")
            assert here() is inner
        assert here() is outer
    assert here() is OUTSIDE


def test_each_entry_of_a_workflow_is_a_run_of_its_own() -> None:
    runs = []
    for _ in range(3):
        with guard.workflow("w") as flow:
            assert here().workflow_id == flow.workflow_id == "w"
            runs.append(here().run_id)
    assert len(set(runs)) == 3
    assert all(run and uuid.UUID(run).version == 7 for run in runs)


def test_a_nested_workflow_is_another_workflow() -> None:
    with guard.workflow("outer"):
        outer = here()
        with guard.workflow("inner"):
            assert here().workflow_id == "inner"
            assert here().run_id != outer.run_id
            assert here().trace_id == outer.trace_id, "one trace shows both"
            assert here().parent_span_id == outer.span_id
        assert here() is outer


def test_spans_follow_w3c_trace_context() -> None:
    with guard.span("a") as first, guard.span("b") as second:
        for span in (first, second):
            assert re.fullmatch(r"[0-9a-f]{16}", span.span_id or "")
            assert re.fullmatch(r"[0-9a-f]{32}", span.trace_id or "")
        assert first.trace_id == second.trace_id
        assert first.span_id != second.span_id
        assert here().parent_span_id == first.span_id
    with guard.span("c") as third:
        assert third.trace_id != first.trace_id
        assert here().parent_span_id is None


def steps() -> Iterator[str | None]:
    with guard.workflow("a"):
        yield here().workflow_id
        guard.set_call_context(model="m")
        yield here().model


class TestAnAbandonedGenerator:
    """Its scope ends in whichever context lets go of it; that context's own scope stays."""

    def test_the_scope_of_the_context_that_closes_it_stays(self) -> None:
        generator = steps()
        assert contextvars.copy_context().run(next, generator) == "a"
        with guard.workflow("b"):
            inside = here()
            generator.close()
            assert here() is inside
        assert here() is OUTSIDE

    @pytest.mark.asyncio
    async def test_the_scope_of_the_task_that_finalises_it_stays(self) -> None:
        left: list[Iterator[str | None]] = []

        async def begins() -> None:
            left.append(steps())
            assert next(left[0]) == "a"

        async def finalises() -> Scope:
            async with guard.workflow("b"):
                inside = here()
                left.clear()
                gc.collect()
                assert here() is inside
                return here()

        await asyncio.create_task(begins())
        assert (await asyncio.create_task(finalises())).workflow_id == "b"
        assert here() is OUTSIDE

    @pytest.mark.parametrize("steps_taken", [1, 2])
    def test_a_copy_of_the_context_it_was_entered_in_gets_the_outer_scope_back(
        self, steps_taken: int
    ) -> None:
        def enters_and_closes() -> None:
            with guard.workflow("outer"):
                outer, generator = here(), steps()
                for _ in range(steps_taken):
                    next(generator)
                copied = contextvars.copy_context()
                copied.run(generator.close)
                assert copied.run(here) is outer

        contextvars.copy_context().run(enters_and_closes)
        assert here() is OUTSIDE


def steps_of_a_stack() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(guard.workflow("in a stack"))
        yield


@contextmanager
def job(name: str) -> Iterator[None]:
    with guard.workflow(name):
        yield


class TestLeftOutOfOrder:
    """By callbacks, which enter at a start and leave at an end, whatever runs in between."""

    @pytest.mark.parametrize("make", [guard.workflow, job])
    def test_the_workflow_that_is_still_open_stays(self, make: Callable[..., Any]) -> None:
        first, second = make("first"), make("second")
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert here().workflow_id == "second"
        second.__exit__(None, None, None)
        assert here() is OUTSIDE

    def test_any_order_of_any_kinds(self) -> None:
        choose, checks = random.Random(31), 0
        for _ in range(500):
            entries: list[Any] = []
            for number in range(choose.randrange(2, 12)):
                if entries and choose.random() < 0.4:
                    entries.pop(choose.randrange(len(entries))).__exit__(None, None, None)
                else:
                    entries.append(choose.choice(KINDS)(f"n{number}"))
                    entries[-1].__enter__()
                checks += self._is_in_an_open_one(entries)
            choose.shuffle(entries)
            while entries:
                entries.pop().__exit__(None, None, None)
                checks += self._is_in_an_open_one(entries)
            assert here() is OUTSIDE
        print(f"{checks} states")

    def _is_in_an_open_one(self, entries: list[Any]) -> int:
        runs = {each.run_id for each in entries if isinstance(each, guard.workflow)}
        assert here().run_id in runs or (not runs and here().run_id is None)
        return 1

    @pytest.mark.parametrize("make", [steps, steps_of_a_stack])
    def test_what_a_generator_has_opened_does_not_stay(self, make: Callable[..., Any]) -> None:
        """It may never go on."""
        with guard.workflow("w"):
            generator = make()
            next(generator)
        assert here() is OUTSIDE
        generator.close()
        assert here() is OUTSIDE

    @pytest.mark.asyncio
    async def test_nor_does_what_an_asynchronous_one_has(self) -> None:
        async def items() -> AsyncIterator[int]:
            async with guard.workflow("inside"):
                yield 1

        generator = items()
        async with guard.workflow("w"):
            async for _ in generator:
                break
        assert here() is OUTSIDE
        await generator.aclose()  # type: ignore[attr-defined]  # it is a generator
        assert here() is OUTSIDE


@pytest.mark.parametrize(
    "make", [*KINDS, guard.context.options, lambda: guard.context.tags(team="x")]
)
def test_one_that_is_never_entered_says_so(make: Callable[[], Any]) -> None:
    with pytest.warns(RuntimeWarning, match=r"\(\.\.\.\) of guard was never entered"):
        make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with make():
            pass
        make()(lambda: None)


def test_one_that_cannot_be_made_says_only_that() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TypeError, match="takes a name"):
            guard.workflow(3)  # type: ignore[arg-type]


def test_scopes_opened_by_a_stack_close_in_order() -> None:
    with ExitStack() as stack:
        for number in range(50):
            stack.enter_context(guard.span(f"s{number}"))
        assert here().trace_id is not None
    assert here() is OUTSIDE


class TestChain:
    @pytest.mark.parametrize("op", ["Start", "", None, "stop", 5])
    def test_an_unknown_op_is_refused(self, op: Any) -> None:
        with pytest.raises(ValueError, match="auto, start, continue, end"):
            guard.chain("c", op=op)

    def ops(self, *entries: tuple[str, Any]) -> list[str | None]:
        found = []
        for name, op in entries:
            with guard.chain(name, op=op):
                found.append(here().chain_op)
        return found

    def test_auto_starts_what_is_not_open_and_continues_what_is(self) -> None:
        name = f"chain-{uuid.uuid4()}"
        with guard.chain(name):
            assert here().chain_op == "start"
            with guard.chain(name):
                assert here().chain_op == "continue"
            with guard.chain(f"{name}-other"):
                assert here().chain_op == "start"
            with guard.chain(name):
                assert here().chain_op == "continue", "the inner exit did not end it"
        with guard.chain(name):
            assert here().chain_op == "start", "the outermost exit ended it"

    def test_start_leaves_it_open_until_end(self) -> None:
        name = f"chain-{uuid.uuid4()}"
        found = self.ops(
            (name, "start"), (name, "auto"), (name, "continue"), (name, "end"), (name, "auto")
        )
        assert found == ["start", "continue", "continue", "continue", "start"]

    def test_continue_leaves_it_open(self) -> None:
        name = f"chain-{uuid.uuid4()}"
        assert self.ops((name, "continue"), (name, "auto"), (name, "end")) == ["continue"] * 3

    def test_op_is_for_the_keyword_only(self) -> None:
        with pytest.raises(TypeError):
            guard.chain("c", "start")  # type: ignore[call-arg]  # the spec's signature forbids it

    def test_an_exception_ends_an_automatic_chain_too(self) -> None:
        name = f"chain-{uuid.uuid4()}"
        with pytest.raises(ZeroDivisionError), guard.chain(name):
            _ = 1 / 0
        assert self.ops((name, "auto")) == ["start"]

    def test_chains_that_are_never_closed_are_forgotten_at_last(self) -> None:
        for number in range(10_100):
            with guard.chain(f"never-closed-{number}", op="start"):
                pass
        assert len(work._open_chains) <= 10_000
        assert ("", "never-closed-10099") in work._open_chains
        work._open_chains.clear()

    def test_a_chain_opened_by_one_thread_is_continued_by_another(self) -> None:
        name = f"chain-{uuid.uuid4()}"
        with guard.chain(name), ThreadPoolExecutor(1) as pool:
            assert pool.submit(self.ops, (name, "auto")).result(30) == ["continue"]


class TestCallContext:
    """Spec part 2: set_call_context forwards model and tools; without it, a placeholder."""

    def test_it_holds_until_the_enclosing_scope_ends(self) -> None:
        with guard.workflow("w"):
            guard.set_call_context(model="m", tools=["search", "shell"])
            assert (here().model, here().tools) == ("m", ("search", "shell"))
            with guard.span("s"):
                assert here().model == "m"
                guard.set_call_context(model="n")
                assert (here().model, here().tools) == ("n", ())
            assert here().model == "m"
            guard.set_call_context()
            assert (here().model, here().tools) == (None, ())
        assert here() is OUTSIDE

    def test_what_the_caller_does_with_its_list_afterwards_does_not_matter(self) -> None:
        tools = ["search"]
        guard.set_call_context(tools=tools)
        tools.append("shell")
        assert here().tools == ("search",)

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"model": 5}, TypeError), ({"model": ""}, ValueError),
            ({"tools": "search"}, TypeError),
            ({"tools": [5]}, TypeError), ({"tools": [""]}, ValueError),
            ({"model": "m" * 257}, ValueError),
        ],
    )  # fmt: skip
    def test_arguments_are_checked(self, arguments: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error):
            guard.set_call_context(**arguments)

    @pytest.mark.asyncio
    async def test_tasks_do_not_see_each_others(self) -> None:
        async def task(number: int) -> None:
            guard.set_call_context(model=f"m{number}")
            await asyncio.sleep(0)
            assert here().model == f"m{number}"

        await asyncio.gather(*(task(number) for number in range(20)))
        assert here().model is None


class TestCarry:
    def test_it_keeps_the_function(self) -> None:
        def work(a: int, *, b: int) -> int:
            """Work."""
            return a + b

        carried = carry(work)
        assert carried(1, b=2) == 3
        assert (carried.__name__, carried.__doc__) == ("work", "Work.")

    def test_it_binds_where_it_was_called_and_not_where_the_function_runs(self) -> None:
        with guard.workflow("bound"):
            carried = carry(lambda: here().workflow_id)
        with guard.workflow("runs"):
            assert carried() == "bound"
            assert here().workflow_id == "runs"

    def test_a_pools_thread_keeps_nothing(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            with guard.workflow("w"):
                assert pool.submit(carry(lambda: here().workflow_id)).result(30) == "w"
            assert pool.submit(lambda: here().workflow_id).result(30) is None

    def test_it_works_many_times_and_at_once(self) -> None:
        with guard.workflow("w"):
            carried = carry(lambda _: here().workflow_id)
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(carried, range(200))) == {"w"}


def test_a_scope_is_immutable() -> None:
    with pytest.raises(AttributeError):
        OUTSIDE.workflow_id = "x"  # type: ignore[misc]  # that it cannot be set is what is tested
    assert OUTSIDE.evolve(workflow_id="x").workflow_id == "x"
    assert OUTSIDE.workflow_id is None


class TestOpenTelemetry:
    """A running OpenTelemetry span is adopted as parent (semantics: Context managers)."""

    @pytest.fixture
    def tracer(self) -> Any:
        pytest.importorskip("opentelemetry.sdk.trace", reason="OpenTelemetry is not installed")
        from opentelemetry.sdk.trace import TracerProvider

        return TracerProvider(shutdown_on_exit=False).get_tracer("test")

    @pytest.mark.parametrize("kind", [guard.workflow, guard.span])
    def test_it_becomes_the_parent(self, tracer: Any, kind: Callable[..., Any]) -> None:
        with tracer.start_as_current_span("theirs") as theirs:
            context = theirs.get_span_context()
            with kind("ours"):
                assert here().trace_id == f"{context.trace_id:032x}"
                assert here().parent_span_id == f"{context.span_id:016x}"
                ours = here().span_id
                with guard.span("inner"):
                    assert here().trace_id == f"{context.trace_id:032x}"
                    assert here().parent_span_id == ours

    def test_one_that_runs_inside_ours_becomes_the_parent_of_what_is_inside_it(
        self, tracer: Any
    ) -> None:
        theirs = tracer.start_as_current_span("theirs")
        with guard.workflow("ours"), theirs as running, guard.span("inner"):
            context = running.get_span_context()
            assert here().trace_id == f"{context.trace_id:032x}"
            assert here().parent_span_id == f"{context.span_id:016x}"

    def test_a_deeper_one_of_the_same_trace_becomes_the_parent(self, tracer: Any) -> None:
        outer, deeper = (tracer.start_as_current_span(name) for name in ("outer", "deeper"))
        with outer, guard.span("ours"), deeper as running, guard.span("inner"):
            context = running.get_span_context()
            assert here().parent_span_id == f"{context.span_id:016x}"

    def test_without_a_running_one_ours_is_a_root(self, tracer: Any) -> None:
        with guard.span("ours"):
            assert here().parent_span_id is None


def test_the_scope_of_a_call_has_every_field_of_the_one_around() -> None:
    """It is made field by field, for speed: a new field must not be left out."""
    changed = {
        "trace_id", "span_id", "parent_span_id", "foreign_span_id", "options", "call", "entry",
    }  # fmt: skip
    kept = [name for name in Scope.__struct_fields__ if name not in changed and name[0] != "_"]
    outer = Scope(**{name: object() for name in kept})
    inner = call_scope(outer, IdFactory(), CallRecord("c"), Entry(outer))
    assert "caller" in kept
    assert [getattr(inner, name) for name in kept] == [getattr(outer, name) for name in kept]


def test_an_entry_that_failed_leaves_it_closed() -> None:
    """As that of a caller whose account was closed: what is told is that, each time."""

    class Account:
        workflow, outside, run_id, is_closed = None, "outside", "run", True
        entered: list[object] = []  # noqa: RUF012

        def enter(self, entry: object) -> None:
            if self.is_closed:
                raise RuntimeError("introduce it again")
            self.entered.append(entry)

        def leave(self, entry: object) -> None:
            self.entered.remove(entry)

    who: Any = Account()
    entry = caller(who)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="introduce it again"), entry:
            pass
    assert here() is OUTSIDE
    who.is_closed = False
    with entry:
        assert len(who.entered) == 1
    assert not who.entered
    assert here() is OUTSIDE
