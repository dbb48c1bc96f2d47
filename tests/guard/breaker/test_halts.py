"""What a halt means for the caller, and how a refusal comes out of task groups."""

from __future__ import annotations

import pytest

from guard.breaker.exceptions import (
    GuardBudgetError,
    GuardToolBlockedError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from guard.breaker.refusals import Refusal, exception_for_halt, unwrap
from guard.core.control import Halt
from guard.core.wire import Budget


def test_a_kill_is_the_interrupt() -> None:
    exc = exception_for_halt(Halt("kill", "runaway"), "w")
    assert isinstance(exc, WorkflowKilledInterrupt)
    assert (exc.workflow_id, exc.reason) == ("w", "runaway")


@pytest.mark.parametrize(("resume_at_ms", "resume_after"), [(None, None), (1_500, 1.5)])
def test_a_pause_says_when_it_ends(resume_at_ms: int | None, resume_after: float | None) -> None:
    exc = exception_for_halt(Halt("pause", "lunch", resume_at_ms), "w")
    assert isinstance(exc, WorkflowPausedException)
    assert (exc.workflow_id, exc.reason, exc.resume_after) == ("w", "lunch", resume_after)


def test_an_exhausted_budget_carries_it() -> None:
    budget = Budget.of(limit=1, spent=1, reserved=0)
    exc = exception_for_halt(Halt("budget", budget=budget), None)
    assert isinstance(exc, GuardBudgetError)
    assert exc.details == {"budget": budget}
    assert exc.reason


def test_the_carrier_is_not_an_exception() -> None:
    """Vendor clients retry exceptions and frameworks turn them into text for the model."""
    assert not issubclass(Refusal, Exception)


def test_a_refusal_comes_out_of_nested_groups() -> None:
    error = GuardToolBlockedError(tool_name="shell")
    kill = WorkflowKilledInterrupt(workflow_id="w")
    for leaf, expected in ((Refusal(error), error), (kill, kill)):
        nested: BaseException = leaf
        for _ in range(4):
            assert unwrap(nested) is expected
            nested = BaseExceptionGroup("tasks", [nested])


def test_a_group_of_several_stays_a_group_and_shows_no_carrier() -> None:
    """User code sees only documented exceptions, also inside a group."""
    refused, own = GuardBudgetError(), ValueError()
    for group in (
        BaseExceptionGroup("tasks", [Refusal(refused), own]),
        BaseExceptionGroup("tasks", [own, BaseExceptionGroup("inner", [Refusal(refused)])]),
    ):
        found = unwrap(group)
        assert isinstance(found, BaseExceptionGroup)
        assert not found.subgroup(Refusal)
        assert found.subgroup(lambda leaf: leaf is own)
        assert found.subgroup(lambda leaf: leaf is refused)


def test_a_group_of_nothing_but_stops_is_the_gravest_of_them() -> None:
    refused, kill = GuardBudgetError(), WorkflowKilledInterrupt(workflow_id="w")
    assert unwrap(BaseExceptionGroup("tasks", [Refusal(refused), kill])) is kill
    assert unwrap(BaseExceptionGroup("tasks", [Refusal(refused), Refusal(refused)])) is refused


def test_what_is_the_users_stays_as_it_is() -> None:
    for exc in (ValueError(), KeyboardInterrupt(), ExceptionGroup("tasks", [ValueError()])):
        assert unwrap(exc) is exc
