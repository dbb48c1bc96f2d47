"""Stops protected bodies in mid-call: cancels the task, or raises in the thread.

An interrupt is delivered only while its body runs, and repeated until the body ends. An
asynchronous body is cancelled through its own loop (:mod:`guard.control.task_kill`); counting
distinguishes these cancellations from the user's. A synchronous body gets the exception at its next
bytecode (:mod:`guard.control.threads`), and a blocking HTTP call that it is in is aborted. A call
that waits for the gate's answer stops waiting.

A body runs in its own thread or task, which enters and leaves it. The background loop's thread
marks it as killed and delivers the interrupt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
"""Pauses between two tries while a body is at an unsafe point."""

_AGAIN_FIRST_S: Final = 0.05
_AGAIN_GROWTH: Final = 2.0
_AGAIN_MAX_S: Final = 2.0
"""Pauses after an interrupt was delivered; a body that still runs then is interrupted again."""


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

    def begin_grace(self) -> None:
        """Begin the body's time to clean up: the kill has reached it."""

    def end(self, exc: BaseException | None) -> BaseException | None:
        """End the body; return what is to be raised instead of ``exc``, or None."""


class TaskBody:
    """A coroutine body inside an asyncio task.

    Args:
        scope: the scope that it runs in.
        task: the running task, if the caller knows it.

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
        # Set once, on the background loop's thread; the body's own loop reads it.
        self.killed_by: Mark | None = None
        # The task itself, not its id, which could be used again.
        self.carrier = task = task or require_task()
        # How often the task had been cancelled when the body began. A higher count at its end, less
        # the kill's own cancellations, means that the user has cancelled the task.
        self._cancelling = task.cancelling()
        # Cancels the task. Set before the mark: a thread that sees the mark finds this too.
        self._kill: TaskKill | None = None
        # The body around it in the same task; set by `ActiveBodies.enter`.
        self.outer: Body | None = None
        # Whether it has ended, and whether with the kill's exception. Written on the task's loop.
        self.ended = False
        self.stopped = False

    def mark(self, killed_by: Mark) -> None:
        """Mark the body as killed, so that it returns no result."""
        if self.killed_by is None:
            self._kill = TaskKill(self, self.carrier, self._interrupt, self._surrounds)
            self.killed_by = killed_by

    def deliver(self) -> bool:
        """Cancel the task on its own loop, unless the body is cleaning up."""
        if self._kill is not None:
            self._kill.deliver(self.carrier.get_loop())
        return True

    def begin_grace(self) -> None:
        """Begin the body's time to clean up: the kill has reached it."""
        if self._kill is not None:
            self._kill.begin_grace()

    def _surrounds(self, frame: FrameType) -> bool:
        return is_inside(frame, self)

    def _interrupt(self) -> BaseException:
        assert self.killed_by is not None, "it is killed"
        return interrupt_for(self.killed_by, self.scope.workflow_id)

    def end(self, exc: BaseException | None) -> BaseException | None:
        """End the body; return what is to be raised instead of ``exc``, or None.

        A kill takes precedence over a result and over any exception that the body made of its
        cancellation. The user's own cancellation at the same moment stays a cancellation.
        """
        self.ended = True
        if self.killed_by is None or self._kill is None:
            return exc
        self._kill.end()
        task = self.carrier
        # Undo the kill's own cancellations, so that code around the body (`asyncio.timeout`, a task
        # group) counts only others. The body may have undone some of them itself.
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
        """End the request; return what is to be raised instead of ``exc``, or None.

        A response that has arrived is returned even after a kill, because its connection has to be
        released.
        """
        if self.killed_by is None:
            self.ended = True
            return exc
        killed = super().end(exc)
        if exc is not None:
            return killed
        # Nothing is raised, so the kill has not unwound the code around the request.
        self.stopped = False
        return None


class GateWait:
    """A call of a plain function that waits for the gate's answer.

    The wait is code of the SDK, where no exception is raised from outside; so it ends itself.

    Args:
        scope: the scope of the call.
        cancel: ends the wait; called on the background loop's thread.
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

    def begin_grace(self) -> None:
        """Do nothing: a wait has no clean-up."""

    def end(self, exc: BaseException | None) -> BaseException | None:
        """End the wait; return what is to be raised instead of ``exc``, or None."""
        self.ended = True
        if self.killed_by is None:
            return exc
        self.stopped = True
        return interrupt_for(self.killed_by, self.scope.workflow_id)


def _still_running(body: Body | None) -> Body | None:
    """Return the body if it runs, else the next killed body around it that does, else None."""
    while body is not None and (body.ended or body.killed_by is None):
        body = body.outer
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

    Each refers to the body around it. An interrupt stops the innermost body that a kill applies to
    and unwinds the others as it propagates.

    No lock: only the thread that runs a carrier's bodies changes the carrier's entry (a signal
    handler's bodies nest in those of its thread), with single operations that are atomic.
    """

    def __init__(self) -> None:
        # The innermost body of each task or thread; without an entry none runs there. Each thread
        # writes its own carriers' entries. The background loop reads copies, because iteration is
        # not atomic.
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
        """Return whether a kill of ``scope`` already stops the body of this task or thread.

        That is so if the innermost body belongs to the same run of the same workflow.
        """
        body = self._innermost.get(carrier)
        if body is None:
            return False
        inside = body.scope
        return inside.run_id == scope.run_id and inside.workflow_id == scope.workflow_id

    def leave(self, body: Body) -> None:
        """Remove a body that has ended.

        While a body inside it still runs, it stays in the chain; the end of the inner one skips it.
        """
        carrier, outer = body.carrier, body.outer
        while outer is not None and outer.ended:
            outer = outer.outer
        # The exception of the inner body is unwinding this one, unless it is swallowed in between:
        # leave it the time to clean up before it gets an interrupt of its own. Here, and not where
        # the background thread finds the end of the inner one: that may see `ended` before
        # `stopped`, and would interrupt the clean-up.
        if body.stopped and outer is not None:
            outer.begin_grace()
        if self._innermost.get(carrier) is not body:
            return
        if outer is None:
            self._innermost.pop(carrier, None)
        else:
            self._innermost[carrier] = outer

    def interrupt(self, concerned: Concerned) -> None:
        """Stop the innermost body of each task and thread that ``concerned`` returns a mark for.

        Called on the background loop, which repeats the interrupts until the bodies have ended.
        """
        # A copy: other threads enter and leave bodies meanwhile.
        for key, innermost in self._innermost.copy().items():
            target: Body | None = None
            # From the innermost outwards. The first that is concerned gets the interrupt; those
            # around it are only marked, so that none returns a result once it unwinds.
            for body in _running(innermost):
                # A body that an earlier kill has marked is pursued already.
                killed_by = concerned(body.scope)
                if killed_by is not None and body.killed_by is None:
                    body.mark(killed_by)
                    target = target or body
            if target is not None:
                self._pursue(key, target, _RETRY_FIRST_S, _AGAIN_FIRST_S)

    def _pursue(self, key: object, target: Body, retry_s: float, again_s: float) -> None:
        """Interrupt the target until it and all marked bodies around it have ended.

        Calls itself again after a pause, on the background loop. A wait for the gate inside of
        these bodies is ended as well.

        Args:
            key: the task or thread.
            target: the innermost marked body that ran when this was last called.
            retry_s: the next pause if the delivery has to be retried.
            again_s: the next pause if the interrupt is delivered.
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
