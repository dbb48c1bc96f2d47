"""Generators: the scope that a body opens lasts across its ``yield``, and stays out of others."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import guard
from guard.runtime import active
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import OUTSIDE, current_scope
from tests.support.proxy import ChaosProxy
from tests.support.waiting import WAIT_S, until, until_async

pytestmark = pytest.mark.usefixtures("_outside")
CONNECTED = ("ok", "degraded")  # until the control channel is up


@pytest.fixture
def _outside() -> Iterator[None]:
    token = current_scope.set(OUTSIDE)
    yield
    current_scope.reset(token)


def here() -> str | None:
    return current_scope.get().workflow_id


class TestProtectedGenerators:
    @pytest.mark.usefixtures("runtime")
    def test_a_workflow_that_the_body_opens_lasts_across_the_yield(self) -> None:
        @guard.protect
        def steps() -> Iterator[str | None]:
            with guard.workflow("w"):
                yield here()
                guard.set_call_context(model="m")
                yield here()
                assert current_scope.get().model == "m"
                yield here()
            yield here()

        found = []
        for step in steps():
            assert current_scope.get() is OUTSIDE
            found.append(step)
        assert found == ["w", "w", "w", "default"]

    @pytest.mark.asyncio
    async def test_of_an_async_generator_too(self, start: Any) -> None:
        await asyncio.to_thread(start)

        @guard.protect
        async def steps() -> AsyncIterator[str | None]:
            async with guard.workflow("w"):
                for _ in range(3):
                    await asyncio.sleep(0)
                    yield here()

        found = []
        async for step in steps():
            assert current_scope.get() is OUTSIDE
            found.append(step)
        assert found == ["w"] * 3

    def test_its_events_belong_to_the_workflow(self, runtime: GuardRuntime, tenant: Any) -> None:
        @guard.protect
        def steps() -> Iterator[int]:
            with guard.workflow("w"):
                yield 1
                guard.track_llm(3, 4, model="m")
                yield 2

        assert list(steps()) == [1, 2]
        runtime.flush(WAIT_S)
        (event,) = tenant.llm_events("w")
        assert event["data"]["input_tokens"] == 3

    @pytest.mark.usefixtures("runtime")
    def test_a_kill_of_the_workflow_ends_it_at_the_next_step(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        cleaned_up: list[str | None] = []

        @guard.protect
        def steps() -> Iterator[int]:
            with guard.workflow("w"):
                try:
                    yield 1
                    yield 2
                finally:
                    cleaned_up.append(here())

        stream = steps()
        assert next(stream) == 1
        tenant.admin.kill("w", reason="stop it")
        until(lambda: runtime.enforcement.control.kills, WAIT_S)
        with pytest.raises(guard.WorkflowKilledInterrupt) as killed:
            next(stream)
        assert killed.value.workflow_id == "w"
        assert cleaned_up == ["w"], "the body cleans up in its own scope"
        assert current_scope.get() is OUTSIDE

    @pytest.mark.usefixtures("runtime")
    def test_a_pause_does_not_interrupt_one_that_runs(
        self, runtime: GuardRuntime, tenant: Any
    ) -> None:
        @guard.protect
        def steps() -> Iterator[int]:
            yield 1
            yield 2

        with guard.workflow("w"):
            stream = steps()
            assert next(stream) == 1
            tenant.admin.pause("w")
            until(lambda: runtime.enforcement.control.pauses, WAIT_S)
            assert list(stream) == [2]
            with pytest.raises(guard.WorkflowPausedException):  # type: ignore[attr-defined]
                list(steps())

    @pytest.mark.usefixtures("runtime")
    def test_one_that_is_abandoned_in_another_scope_cleans_up_in_its_own(self) -> None:
        seen: list[str | None] = []

        @guard.protect
        def steps() -> Iterator[int]:
            with guard.workflow("a"):
                try:
                    yield 1
                finally:
                    seen.append(here())

        stream = steps()
        assert contextvars.copy_context().run(next, stream) == 1
        with guard.workflow("b"):
            del stream
            assert here() == "b"
        assert seen == ["a"]
        assert here() == "default"


def leaky(name: str) -> Iterator[str | None]:
    """Nothing drives this generator: its scope is its consumer's until it ends."""
    with guard.workflow(name):
        yield here()


class TestUndrivenGenerators:
    """Closed in the context that it was begun in, but inside or after somebody else's scope."""

    def run(self, work: Callable[[], None]) -> None:
        contextvars.copy_context().run(work)

    @pytest.mark.usefixtures("switched_off")
    def test_closed_inside_a_scope_that_was_opened_since(self) -> None:
        def work() -> None:
            stream = leaky("a")
            assert next(stream) == "a"
            with guard.workflow("b"):
                stream.close()  # type: ignore[attr-defined]
                assert here() == "b"
            assert here() is None, "the scope of the generator does not come back"

        self.run(work)

    @pytest.mark.usefixtures("switched_off")
    def test_closed_after_the_scope_that_it_was_begun_in(self) -> None:
        def work() -> None:
            with guard.workflow("b"):
                stream = leaky("a")
                assert next(stream) == "a"
            assert here() is None, "leaving a scope leaves what was left open inside it"
            stream.close()  # type: ignore[attr-defined]
            assert here() is None, "the scope that has ended does not come back"

        self.run(work)

    @pytest.mark.usefixtures("switched_off")
    def test_exhausted_after_the_scope_that_it_was_begun_in(self) -> None:
        def work() -> None:
            with guard.workflow("b"):
                stream = leaky("a")
                next(stream)
            assert next(stream, "end") == "end"
            assert here() is None

        self.run(work)


class TestAWorkflowBeforeInit:
    @pytest.fixture(autouse=True)
    def _environment(self, tenant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GUARD_API_KEY", tenant.key)
        monkeypatch.setenv("GUARD_API_URL", tenant.url)
        monkeypatch.setattr(active, "current", None)  # as in a process that has just begun

    @pytest.mark.parametrize("kind", [guard.workflow, guard.chain])
    def test_it_initialises_from_the_environment(self, kind: Callable[..., Any]) -> None:
        with kind("w"):
            assert guard.status().state in CONNECTED

    def test_so_does_a_decorated_function(self) -> None:
        @guard.workflow("w")
        def work() -> str:
            return guard.status().state

        assert work() in CONNECTED

    @pytest.mark.asyncio
    async def test_an_asynchronous_one_keeps_the_loop_free(
        self, proxy: ChaosProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GUARD_API_URL", proxy.url)
        proxy.fault = "hang"
        has_entered = False

        async def ticking() -> None:
            """Let the gateway's answer through only once the loop has turned meanwhile."""
            await until_async(lambda: proxy.bytes_up)
            for _ in range(6):
                await asyncio.sleep(0.005)
                assert not has_entered
            proxy.fault = "none"

        async with asyncio.TaskGroup() as group:
            group.create_task(ticking())
            async with guard.workflow("w"):
                has_entered = True
                assert guard.status().state in CONNECTED

    def test_a_rejected_key_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GUARD_API_KEY", "gdk_unknown")
        with pytest.raises(guard.GuardAuthError), guard.workflow("w"):
            raise AssertionError("ran")


class TestTheRuntimeOfACall:
    def test_a_call_stays_with_the_runtime_that_admitted_it(
        self, start: Callable[..., GuardRuntime]
    ) -> None:
        first = start()

        @guard.protect
        def steps() -> Iterator[int]:
            yield 1
            yield 2

        stream = steps()
        assert next(stream) == 1
        first.shutdown(flush=False)
        start()
        assert list(stream) == [2]


class Argument:
    """Something that a call holds on to."""


def returns(argument: Argument) -> None: ...


def raises(argument: Argument) -> None:
    raise LookupError


def yields(argument: Argument) -> Iterator[int]:
    yield 1


async def returns_later(argument: Argument) -> None: ...


async def raises_later(argument: Argument) -> None:
    raise LookupError


async def yields_later(argument: Argument) -> AsyncIterator[int]:
    yield 1


@pytest.fixture
def _no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


DECORATORS = [guard.protect, guard.workflow("w")]


@pytest.mark.parametrize("decorate", DECORATORS)
@pytest.mark.parametrize("function", [returns, raises, yields])
@pytest.mark.usefixtures("runtime", "_no_collection")
def test_a_call_leaves_nothing_to_the_garbage_collector(
    decorate: Callable[..., Any], function: Callable[..., Any]
) -> None:
    def call() -> weakref.ref[Argument]:
        argument = Argument()
        with contextlib.suppress(LookupError):
            list(decorate(function)(argument) or ())
        return weakref.ref(argument)

    assert call()() is None


@pytest.mark.parametrize("decorate", DECORATORS)
@pytest.mark.parametrize("function", [returns_later, raises_later, yields_later])
@pytest.mark.usefixtures("runtime", "_no_collection")
@pytest.mark.asyncio
async def test_nor_does_an_asynchronous_one(
    decorate: Callable[..., Any], function: Callable[..., Any]
) -> None:
    async def call() -> weakref.ref[Argument]:
        argument = Argument()
        with contextlib.suppress(LookupError):
            running = decorate(function)(argument)
            if inspect.isasyncgen(running):
                async for _ in running:
                    pass
            else:
                await running
            del running
        return weakref.ref(argument)

    assert (await call())() is None


def test_a_bound_method_can_be_marked_and_protected(start: Callable[..., GuardRuntime]) -> None:
    start(api_url="http://127.0.0.1:1", timeout_ms=300, fallback_mode="open")

    class Account:
        def delete(self) -> None:
            raise AssertionError("ran")

        def show(self) -> str:
            return "shown"

    account = Account()
    for dangerous in (
        guard.sensitive(guard.protect(account.delete)),
        guard.protect(guard.sensitive(account.delete)),
    ):
        assert dangerous.__name__ == "delete"
        with pytest.raises(guard.GuardError):
            dangerous()
    assert guard.protect(account.show)() == "shown"


def test_a_mark_reaches_the_gate_through_decorators_between(
    start: Callable[..., GuardRuntime],
) -> None:
    start(api_url="http://127.0.0.1:1", timeout_ms=300, fallback_mode="open")

    @guard.sensitive
    @guard.guarded
    @guard.workflow("w")
    @guard.protect
    def dangerous() -> None:
        raise AssertionError("ran")

    with pytest.raises(SystemExit):
        dangerous()


def test_a_coroutine_outside_of_asyncio_says_what_to_do() -> None:
    @guard.protect
    async def call() -> None: ...

    running = call()
    with pytest.raises(guard.GuardConfigError, match=r"trio\.to_thread"):
        running.send(None)
