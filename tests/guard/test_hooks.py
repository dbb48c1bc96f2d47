"""Error hooks: order, isolation, once per error, never for the interrupt (spec part 4)."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from guard import ErrorContext, GuardError, WorkflowKilledInterrupt, on_error
from guard.breaker.exceptions import BreakerTransportError, GuardBudgetError, InsecureTransportError
from guard.hooks import Hook, fire

HERE = ErrorContext("gate", "w", "t", "gk_…")


def test_hooks_are_told_in_the_order_of_registration() -> None:
    told: list[tuple[str, GuardError, ErrorContext]] = []

    def hook(name: str) -> Hook:
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
def test_a_hook_is_callable(hook: Any) -> None:
    with pytest.raises(TypeError, match="callable"):
        on_error(hook)


def test_registrations_from_many_threads_are_all_kept() -> None:
    told: list[int] = []
    kept_by_all = 40
    start = threading.Barrier(kept_by_all)

    def register(number: int) -> None:
        start.wait(30)
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
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    fire(GuardError(), HERE)
    assert sorted(told) == list(range(kept_by_all))
