"""What a halt means for the caller, and the carrier that takes a refusal through foreign code."""

from __future__ import annotations

from guard.breaker.exceptions import (
    GuardBudgetError,
    GuardError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from guard.core.control import Halt


class Refusal(BaseException):
    """Carries a public exception from the transport seam to the scope's boundary.

    Vendor clients retry an ``Exception`` and agent frameworks turn one into text for the model; a
    ``BaseException`` passes through both. It never leaves a ``@protect`` or ``workflow`` scope.
    """

    def __init__(self, error: GuardError) -> None:
        super().__init__(str(error))
        self.error = error


def exception_for_halt(
    halt: Halt, workflow_id: str | None
) -> WorkflowKilledInterrupt | WorkflowPausedException | GuardBudgetError:
    """Return the public exception that a halt raises."""
    if halt.kind == "kill":
        return WorkflowKilledInterrupt(workflow_id=workflow_id, reason=halt.reason)
    if halt.kind == "pause":
        until_s = None if halt.resume_at_ms is None else halt.resume_at_ms / 1000
        return WorkflowPausedException(
            workflow_id=workflow_id, reason=halt.reason, resume_after=until_s
        )
    return GuardBudgetError(
        workflow_id=workflow_id,
        reason=halt.reason or "the budget is exhausted",
        action="block",
        details={"budget": halt.budget} if halt.budget is not None else None,
    )


def unwrap(exc: BaseException) -> BaseException:
    """Return the one refusal or kill inside nested single-leaf groups, or ``exc`` itself.

    ``asyncio.TaskGroup`` wraps what its tasks raise; user code should not have to know.
    """
    leaf = exc
    while isinstance(leaf, BaseExceptionGroup) and len(leaf.exceptions) == 1:
        leaf = leaf.exceptions[0]
    if isinstance(leaf, Refusal):
        return leaf.error
    return leaf if isinstance(leaf, WorkflowKilledInterrupt) else exc
