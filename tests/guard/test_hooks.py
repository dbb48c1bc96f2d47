"""Error hooks: order, isolation, once per error, never for the interrupt (spec part 4)."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import attrs
import pytest

from guard import ErrorContext, GuardError, WorkflowKilledInterrupt, hooks, on_error
from guard.breaker.exceptions import BreakerTransportError, GuardBudgetError, InsecureTransportError
from guard.hooks import ErrorHook, fire, fire_async, fire_in_background, on_warning

HERE = ErrorContext("gate", "w", "t", "gk_…")
variable: ContextVar[str] = ContextVar("variable")


def test_hooks_are_told_in_the_order_of_registration() -> None:
    told: list[tuple[str, GuardError, ErrorContext]] = []

    def hook(name: str) -> ErrorHook:
        return lambda error, context: told.append((name, error, context))

    for name in "abc":
        on_error(hook(name))
    error = GuardBudgetError()
    fire(error, HERE)
    assert told == [(name, error, HERE) for name in "abc"]


def test_the_context_has_the_fields_of_the_spec() -> None:
    """Part 2: stage, workflow_id, tool_name, api_key_prefix."""
    assert [field.name for field in attrs.fields(ErrorContext)] == [
        "stage", "workflow_id", "tool_name", "api_key_prefix"
    ]  # fmt: skip
    assert ErrorContext("init") == ErrorContext("init", None, None, "")


def test_once_per_error_however_many_boundaries_it_passes() -> None:
    told: list[GuardError] = []
    on_error(lambda error, _: told.append(error))
    first, second = GuardError("same text"), GuardError("same text")
    for error in (first, first, second, first):
        fire(error, HERE)
    assert told == [first, second]


@pytest.mark.parametrize(
    "error",
    [
        WorkflowKilledInterrupt(), KeyboardInterrupt(), ValueError(), BreakerTransportError(),
        InsecureTransportError(), SystemExit(),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_not_for_the_interrupt_nor_for_what_is_no_guard_error(error: BaseException) -> None:
    told: list[object] = []
    on_error(lambda error, _: told.append(error))
    fire(error, HERE)
    assert told == []


def test_a_hook_that_raises_is_logged_at_debug_and_hurts_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[str] = []

    def broken(error: GuardError, context: ErrorContext) -> None:
        told.append("broken")
        raise ZeroDivisionError("in the hook")

    on_error(broken)
    on_error(lambda error, context: told.append("fine"))
    with caplog.at_level(logging.DEBUG, "guard"):
        fire(GuardError("x"), HERE)
    assert told == ["broken", "fine"]
    [line] = caplog.records
    assert line.levelno == logging.DEBUG
    assert line.exc_info is not None
    assert line.exc_info[0] is ZeroDivisionError


def test_a_hook_of_the_wrong_shape_hurts_nobody() -> None:
    on_error(lambda: None)  # type: ignore[arg-type, misc]  # it takes no arguments: that is the test
    fire(GuardError("x"), HERE)


def test_unregistering_is_idempotent_and_concerns_one_registration() -> None:
    told: list[str] = []

    def hook(error: GuardError, context: ErrorContext) -> None:
        told.append("told")

    first, second = on_error(hook), on_error(hook)
    fire(GuardError(), HERE)
    assert len(told) == 2
    first()
    first()
    fire(GuardError(), HERE)
    assert len(told) == 3, "the same function registered twice is two registrations"
    second()
    second()
    fire(GuardError(), HERE)
    assert len(told) == 3


def test_a_hook_may_unregister_itself_and_register_others_while_it_is_told() -> None:
    told: list[str] = []
    undo: list[Callable[[], None]] = []

    def once(error: GuardError, context: ErrorContext) -> None:
        told.append("once")
        undo[0]()
        on_error(lambda error, context: told.append("late"))

    undo.append(on_error(once))
    on_error(lambda error, context: told.append("other"))
    fire(GuardError(), HERE)
    assert told == ["once", "other"], "who registers meanwhile is told of the next error"
    fire(GuardError(), HERE)
    assert told == ["once", "other", "other", "late"]


@pytest.mark.parametrize("hook", [None, 5, "print"])
@pytest.mark.parametrize("register", [on_error, on_warning])
def test_a_hook_is_callable(register: Callable[..., Any], hook: Any) -> None:
    with pytest.raises(TypeError, match="callable"):
        register(hook)


@pytest.mark.parametrize("raised", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_what_a_hook_raises_stays_with_it(raised: type[BaseException]) -> None:
    told: list[str] = []

    def leaves(error: GuardError, context: ErrorContext) -> None:
        raise raised

    on_error(leaves)
    on_error(lambda error, context: told.append("told"))
    fire(GuardError(), HERE)
    fire_in_background(GuardError(), HERE)
    hooks.wait(120)
    assert told == ["told"] * 2


@pytest.mark.parametrize("raised", [KeyboardInterrupt, WorkflowKilledInterrupt])
def test_what_is_meant_for_the_thread_passes(raised: type[BaseException]) -> None:
    """Ctrl-C, or a kill of the body around the call whose error the hook is told of."""

    def interrupted(error: GuardError, context: ErrorContext) -> None:
        raise raised

    on_error(interrupted)
    with pytest.raises(raised):
        fire(GuardError(), HERE)


def test_a_hook_in_the_background_blocks_nobody_and_keeps_the_order() -> None:
    told: list[str] = []
    release = threading.Event()

    def slow(error: GuardError, context: ErrorContext) -> None:
        release.wait(120)
        told.append(str(error))

    on_error(slow)
    for text in "abc":
        fire_in_background(GuardError(text), HERE)
    assert told == []
    release.set()
    hooks.wait(120)
    assert [text[-1] for text in told] == ["a", "b", "c"]


@pytest.mark.asyncio
async def test_an_asynchronous_caller_awaits_the_hooks_and_its_loop_goes_on() -> None:
    told: list[str] = []
    release = threading.Event()
    variable.set("the caller's")

    def slow(error: GuardError, context: ErrorContext) -> None:
        release.wait(120)
        told.append(variable.get())

    on_error(slow)
    firing = asyncio.create_task(fire_async(GuardError(), HERE))
    await asyncio.sleep(0.01)  # the hook blocks, this loop does not
    assert told == []
    release.set()
    await firing
    assert told == ["the caller's"]


def test_registrations_from_many_threads_are_all_kept() -> None:
    told: list[int] = []
    kept_by_all = 40
    start = threading.Barrier(kept_by_all)

    def register(number: int) -> None:
        start.wait(120)
        for _ in range(25):
            on_error(lambda error, context: None)()
        on_error(lambda error, context: told.append(number))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=register, args=(n,)) for n in range(kept_by_all)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(interval)
    fire(GuardError(), HERE)
    assert sorted(told) == list(range(kept_by_all))
