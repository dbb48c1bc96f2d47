"""A refusal that code inside swallowed is raised at the edge; one that was caught there is not."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import guard
from guard import GuardBudgetError, WorkflowKilledInterrupt
from guard.breaker.exceptions import GuardError, WorkflowPausedException
from guard.breaker.refusals import Refusal
from guard.context import ContextExecutor, carry
from guard.control.enforcement import refusal_in
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import current_scope
from tests.guard.control.test_refusals import halt
from tests.support.slow_server import SlowServer

_ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def refused() -> None:
    """Be refused, as an LLM request is."""
    raise refusal_in(current_scope.get(), GuardBudgetError(workflow_id="w", reason="used up"))


async def refused_async() -> None:
    await asyncio.sleep(0)
    refused()


# -- any nesting of edges, with any handler in each ------------------------------------------------

Body = Callable[[], None]


def _entered(make: Callable[[], Any]) -> Callable[[Body], None]:
    def run(body: Body) -> None:
        with make():
            body()

    return run


def _decorated(make: Callable[[], Any]) -> Callable[[Body], None]:
    return lambda body: make()(body)()  # type: ignore[no-any-return]  # it returns nothing


def _generator(decorator: Any) -> Callable[[Body], None]:
    def run(body: Body) -> None:
        @decorator
        def steps() -> Iterator[int]:
            yield 1
            body()
            yield 2

        assert list(steps()) == [1, 2]

    return run


def _carried(body: Body) -> None:
    carry(body)()


def _in_a_pool(body: Body) -> None:
    with ContextExecutor(1) as pool:
        pool.submit(body).result()


RAISING: dict[str, Callable[[Body], None]] = {
    "workflow": _entered(lambda: guard.workflow("w")),
    "workflow, decorating": _decorated(lambda: guard.workflow("w")),
    "workflow of a generator": _generator(guard.workflow("w")),
    "chain": _entered(lambda: guard.chain("c")),
    "protect": _decorated(lambda: guard.protect),
    "protected generator": _generator(guard.protect),
}
"""They raise what was swallowed inside."""

PASSING: dict[str, Callable[[Body], None]] = {
    "span": _entered(lambda: guard.span("s")),
    "span, decorating": _decorated(lambda: guard.span("s")),
    "agent of a generator": _generator(guard.agent("a")),
    "tags": _entered(lambda: guard.context.tags(team="x")),
    "carry": _carried,
    "pool": _in_a_pool,
}
"""They leave it to the edge around them."""


class Unrelated(Exception):
    """An error of the user's."""


def _propagate(body: Body) -> None:
    body()


def _swallow(body: Body) -> None:
    with contextlib.suppress(BaseException):
        body()


def _catch_public(body: Body) -> None:
    with contextlib.suppress(GuardError):
        body()


def _catch_exception(body: Body) -> None:
    with contextlib.suppress(Exception):
        body()


def _translate(body: Body) -> None:
    try:
        body()
    except BaseException:
        raise Unrelated from None


HANDLERS = {
    "lets it through": _propagate,
    "swallows everything": _swallow,
    "catches it by its public name": _catch_public,
    "swallows Exceptions": _catch_exception,
    "makes its own error of it": _translate,
}


def expected(levels: list[tuple[str, str]]) -> str:
    """Say how a nesting ends whose innermost code is refused: "ends", "refused" or "unrelated"."""
    arrives, owed = "private", True
    for number, (edge, handler) in enumerate(reversed(levels)):
        if handler == "makes its own error of it" and arrives != "ends":
            arrives = "unrelated"
        elif (
            handler == "swallows everything"
            or (handler == "catches it by its public name" and arrives == "refused")
            or (handler == "swallows Exceptions" and arrives in ("refused", "unrelated"))
        ):
            arrives = "ends"
        is_outermost = number == len(levels) - 1
        raises = arrives == "unrelated" or (arrives == "ends" and (edge in RAISING or is_outermost))
        if arrives == "private" or (owed and raises):
            arrives = "refused"
        owed = owed and arrives == "ends"
    return arrives


EDGES = RAISING | PASSING


NESTINGS = 400


@pytest.mark.generator("nestings of edges that swallow a refusal")
def test_any_nesting(runtime: GuardRuntime, count_cases: Callable[[int], None]) -> None:
    choose = random.Random(31)
    ends: Counter[str] = Counter()
    for _ in range(NESTINGS):
        edges = [choose.choice(sorted(RAISING))]
        edges += choose.choices(sorted(EDGES), k=choose.randrange(5))
        levels = list(zip(edges, choose.choices(sorted(HANDLERS), k=5), strict=False))
        body: Body = refused
        for edge, handler in reversed(levels):
            body = functools.partial(EDGES[edge], functools.partial(HANDLERS[handler], body))
        ended = "ends"
        try:
            body()
        except GuardBudgetError:
            ended = "refused"
        except Unrelated:
            ended = "unrelated"
        assert ended == expected(levels), levels
        assert current_scope.get().entry is None
        ends[ended] += 1
    count_cases(NESTINGS)
    assert all(ends[ended] > NESTINGS // 20 for ended in ("ends", "refused", "unrelated"))


# -- ways in which real code swallows --------------------------------------------------------------


async def _gathered() -> None:
    (found,) = await asyncio.gather(refused_async(), return_exceptions=True)
    assert isinstance(found, Refusal)


async def _tested_for_exception() -> None:
    """As LangChain does, and an agent around it that goes on after any error."""
    for _ in range(3):
        with contextlib.suppress(Exception):
            (found,) = await asyncio.gather(refused_async(), return_exceptions=True)
            if not isinstance(found, Exception):
                found.generations  # type: ignore[union-attr]  # noqa: B018


async def _waited() -> None:
    task = asyncio.create_task(refused_async())
    await asyncio.wait([task])
    assert isinstance(task.exception(), Refusal)


async def _in_a_callback() -> None:
    task = asyncio.create_task(refused_async())
    task.add_done_callback(lambda done: done.exception())
    while not task.done():
        await asyncio.sleep(0)


async def _in_a_thread() -> None:
    with contextlib.suppress(BaseException):
        await asyncio.to_thread(refused)


async def _returned_from_finally() -> None:
    def quiet() -> None:
        try:
            refused()
        finally:
            return  # noqa: B012

    quiet()


async def _in_an_inner_span() -> None:
    with guard.span("inner"):
        await _gathered()


async def _by_a_carried_thread() -> None:
    def quiet() -> None:
        with contextlib.suppress(BaseException):
            refused()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(carry(quiet)).result()


SWALLOWING = [
    _gathered, _tested_for_exception, _waited, _in_a_callback, _in_a_thread,
    _returned_from_finally, _in_an_inner_span, _by_a_carried_thread,
]  # fmt: skip


async def _by_async_with(swallows: Callable[[], Any]) -> None:
    async with guard.workflow("w"):
        await swallows()


async def _by_protect(swallows: Callable[[], Any]) -> None:
    await guard.protect(swallows)()


async def _by_decorator(swallows: Callable[[], Any]) -> None:
    await guard.workflow("w")(swallows)()


async def _by_generator(swallows: Callable[[], Any]) -> None:
    @guard.protect
    async def steps() -> AsyncIterator[int]:
        await swallows()
        yield 1

    iterator = steps()
    assert await anext(iterator) == 1, "the body goes on"
    async for _ in iterator:
        raise AssertionError("another item")


@pytest.mark.parametrize("edge", [_by_async_with, _by_protect, _by_decorator, _by_generator])
@pytest.mark.parametrize("swallows", SWALLOWING, ids=lambda each: each.__name__.strip("_"))
@pytest.mark.asyncio
async def test_it_is_raised_at_the_edge(start: Any, edge: Any, swallows: Any) -> None:
    await asyncio.to_thread(start)
    with pytest.raises(GuardBudgetError) as found:
        await edge(swallows)
    assert any("swallowed" in note for note in found.value.__notes__)


@pytest.mark.asyncio
async def test_what_is_caught_in_gathered_protected_calls_is_handled(start: Any) -> None:
    """Each is an edge of its own, which makes its refusal public."""
    await asyncio.to_thread(start)

    @guard.protect
    async def one(number: int) -> int:
        if number % 2:
            await refused_async()
        return number

    async with guard.workflow("w"):
        found = await asyncio.gather(*map(one, range(6)), return_exceptions=True)
    assert [type(each) for each in found] == [int, GuardBudgetError] * 3


@pytest.mark.usefixtures("runtime")
class TestOtherEnds:
    def test_a_kill_that_was_swallowed_is_raised(self) -> None:
        def killed() -> None:
            raise refusal_in(current_scope.get(), WorkflowKilledInterrupt(workflow_id="w"))

        with pytest.raises(WorkflowKilledInterrupt), guard.workflow("w"):
            _swallow(killed)

    def test_the_users_own_way_out_stays(self) -> None:
        def leaves(way_out: BaseException) -> None:
            with guard.workflow("w"):
                _swallow(refused)
                raise way_out

        for way_out in (SystemExit(3), KeyboardInterrupt()):
            with pytest.raises(type(way_out)):
                leaves(way_out)

    def test_the_next_entry_begins_without_it(self) -> None:
        flow = guard.workflow("w")
        with pytest.raises(GuardBudgetError), flow:
            _swallow(refused)
        with flow:
            pass

    def test_hooks_and_the_event_tell_of_it(self, tenant: Any) -> None:
        told: list[str] = []
        guard.on_error(lambda error, context: told.append(f"{error.error_code} {context.stage}"))

        @guard.protect
        def body() -> None:
            _swallow(refused)

        with pytest.raises(GuardBudgetError), guard.workflow("w"):
            body()
        guard.shutdown(timeout=60)
        assert told == ["GD-B004 call"]
        (span,) = [
            event["data"] for event in tenant.admin.events(workflow_id="w", type="span")
            if event["data"]["kind"] == "call"
        ]  # fmt: skip
        assert span["outcome"] == "refused"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.asyncio
async def test_an_agent_of_langchains_that_goes_on_after_any_error(
    start: Any, server: SlowServer
) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    runtime = await asyncio.to_thread(start)
    model = langchain_openai.ChatOpenAI(model="m", base_url=f"{server.url}/v1", api_key="k")
    errors: list[str] = []

    async def agent() -> None:
        async with guard.workflow("w"):
            halt(runtime, "pause")
            for _ in range(3):
                try:
                    await model.ainvoke("hello")
                except Exception as exc:
                    errors.append(str(exc))

    with pytest.raises(WorkflowPausedException):
        await agent()
    assert errors == ["'Refusal' object has no attribute 'generations'"] * 3
    assert server.requests == []
