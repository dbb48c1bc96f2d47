"""Stops protected bodies in mid-call: cancels the task, or raises in the thread.

An interrupt is delivered only while its body runs, and again until that ends. An asynchronous body
is cancelled through its own loop (:mod:`guard.control.task_kill`), and bookkeeping distinguishes
that cancellation from the user's. A synchronous body gets the exception at its next bytecode
(:mod:`guard.control.threads`), after the blocking HTTP call that it is in has been aborted. A call
that waits for the gate's answer stops waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, Protocol

from guard.breaker.exceptions import GuardConfigError
from guard.breaker.refusals import interrupt_for
from guard.control.safepoints import is_inside
from guard.control.task_kill import TaskKill, running_task
from guard.control.threads import this_thread
from guard.core.control import Mark
from guard.scope.scope import Scope

Concerned = Callable[[Scope], Mark | None]

_RETRY_FIRST_S: Final = 0.000_5
_RETRY_GROWTH: Final = 1.6
_RETRY_MAX_S: Final = 0.05
"""Where a body is at an unsafe point."""

_AGAIN_FIRST_S: Final = 0.05
_AGAIN_GROWTH: Final = 2.0
_AGAIN_MAX_S: Final = 2.0
"""Where the interrupt has been delivered: how long until the body must have ended."""


class Body(Protocol):
    """One protected body that is running.

    Attributes:
        scope: the scope that it runs in.
        killed_by: the mark that killed it, if one did.
        outer: the body around it in the same task or thread; set by :class:`ActiveBodies`.
        ended: whether it has ended.
        stopped: whether it ended with the kill's exception, which unwinds the bodies around it.
        carrier: the task or thread that runs it.
    """

    scope: Scope
    killed_by: Mark | None
    outer: Body | None
    ended: bool
    stopped: bool

    @property
    def carrier(self) -> object: ...

    def mark(self, killed_by: Mark) -> None:
        """Mark the body as killed, so that it returns no result."""

    def deliver(self) -> bool:
        """Deliver the interrupt to the marked body; False when that has to be retried soon.

        Called from the background loop's thread, and again until the body ends.
        """

    def told(self) -> None:
        """The kill has reached the body, which is given time to clean up."""

    def end(self, exc: BaseException | None) -> BaseException | None:
        """End the body; return what is to be raised instead of ``exc``, or None."""


class TaskBody:
    """A coroutine body inside an asyncio task.

    Args:
        scope: the scope that it runs in.
        task: the running task, where that is known.

    Raises:
        GuardConfigError: there is no running asyncio task (GD-C006).
    """

    __slots__ = (
        "_cancelling",
        "_kill",
        "carrier",
        "ended",
        "killed_by",
        "outer",
        "scope",
        "stopped",
    )

    def __init__(self, scope: Scope, task: asyncio.Task[object] | None = None) -> None:
        self.scope = scope
        # Set once, on the background loop; the body's own loop reads it.
        self.killed_by: Mark | None = None
        # The task itself, not its id, which could be used again.
        self.carrier = task = task or require_task()
        # How often the task had been cancelled when the body began: a higher count at its end is a
        # cancellation by the user.
        self._cancelling = task.cancelling()
        # Set before the mark; cancels the task.
        self._kill: TaskKill | None = None
        self.outer: Body | None = None
        self.ended = False
        self.stopped = False

    def mark(self, killed_by: Mark) -> None:
        """Mark the body as killed, so that it returns no result."""
        if self.killed_by is None:
            self._kill = TaskKill(self, self.carrier, self._interrupt, self._surrounds)
            self.killed_by = killed_by

    def deliver(self) -> bool:
        """Cancel the task on its own loop, and again after a time to clean up."""
        if self._kill is not None:
            self._kill.deliver(self.carrier.get_loop())
        return True

    def told(self) -> None:
        """The kill has reached the body, which is given time to clean up."""
        if self._kill is not None:
            self._kill.told()

    def _surrounds(self, frame: FrameType) -> bool:
        return is_inside(frame, self)

    def _interrupt(self) -> BaseException:
        assert self.killed_by is not None, "it is killed"
        return interrupt_for(self.killed_by, self.scope.workflow_id)

    def end(self, exc: BaseException | None) -> BaseException | None:
        """End the body; return what is to be raised instead of ``exc``, or None.

        A kill wins over a result and over what the body made of its cancellation; the user's own
        cancellation at the same moment stays one.
        """
        self.ended = True
        if self.killed_by is None or self._kill is None:
            return exc
        self._kill.end()
        task = self.carrier
        # The kill's own cancellations are taken back, so that only others count; the body may have
        # taken some of them back itself.
        for _ in range(self._kill.cancelled):
            if task.cancelling() > self._cancelling:
                task.uncancel()
        if isinstance(exc, asyncio.CancelledError) and task.cancelling() > self._cancelling:
            return exc
        self.stopped = True
        return self._interrupt()


class TaskRequest(TaskBody):
    """An HTTP request in a task that runs no body of its workflow, such as a background task."""

    __slots__ = ()

    def end(self, exc: BaseException | None) -> BaseException | None:
        """The request ended; return what is to be raised instead of ``exc``, or None.

        A response that has arrived is returned: its connection has to be released.
        """
        if self.killed_by is None:
            self.ended = True
            return exc
        killed = super().end(exc)
        if exc is not None:
            return killed
        # Nothing is raised, so the kill has not stopped what is around the request.
        self.stopped = False
        return None


class GateWait:
    """A call of a plain function that waits for the gate's answer.

    Args:
        scope: the scope of the call.
        cancel: ends the wait.
    """

    __slots__ = ("_cancel", "carrier", "ended", "killed_by", "outer", "scope", "stopped")

    def __init__(self, scope: Scope, cancel: Callable[[], object]) -> None:
        self.scope = scope
        self.killed_by: Mark | None = None
        self._cancel = cancel
        self.carrier = this_thread()
        self.outer: Body | None = None
        self.ended = False
        self.stopped = False

    def mark(self, killed_by: Mark) -> None:
        """Mark the wait as ended by a kill."""
        if self.killed_by is None:
            self.killed_by = killed_by

    def deliver(self) -> bool:
        """End the wait."""
        self._cancel()
        return True

    def told(self) -> None:
        """Nothing is to be cleaned up."""

    def end(self, exc: BaseException | None) -> BaseException | None:
        """Return what is to be raised instead of ``exc``, or None."""
        self.ended = True
        if self.killed_by is None:
            return exc
        self.stopped = True
        return interrupt_for(self.killed_by, self.scope.workflow_id)


def _still_running(body: Body | None) -> Body | None:
    """Return the body, or the killed one around it that is next when it has ended."""
    while body is not None and (body.ended or body.killed_by is None):
        stopped, body = body.stopped, body.outer
        if stopped and body is not None:
            body.told()  # what the inner one is stopped with unwinds it, unless it is swallowed
    return body


def _running(body: Body | None) -> list[Body]:
    """Return a body and those around it, without those that have ended."""
    found: list[Body] = []
    while body is not None:
        if not body.ended:
            found.append(body)
        body = body.outer
    return found


def require_task() -> asyncio.Task[object]:
    """Return the task of asyncio that runs in the calling thread.

    Raises:
        GuardConfigError: there is none (GD-C006).
    """
    task = running_task()
    if task is None:
        raise GuardConfigError(
            "guard stops coroutines on asyncio, not trio: run this program on asyncio, or move its "
            "protected functions and LLM requests into plain functions with blocking clients, and "
            "call those with trio.to_thread.run_sync",
            error_code="GD-C006",
            user_action="Run on asyncio, or use blocking clients in trio.to_thread.run_sync.",
        )
    return task


class ActiveBodies:
    """The protected bodies that are running in this process, by task or thread.

    Each refers to the one around it; an interrupt stops the innermost body that a kill concerns
    and unwinds the others as it propagates.

    No lock: only the thread that runs a carrier's bodies changes its innermost one (signal handlers
    nest in it), in single operations that are atomic.
    """

    def __init__(self) -> None:
        # By task or thread. The background loop reads copies of it.
        self._innermost: dict[object, Body] = {}

    def __len__(self) -> int:
        return sum(len(_running(body)) for body in self._innermost.copy().values())

    def enter(self, body: Body) -> None:
        """Add a body that starts."""
        carrier, innermost = body.carrier, self._innermost
        if carrier in innermost:
            body.outer = innermost[carrier]
        innermost[carrier] = body

    def reach(self, carrier: object, scope: Scope) -> bool:
        """Return whether a kill of ``scope`` already stops the body of this task or thread."""
        body = self._innermost.get(carrier)
        if body is None:
            return False
        inside = body.scope
        return inside.run_id == scope.run_id and inside.workflow_id == scope.workflow_id

    def leave(self, body: Body) -> None:
        """Remove a body that has ended; where one inside it runs on, that one's end passes it."""
        carrier, outer = body.carrier, body.outer
        if self._innermost.get(carrier) is not body:
            return
        while outer is not None and outer.ended:
            outer = outer.outer
        if outer is None:
            self._innermost.pop(carrier, None)
        else:
            self._innermost[carrier] = outer

    def interrupt(self, concerned: Concerned) -> None:
        """Stop the innermost body of each task and thread that ``concerned`` returns a mark for.

        Called on the background loop, which retries until they have ended.
        """
        # A copy: other threads enter and leave bodies meanwhile.
        for key, innermost in self._innermost.copy().items():
            target: Body | None = None
            # From the innermost outwards. The first that is concerned gets the interrupt; those
            # around it are only marked, so that none returns a result once it unwinds.
            for body in _running(innermost):
                killed_by = concerned(body.scope)
                if killed_by is not None and body.killed_by is None:
                    body.mark(killed_by)
                    target = target or body
            if target is not None:
                self._pursue(key, target, _RETRY_FIRST_S, _AGAIN_FIRST_S)

    def _pursue(self, key: object, target: Body, retry_s: float, again_s: float) -> None:
        """Interrupt the target until it and all marked bodies around it have ended.

        A wait for the gate inside of them is ended too.
        """
        running = _still_running(target)
        if running is None or running.killed_by is None:
            return
        stack = _running(self._innermost.get(key))
        # A body that waits for the gate cannot be interrupted before its wait has ended.
        inside = stack[: stack.index(running)] if running in stack else []
        for body in reversed(inside):
            if isinstance(body, GateWait):
                body.mark(running.killed_by)
                body.deliver()
        if running.deliver():
            delay_s, again_s = again_s, min(again_s * _AGAIN_GROWTH, _AGAIN_MAX_S)
        else:
            delay_s, retry_s = retry_s, min(retry_s * _RETRY_GROWTH, _RETRY_MAX_S)
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, self._pursue, key, running, retry_s, again_s)

    @contextlib.contextmanager
    def waiting(self, scope: Scope, cancel: Callable[[], object]) -> Iterator[None]:
        """Call ``cancel`` when the workflow of ``scope``, or a body around this wait, is killed.

        Raises:
            WorkflowKilledInterrupt: it was killed.
        """
        wait = GateWait(scope, cancel)
        try:
            self.enter(wait)  # inside: Ctrl-C right after it must not leave it entered
            yield
        except BaseException as exc:
            killed = wait.end(exc)
            if killed is not None and killed is not exc:
                raise killed from None
            raise
        finally:
            self.leave(wait)
