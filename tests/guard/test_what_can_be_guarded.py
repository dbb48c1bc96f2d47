"""A decorator guards each call of what it takes, and refuses the rest when it decorates."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import operator
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import guard
from guard.breaker.exceptions import WorkflowPausedException
from guard.core import wire
from guard.runtime.runtime import GuardRuntime
from tests.guard.control.test_refusals import halt
from tests.support.waiting import WAIT_S

DECORATORS: dict[str, Callable[[Any], Any]] = {
    "@protect": guard.protect,
    "@protect()": guard.protect(),
    "@sensitive": guard.sensitive,
    "@guarded": guard.guarded,
    "@workflow": guard.workflow("w"),
    "@chain": guard.chain("c"),
    "@span": guard.span("s"),
    "@agent": guard.agent("a"),
    "@user": guard.context.user("u"),
    "@tags": guard.context.tags(team="x"),
    "@options": guard.context.options(model="m"),
    "@ask": guard.context.ask("Pay?"),
}


class Agent:
    """Does its work in methods."""

    def __init__(self) -> None:
        self.tool = "a tool"

    def work(self) -> str:
        return "done"


async def coroutine() -> str:
    return "done"


def generator() -> Iterator[str]:
    yield "done"


@contextlib.contextmanager
def manager() -> Iterator[str]:
    yield "done"


@contextlib.asynccontextmanager
async def async_manager() -> AsyncIterator[str]:
    yield "done"


def closed_coroutine() -> Any:
    made = coroutine()
    made.close()
    return made


def celery_task() -> Any:
    return pytest.importorskip("celery").Celery("app", set_as_current=False).task(plain)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a class": (lambda: Agent, "class Agent: decorate its methods"),
    "a builtin class": (lambda: dict, "class dict: decorate its methods"),
    "a partial of a class": (lambda: functools.partial(Agent), "class Agent: decorate its methods"),
    "a static method that is a class": (lambda: staticmethod(Agent), "class Agent: decorate its"),
    "a property": (lambda: property(Agent.work), "below @property"),
    "a cached property": (lambda: functools.cached_property(Agent.work), "below @cached_property"),
    "a partial method": (
        lambda: functools.partialmethod(Agent.work), "function inside the partial",
    ),
    "a dispatching method": (
        lambda: functools.singledispatchmethod(Agent.work), "below @singledispatchmethod",
    ),
    "a class method of a property": (lambda: classmethod(property(Agent.work)), "below @property"),
    "a context manager": (lambda: manager, "below @contextmanager"),
    "an asynchronous context manager": (lambda: async_manager, "below @asynccontextmanager"),
    "a coroutine": (closed_coroutine, "the function itself, not a call of it"),
    "a generator": (generator, "the function itself, not a call of it"),
    "a task of Celery": (celery_task, "below the decorator that made the task plain"),
    "an object": (Agent, "takes a callable, not Agent"),
    "a string": (lambda: "work", "takes a callable, not str"),
    "a number": (lambda: 5, "takes a callable, not int"),
}  # fmt: skip


@pytest.mark.generator("things that protect can and cannot guard")
@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("decorator", DECORATORS)
def test_what_it_cannot_guard_is_refused_at_decoration(decorator: str, what: str) -> None:
    make, advice = REFUSED[what]
    with pytest.raises(TypeError, match=advice) as refused:
        DECORATORS[decorator](make())
    assert str(refused.value).startswith(decorator.removesuffix("()"))


# -- what it takes -------------------------------------------------------------------------------

ran: list[str] = []


def plain(*arguments: object) -> str:
    ran.append("ran")
    return "done"


async def asynchronous(*arguments: object) -> str:
    return plain()


def steps(*arguments: object) -> Iterator[str]:
    yield plain()


async def async_steps(*arguments: object) -> AsyncIterator[str]:
    yield plain()


class Callables:
    """Objects that are called, of each kind."""

    class Plain:
        def __call__(self) -> str:
            return plain()

    class Asynchronous:
        async def __call__(self) -> str:
            return await asynchronous()

    class Steps:
        def __call__(self) -> Iterator[str]:
            return (yield from steps())

    class Slotted:
        __slots__ = ()

        def __call__(self) -> str:
            return plain()


class Holder:
    def bound(self) -> str:
        return plain()

    @classmethod
    def of_class(cls) -> str:
        return plain()


def _in_class(member: Any) -> Any:
    """Return a class's member as its user gets it."""
    return type("Made", (), {"member": member})().member


async def _first(iterator: Any) -> Any:
    (item,) = [item async for item in iterator]
    return item


TAKEN: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "function": lambda protect: protect(plain),
    "lambda": lambda protect: protect(lambda: plain()),
    "coroutine function": lambda protect: protect(asynchronous),
    "generator function": lambda protect: protect(steps),
    "asynchronous generator function": lambda protect: protect(async_steps),
    "static method": lambda protect: _in_class(protect(staticmethod(plain))),
    "static method, inside": lambda protect: _in_class(staticmethod(protect(plain))),
    "class method": lambda protect: _in_class(protect(classmethod(plain))),
    "class method, inside": lambda protect: _in_class(classmethod(protect(plain))),
    "static coroutine method": lambda protect: _in_class(protect(staticmethod(asynchronous))),
    "method": lambda protect: _in_class(protect(plain)),
    "bound method": lambda protect: protect(Holder().bound),
    "bound class method": lambda protect: protect(Holder.of_class),
    "inside a property": lambda protect: lambda: _in_class(property(protect(plain))),
    "inside a context manager": lambda protect: (
        lambda: contextlib.contextmanager(protect(steps))().__enter__()
    ),
    "partial": lambda protect: protect(functools.partial(plain, 1)),
    "partial of a partial": lambda protect: protect(
        functools.partial(functools.partial(plain, 1), 2)
    ),
    "partial of a coroutine function": lambda protect: protect(functools.partial(asynchronous, 1)),
    "partial of a generator function": lambda protect: protect(functools.partial(steps, 1)),
    "partial of an object": lambda protect: protect(functools.partial(Callables.Plain())),
    "object": lambda protect: protect(Callables.Plain()),
    "object without a dictionary": lambda protect: protect(Callables.Slotted()),
    "asynchronous object": lambda protect: protect(Callables.Asynchronous()),
    "generating object": lambda protect: protect(Callables.Steps()),
    "builtin": lambda protect: functools.partial(protect(operator.methodcaller("__call__")), plain),
    "plain wrapper of a coroutine function": lambda protect: protect(decorated(asynchronous)),
    "plain wrapper of a generator function": lambda protect: protect(decorated(steps)),
    "plain wrapper of an asynchronous generator function": lambda protect: protect(
        decorated(async_steps)
    ),
    "cached": lambda protect: protect(functools.lru_cache(plain)),
    "dispatching": lambda protect: functools.partial(protect(functools.singledispatch(plain)), 1),
    "protected twice": lambda protect: protect(protect(plain)),
}


def _call(made: Any) -> Any:
    result = made()
    if hasattr(result, "__await__"):
        return asyncio.run(result)
    if hasattr(result, "__anext__"):
        return asyncio.run(_first(result))
    return next(result) if hasattr(result, "__next__") else result


@pytest.mark.generator("things that protect can and cannot guard")
@pytest.mark.parametrize("kind", TAKEN)
def test_each_call_of_what_it_takes_is_guarded(runtime: GuardRuntime, kind: str) -> None:
    made = TAKEN[kind](guard.protect)
    ran.clear()
    with guard.workflow("w"):
        assert _call(made) == "done"
        assert ran == ["ran"]
        halt(runtime, "pause")
        runtime.enforcement.halts = True
        with pytest.raises(WorkflowPausedException):
            _call(TAKEN[kind](guard.protect))
    assert ran == ["ran"], "it was stopped before its body"


def decorated(function: Any) -> Any:
    """Most decorators make a plain function, also of an asynchronous one."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.generator("things that protect can and cannot guard")
@pytest.mark.parametrize("outcome", ["done", "killed"])
@pytest.mark.parametrize("kind", ["coroutine", "types.coroutine", "generator", "async generator"])
def test_what_a_plain_function_returns_runs_as_its_body(
    runtime: GuardRuntime, tenant: Any, kind: str, outcome: str
) -> None:
    async def coroutine() -> str:
        return inside()

    @types.coroutine
    def old_coroutine() -> Any:
        yield from asyncio.sleep(0).__await__()
        return inside()

    def generator() -> Iterator[str]:
        yield inside()

    async def async_generator() -> AsyncIterator[str]:
        yield inside()

    def inside() -> str:
        bodies.append(len(runtime.enforcement.bodies))
        if outcome == "killed":
            runtime._background.submit(kill).result(WAIT_S)
        return "done"

    async def kill() -> None:
        message = wire.ControlMessage(seq=1, type="kill", workflow_id="w")
        runtime.enforcement.apply(message)

    bodies: list[int] = []
    functions = {"coroutine": coroutine, "types.coroutine": old_coroutine, "generator": generator,
                 "async generator": async_generator}  # fmt: skip
    protected = guard.protect(decorated(functions[kind]))
    killed = pytest.raises(guard.WorkflowKilledInterrupt)
    with guard.workflow("w"), killed if outcome == "killed" else contextlib.nullcontext():
        assert _call(protected) == "done"
    assert bodies == [1]
    assert len(runtime.enforcement.bodies) == 0
    runtime.flush(WAIT_S)
    spans = [event["data"] for event in tenant.admin.events(workflow_id="w", type="span")]
    calls = [span for span in spans if span["kind"] == "call"]
    if kind != "generator" or outcome == "killed":  # it is not read to its end
        assert [call["outcome"] for call in calls] == [{"done": "ok"}.get(outcome, outcome)]


def test_methods_of_what_is_decorated_are_there_afterwards(runtime: GuardRuntime) -> None:
    cached = guard.protect(functools.lru_cache(plain))
    with guard.workflow("w"):
        cached(), cached()
    assert cached.cache_info().hits == 1
    cached.cache_clear()
    assert cached.cache_info().currsize == 0
    agent = guard.protect(Calling())
    assert agent.work() == "done"
    assert agent.tool == "a tool"


class Calling(Agent):
    def __call__(self) -> str:
        return plain()


def test_the_ids_of_a_context_are_there_before_it_is_entered(switched_off: None) -> None:
    for kind, names in (
        (guard.workflow, ("workflow_id", "run_id")),
        (guard.chain, ("chain_id",)),
        (guard.agent, ("agent_id",)),
    ):
        for given in ("x", None):
            context: Any = kind(given)
            before = [getattr(context, name) for name in names]
            assert all(isinstance(each, str) and each for each in before)
            with context:
                assert [getattr(context, name) for name in names] == before
            with context:
                again = [getattr(context, name) for name in names]
            assert (again == before) is (given == "x" and kind is not guard.workflow)


# -- trio ----------------------------------------------------------------------------------------


def _drive(coroutine: Any) -> Any:
    """Run a coroutine as a loop that is not asyncio's does."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return stop.value


class TestTrio:
    """It is not supported, and the first request says so, and what works."""

    @pytest.mark.parametrize("inside", [True, False], ids=["workflow", "default workflow"])
    def test_the_first_request_says_so(self, runtime: GuardRuntime, inside: bool) -> None:
        import httpx

        async def main() -> None:
            client = httpx.AsyncClient()
            await client.post("http://127.0.0.1:9/v1/chat/completions", json={"model": "gpt-4o"})

        scope = guard.workflow("w") if inside else contextlib.nullcontext()
        with pytest.raises(guard.GuardConfigError) as refused, scope:
            _drive(main())
        self._says_what_works(refused.value)

    def test_a_protected_coroutine_says_so(self, runtime: GuardRuntime) -> None:
        with pytest.raises(guard.GuardConfigError) as refused:
            _drive(guard.protect(asynchronous)())
        self._says_what_works(refused.value)

    def _says_what_works(self, error: guard.GuardConfigError) -> None:
        assert error.error_code == "GD-C006"
        for part in ("not trio", "asyncio", "trio.to_thread.run_sync"):
            assert part in str(error)
        said = guard.format_user_message(error)
        assert "set up correctly" not in said
        assert "trio" in said

    def test_what_it_advises_works(self, runtime: GuardRuntime) -> None:
        """A plain function, in a thread that has the context."""
        import contextvars

        found: list[str] = []

        async def main() -> None:
            copied = contextvars.copy_context()
            thread = threading.Thread(
                target=copied.run, args=(lambda: found.append(guard.protect(plain)()),)
            )
            thread.start()
            thread.join(120)

        with guard.workflow("w"):
            _drive(main())
        assert found == ["done"]

    def test_trio_itself(self, runtime: GuardRuntime) -> None:
        """Where it is installed."""
        trio = pytest.importorskip("trio")
        import httpx

        async def main() -> None:
            assert await trio.to_thread.run_sync(guard.protect(plain)) == "done"
            async with httpx.AsyncClient() as client:
                await client.post("http://127.0.0.1:9/v1/completions", json={"model": "gpt-4o"})

        with pytest.raises(guard.GuardConfigError) as refused, guard.workflow("w"):
            trio.run(main)
        self._says_what_works(refused.value)
