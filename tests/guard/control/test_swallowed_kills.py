"""A kill that the body's own code swallows is raised again until the body ends, and never after.

A matrix: what swallows it, where the body runs, and whether it computes or waits meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import guard
from guard import WorkflowKilledInterrupt
from guard.control.cleanup_time import CleanupTime
from guard.runtime.runtime import GuardRuntime
from tests.support.waiting import WAIT_S

pytestmark = [
    pytest.mark.generator("ways to swallow a kill"),
    pytest.mark.usefixtures("connected"),
    pytest.mark.interpreters,
    pytest.mark.skipif(sys.gettrace() is not None, reason="who traces the process keeps it"),
]

_NEVER = "ran to its end"
AFTER = 20_000
"""How many steps run after the protected call, for what might be raised in them."""


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean-up that goes on is interrupted again soon; how long is not the subject here."""
    monkeypatch.setattr(CleanupTime, "first_s", 0.1)


class Body:
    """What a body does until it is stopped.

    Attributes:
        entered: set once it is at work.
        ran_out: whether it has gone on to its own end.
    """

    def __init__(self, *, waits: bool) -> None:
        self.entered = threading.Event()
        self.ran_out = False
        self._waits = waits
        self._ends_s = time.monotonic() + WAIT_S

    def runs(self) -> bool:
        self.ran_out = time.monotonic() >= self._ends_s
        return not self.ran_out

    def step(self) -> None:
        self.entered.set()
        if self._waits:
            time.sleep(0.01)
        else:
            for _ in range(2000):
                pass

    async def step_async(self) -> None:
        self.entered.set()
        await asyncio.sleep(0.01 if self._waits else 0)


# -- what swallows a kill -------------------------------------------------------------------------


def bare_except(body: Body) -> None:
    while body.runs():
        try:  # noqa: SIM105
            body.step()
        except:  # noqa: E722
            pass


def except_base(body: Body) -> None:
    while body.runs():
        try:
            body.step()
        except BaseException as exc:
            str(exc)


def suppressed(body: Body) -> None:
    while body.runs():
        with contextlib.suppress(BaseException):
            body.step()


def kept(body: Body) -> None:
    errors = []
    while body.runs():
        try:
            body.step()
        except BaseException as exc:
            errors.append(exc)


def nested(body: Body) -> None:
    while body.runs():
        try:
            try:
                body.step()
            except BaseException:
                body.step()
        except BaseException:
            pass


def in_a_function(body: Body) -> None:
    def careful() -> None:
        with contextlib.suppress(BaseException):
            body.step()

    while body.runs():
        careful()


def finally_that_goes_on(body: Body) -> None:
    try:
        while body.runs():
            body.step()
    finally:
        while body.runs():
            body.step()


def handler_that_goes_on(body: Body) -> None:
    try:
        while body.runs():
            body.step()
    except BaseException:
        while body.runs():
            body.step()
        raise


def in_a_callback(body: Body) -> None:
    """What is raised in a weak reference's callback is only printed, as in ``__del__``."""

    class Thing:
        pass

    def dropped(reference: object) -> None:
        for _ in range(5):
            body.step()

    while body.runs():
        thing = Thing()
        reference = weakref.ref(thing, dropped)
        del thing, reference


def in_a_finaliser(body: Body) -> None:
    class Thing:
        def __del__(self) -> None:
            body.step()

    while body.runs():
        Thing()


def around_a_protected_call(body: Body) -> None:
    """The inner call is stopped; the body around it swallows that and goes on."""
    inner = guard.protect(except_base)
    with contextlib.suppress(BaseException):
        inner(body)
    while body.runs():
        body.step()


def around_an_event_loop(body: Body) -> None:
    async def main() -> None:
        await except_async(body)

    while body.runs():
        with contextlib.suppress(BaseException):
            asyncio.run(main())


async def except_async(body: Body) -> None:
    while body.runs():
        try:
            await body.step_async()
        except BaseException as exc:
            str(exc)


SYNC: dict[str, Callable[[Body], None]] = {
    function.__name__: function
    for function in (
        bare_except, except_base, suppressed, kept, nested, in_a_function, finally_that_goes_on,
        handler_that_goes_on, in_a_callback, in_a_finaliser, around_a_protected_call,
        around_an_event_loop,
    )
}  # fmt: skip


async def bare_except_async(body: Body) -> None:
    while body.runs():
        try:  # noqa: SIM105
            await body.step_async()
        except:  # noqa: E722
            pass


async def cancelled_async(body: Body) -> None:
    while body.runs():
        with contextlib.suppress(asyncio.CancelledError):
            await body.step_async()


async def kept_async(body: Body) -> None:
    errors = []
    while body.runs():
        try:
            await body.step_async()
        except BaseException as exc:
            errors.append(exc)


async def nested_async(body: Body) -> None:
    while body.runs():
        try:
            try:
                await body.step_async()
            except BaseException:
                await body.step_async()
        except BaseException:
            pass


async def uncancelled_async(body: Body) -> None:
    """As asyncio's own timeouts do it."""
    while body.runs():
        try:
            await body.step_async()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()


async def finally_that_goes_on_async(body: Body) -> None:
    try:
        while body.runs():
            await body.step_async()
    finally:
        while body.runs():
            await body.step_async()


async def around_a_protected_call_async(body: Body) -> None:
    inner = guard.protect(cancelled_async)
    with contextlib.suppress(BaseException):
        await inner(body)
    while body.runs():
        await body.step_async()


ASYNC: dict[str, Callable[[Body], Awaitable[None]]] = {
    function.__name__: function
    for function in (
        bare_except_async, except_async, cancelled_async, kept_async, nested_async,
        uncancelled_async, finally_that_goes_on_async, around_a_protected_call_async,
    )
}  # fmt: skip


# -- where it runs --------------------------------------------------------------------------------


def _outcome(call: Callable[[], object]) -> BaseException | str:
    """Return how a protected call ends, if nothing is raised after it."""
    outcome: BaseException | str = _NEVER
    try:
        try:
            call()
        except WorkflowKilledInterrupt as exc:
            outcome = exc
        for number in range(AFTER):
            max(number, 0)
    except BaseException as exc:
        return AssertionError(f"raised after the call: {exc!r}")
    return outcome


def _in_a_thread(function: Callable[[Body], None], body: Body) -> BaseException | str:
    outcomes: list[BaseException | str] = []

    def run() -> None:
        with guard.workflow("w"):
            outcomes.append(_outcome(lambda: guard.protect(function)(body)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_S + 60)
    return outcomes[0]


def _in_the_main_thread(function: Callable[[Body], None], body: Body) -> BaseException | str:
    with guard.workflow("w"):
        return _outcome(lambda: guard.protect(function)(body))


def _in_an_executor(function: Callable[[Body], None], body: Body) -> BaseException | str:
    with ThreadPoolExecutor(1) as pool, guard.workflow("w"):
        carried = guard.context.carry(function)
        outcome = pool.submit(_outcome, lambda: carried(body)).result(WAIT_S + 60)
        after = pool.submit(_outcome, lambda: None).result(WAIT_S)
    return outcome if after == _NEVER else after


def _in_a_generator(function: Callable[[Body], None], body: Body) -> BaseException | str:
    @guard.protect
    def items() -> Iterator[int]:
        yield 1
        function(body)
        yield 2

    with guard.workflow("w"):
        return _outcome(lambda: list(items()))


PLACES = {
    "thread": _in_a_thread,
    "main thread": _in_the_main_thread,
    "executor": _in_an_executor,
    "generator": _in_a_generator,
}


def _cases(kinds: Iterable[str], places: Iterable[str]) -> list[Any]:
    """Return every case; one for each kind is in the default run."""
    usual = next(iter(places))
    return [
        pytest.param(kind, place, waits, marks=() if place == usual and waits else pytest.mark.long)
        for kind in kinds
        for place in places
        for waits in (True, False)
    ]


# A loop that is interrupted while it is made or closed is left open.
@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("kind", "place", "waits"), _cases(SYNC, PLACES))
def test_a_plain_body_ends(
    operator: Any, connected: GuardRuntime, kind: str, place: str, waits: bool
) -> None:
    body = Body(waits=waits)
    operator(body.entered)
    outcome = PLACES[place](SYNC[kind], body)
    assert isinstance(outcome, WorkflowKilledInterrupt), outcome
    assert not body.ran_out
    assert (outcome.workflow_id, outcome.reason) == ("w", "stop it")
    assert sys.gettrace() is None
    assert len(connected.enforcement.bodies) == 0


async def _in_a_task(
    function: Callable[[Body], Awaitable[None]], body: Body
) -> BaseException | str:
    await guard.protect(function)(body)
    return _NEVER


async def _in_an_async_generator(
    function: Callable[[Body], Awaitable[None]], body: Body
) -> BaseException | str:
    @guard.protect
    async def items() -> AsyncIterator[int]:
        yield 1
        await function(body)
        yield 2

    async for _ in items():
        pass
    return _NEVER


ASYNC_PLACES = {"task": _in_a_task, "async generator": _in_an_async_generator}


@pytest.mark.asyncio
@pytest.mark.parametrize(("kind", "place", "waits"), _cases(ASYNC, ASYNC_PLACES))
async def test_a_coroutine_ends(
    operator: Any, connected: GuardRuntime, kind: str, place: str, waits: bool
) -> None:
    body = Body(waits=waits)
    operator(body.entered)
    with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt) as killed:
        await ASYNC_PLACES[place](ASYNC[kind], body)
    assert (killed.value.workflow_id, killed.value.reason) == ("w", "stop it")
    assert not body.ran_out
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    for _ in range(1000):
        await asyncio.sleep(0)  # no cancellation is left over
    assert sys.gettrace() is None
    assert len(connected.enforcement.bodies) == 0
