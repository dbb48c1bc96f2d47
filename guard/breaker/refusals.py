"""The exceptions of a halt, and the carrier that takes a refusal through third-party code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from guard.breaker.exceptions import (
    GuardBudgetError,
    GuardError,
    WorkflowKilledInterrupt,
    WorkflowPausedException,
)
from guard.core.control import Halt, Mark


class Refusal(BaseException):
    """Carries a public exception from a refusal to the boundary (edge) of the scope around it.

    Vendor clients retry an ``Exception`` and agent frameworks turn one into text for the model; a
    ``BaseException`` passes through both. It never leaves a ``@protect`` or ``workflow`` scope.
    Code inside such a scope can receive one from ``asyncio.gather(return_exceptions=True)``; if it
    swallows it, the refusal is raised at the edge all the same (:func:`error_at_edge`).

    Attributes:
        error: the public exception, such as :class:`GuardBudgetError`.
    """

    def __init__(self, error: GuardError) -> None:
        super().__init__(str(error))
        self.error = error

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows in place of a traceback; IPython calls it, by this name."""
        return self.error._render_traceback_()


def interrupt_for(mark: Mark, workflow_id: str | None) -> WorkflowKilledInterrupt:
    """Return the interrupt that a kill raises in and around a body."""
    return WorkflowKilledInterrupt(workflow_id=workflow_id, reason=mark.reason)


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


_SWALLOWED: Final = (
    "Code inside swallowed this where it was raised first, so it is raised at the edge of the "
    "workflow or call. To handle a refusal inside, catch it around a span or call of its own."
)


class RefusedEntry(Protocol):
    """An entry of a scope that ends; see ``guard.scope.scope.Entry``."""

    refused: BaseException | None

    def pass_on_refusal(self) -> None:
        """Leave the refusal to the edge around."""


def error_at_edge(
    exc: BaseException | None, entry: RefusedEntry, *, raises: bool = True
) -> BaseException | None:
    """Return the exception that the edge of a scope raises when its body ends; None for none.

    A refusal that the body has neither raised nor handled at an edge of its own is raised here: a
    framework may have turned it into its own error (the refusal is raised from that), or into a
    result.

    Args:
        exc: the exception that the body raised; None if it returned.
        entry: the entry of the scope; ``refused`` is the newest refusal inside.
        raises: whether a refusal is raised although the body returned, or is left to the edge
            around.
    """
    error = None if exc is None else unwrap(exc)
    refused = entry.refused
    # 1. No refusal inside, or one arrives here by itself.
    if refused is None or isinstance(error, GuardError | WorkflowKilledInterrupt):
        return error
    # 2. Another error instead of it: a framework has converted the refusal.
    if error is exc and isinstance(error, Exception) and not _returned(error):
        refused.__cause__ = error
        return refused
    # 3. The body returned although it was refused.
    if raises and (error is None or _returned(error)):
        if _SWALLOWED not in getattr(refused, "__notes__", ()):
            refused.add_note(_SWALLOWED)
        return refused
    # 4. The body ends in another way, such as a cancellation, or this edge does not raise.
    entry.pass_on_refusal()
    return error


def _returned(error: BaseException) -> bool:
    """Return whether an exception is the way in which an iterator ends."""
    return isinstance(error, StopIteration | StopAsyncIteration)


def unwrap(exc: BaseException) -> BaseException:
    """Return the public exception inside a carrier, or inside a task group's exception group.

    ``asyncio.TaskGroup`` and anyio wrap what their tasks raise; user code should not have to know.
    A group of only kills and refusals becomes its first kill, else its first refusal; in
    any other group the refusals become public exceptions and the group stays.
    """
    if isinstance(exc, Refusal):
        return exc.error
    if not isinstance(exc, BaseExceptionGroup):
        return exc
    # A kill goes before a refusal, which an `except Exception` could swallow.
    leaves = list(_leaves(exc))
    kills = [leaf for leaf in leaves if isinstance(leaf, WorkflowKilledInterrupt)]
    refusals = [leaf for leaf in leaves if isinstance(leaf, Refusal)]
    if len(kills) + len(refusals) == len(leaves):
        return kills[0] if kills else refusals[0].error
    if len(leaves) == 1 and isinstance(leaves[0], GuardError):
        return leaves[0]
    return _with_public_leaves(exc) if refusals else exc


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        for inner in exc.exceptions:
            yield from _leaves(inner)
    else:
        yield exc


def _with_public_leaves(exc: BaseException) -> BaseException:
    if isinstance(exc, Refusal):
        return exc.error
    if not isinstance(exc, BaseExceptionGroup):
        return exc
    # The plain constructor makes an ExceptionGroup when only ``Exception``s are left inside.
    group = BaseExceptionGroup(exc.message, [_with_public_leaves(e) for e in exc.exceptions])
    # A new group is made, so the rest of what a traceback shows is carried over.
    group.__cause__, group.__suppress_context__ = exc.__cause__, exc.__suppress_context__
    return group.with_traceback(exc.__traceback__)
