"""A plain function's body in its thread, and the asynchronous exception that stops it.

At most one exception is pending for each thread, whatever the number of bodies nested in it, and
none once the body that it is meant for has ended: it is posted, checked and withdrawn under the
thread's lock. A body that has swallowed it gets it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from msgspec import Struct

from guard.breaker.exceptions import WorkflowKilledInterrupt
from guard.breaker.refusals import interrupt_for
from guard.control.async_exceptions import post, withdraw
from guard.control.cleanup_time import CleanupTime
from guard.control.line_trap import LineTrap
from guard.control.safepoints import handles_kill, inspect
from guard.control.sockets import shut_down
from guard.control.task_kill import TaskKill
from guard.core.control import Mark
from guard.scope.scope import Scope

_PATIENCE_S: Final = 1.0
_CHECKS: Final = 100
"""Many times the steps after which the interpreter looks for an exception that is pending."""


class Thread:
    """One thread: its lock, and the body whose exception is pending in it."""

    __slots__ = ("ident", "lock", "pending")

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.lock = threading.Lock()
        self.pending: ThreadBody | None = None


class _Here(threading.local):
    def __init__(self) -> None:  # in each thread, when it looks here first
        self.thread = Thread()


here: Final = _Here()
"""Has the calling thread's record, for callers that cannot afford :func:`this_thread`."""

_pending: dict[int, ThreadBody] = {}
"""By thread, the body whose exception has been posted and not been raised yet."""


def this_thread() -> Thread:
    """Return the calling thread's record, the same one every time."""
    return here.thread


class _Posted(WorkflowKilledInterrupt):
    """The exception that is posted: the interpreter makes it in the thread, without arguments."""

    def __init__(self) -> None:
        body = _pending.pop(threading.get_ident(), None)
        if body is None or body.killed_by is None:  # not made by the interpreter but by copy.copy
            super().__init__()
        else:
            body.carrier.pending = None
            super().__init__(workflow_id=body.scope.workflow_id, reason=body.killed_by.reason)
            body.reached(sys._getframe(1))

    def __reduce__(self) -> tuple[object, ...]:
        killed = WorkflowKilledInterrupt(workflow_id=self.workflow_id, reason=self.reason)
        return killed.__reduce__()


_Posted.__name__ = _Posted.__qualname__ = "WorkflowKilledInterrupt"


class _ThreadKill:
    """What is done about one body: set before its mark."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.grace = CleanupTime()
        # How often the exception has been raised in the thread, and what raises it in handlers.
        self.raised = 0
        self.trap: LineTrap | None = None
        # Cancels the task of a loop that the body runs.
        self.loop_kill: TaskKill | None = None


class ThreadBody(Struct, eq=False):
    """A plain function's body.

    Attributes:
        scope: the scope that the body runs in.
        _frame: frame of the SDK's function that is about to call the user's.
        carrier: the thread, which makes this object.
        killed_by: the mark that killed it, if one did.
        sockets_shut_down: for tests and diagnosis.
    """

    scope: Scope
    _frame: FrameType | None
    carrier: Thread
    killed_by: Mark | None = None
    sockets_shut_down: int = 0
    _kill: _ThreadKill | None = None
    outer: Any = None
    ended: bool = False
    stopped: bool = False

    def mark(self, killed_by: Mark) -> None:
        """Mark the body as killed, so that it returns no result."""
        if self.killed_by is None and not self.ended:
            self._kill = _ThreadKill()
            self.killed_by = killed_by

    def deliver(self) -> bool:
        """Deliver the interrupt if the thread is at a safe point; called from another thread.

        Again where that has been done before and the body runs on, unless it cleans up.

        Returns:
            False when that has to be retried soon.
        """
        carrier, kill = self.carrier, self._kill
        with carrier.lock:
            if self.ended or kill is None:
                return True
            if carrier.pending is not None and carrier.pending is not self:
                return False  # the body of another workflow in the same thread is being stopped
            in_loop = kill.loop_kill is not None
            if not kill.grace.is_over and handles_kill(carrier.ident, in_loop=in_loop):
                return True
            return self._post(kill)

    def _post(self, kill: _ThreadKill) -> bool:
        patient = time.monotonic() - kill.began_s < _PATIENCE_S
        assert self._frame is not None, "the body has not ended"
        ident = self.carrier.ident
        point = inspect(ident, self._frame, patient=patient)
        if point.kind != "interruptible":
            if self.carrier.pending is self:
                self._withdraw()
            if point.kind == "loop":
                self._cancel_in_loop(kill, point.loop, point.task)
            return False
        self.carrier.pending = _pending[ident] = self
        post(ident, _Posted)
        # The other thread may have gone on between the inspection and the post.
        then = inspect(ident, self._frame, patient=patient)
        if then.kind != "interruptible" and self._withdraw():
            return False
        if then.socket is not None and then.socket is point.socket:
            self.sockets_shut_down += 1
            shut_down(then.socket)
        return True

    def _cancel_in_loop(self, kill: _ThreadKill, loop: Any, task: Any) -> None:
        found = kill.loop_kill
        if found is None or found.task is not task:  # perhaps a loop after one that was killed
            found = kill.loop_kill = TaskKill(self, task, self._interrupt_in_loop)
            with contextlib.suppress(RuntimeError):  # it has closed
                loop.call_soon_threadsafe(self._reached_in_loop)
        found.deliver(loop)

    def _interrupt_in_loop(self) -> BaseException:
        # It ends the loop; the code around that may swallow it.
        asyncio.get_running_loop().call_soon(self._reached_in_loop)
        return self.interrupt()

    def _reached_in_loop(self) -> None:
        self.reached(sys._getframe())

    def _withdraw(self) -> bool:
        """Withdraw the exception; False when it has been raised already."""
        withdraw(self.carrier.ident)
        self.carrier.pending = None
        return _pending.pop(self.carrier.ident, None) is not None

    def told(self) -> None:
        """The kill has reached the body, which is given time to clean up."""
        if self._kill is not None:
            self._kill.grace.begin()

    def reached(self, frame: FrameType) -> None:
        """The exception is raised in the body's thread, this one.

        Args:
            frame: the innermost that it passes through, or is caught in.
        """
        kill = self._kill
        assert kill is not None, "it is killed"
        kill.grace.begin()
        kill.raised += 1
        if kill.raised > 1 and not self.ended:
            kill.trap = LineTrap(self, self.interrupt, kill.raised - 2)
            kill.trap.arm(self._frames_from(frame))

    def _frames_from(self, frame: FrameType | None) -> Iterator[FrameType]:
        while frame is not None and frame is not self._frame:
            yield frame
            frame = frame.f_back

    def interrupt(self) -> BaseException:
        """Return what is raised in the body."""
        assert self.killed_by is not None, "it is killed"
        self.told()
        return interrupt_for(self.killed_by, self.scope.workflow_id)

    def end(self, exc: BaseException | None) -> BaseException | None:
        """End the body; return what is to be raised instead of ``exc``, or None.

        An exception that is raised in here was meant for the body: end it again with that one.
        """
        # A body is marked before anything is posted to it, and nothing is posted after its end:
        # who marks it from here on finds it ended. Without a mark there is nothing to withdraw.
        self.ended = True
        if self.killed_by is None:
            return exc
        with self.carrier.lock:
            self._frame = None
        if self._kill is not None and self._kill.trap is not None:
            self._kill.trap.disarm()
        self._take_pending()
        self.stopped = True
        return interrupt_for(self.killed_by, self.scope.workflow_id)

    def _take_pending(self) -> None:
        """Let what is still pending be raised here, and catch it."""
        try:
            for _ in range(_CHECKS):
                if self.carrier.pending is not self:
                    return
        except _Posted:
            return
        # It was raised, and there was no room to make it: the body has used up the stack.
        with self.carrier.lock:
            self.carrier.pending = None
            _pending.pop(self.carrier.ident, None)


class ThreadRequest:
    """An HTTP request in a thread that runs no body of its workflow: ``asyncio.to_thread``.

    A kill shuts its socket down and raises nothing from outside, so that the client cleans up as
    after any broken connection; the error that it raises then becomes the interrupt.

    Args:
        scope: the scope that the request is made in.
        frame: frame of the SDK's function that is about to call the client's, in this thread.
    """

    __slots__ = ("_frame", "carrier", "ended", "killed_by", "outer", "scope", "stopped")

    def __init__(self, scope: Scope, frame: FrameType) -> None:
        self.scope = scope
        self.carrier = this_thread()
        self.killed_by: Mark | None = None
        self._frame: FrameType | None = frame
        self.outer: Any = None
        self.ended = False
        self.stopped = False

    def mark(self, killed_by: Mark) -> None:
        """Mark the request as ended by a kill."""
        if self.killed_by is None:
            self.killed_by = killed_by

    def told(self) -> None:
        """The client cleans up by itself."""

    def deliver(self) -> bool:
        """Shut down the socket that the request waits for; called from another thread.

        Returns:
            False until the request has ended: the client may try again.
        """
        frame = self._frame
        if self.ended or frame is None:
            return True
        sock = inspect(self.carrier.ident, frame).socket
        if sock is not None:
            shut_down(sock)
        return False

    def end(self, exc: BaseException | None) -> BaseException | None:
        """The request ended; return what is to be raised instead of ``exc``, or None.

        A response that has arrived is returned: its connection has to be released.
        """
        self.ended = True
        self._frame = None
        if self.killed_by is None or exc is None:
            return exc
        self.stopped = True
        return interrupt_for(self.killed_by, self.scope.workflow_id)


def _after_fork() -> None:
    # Only this thread goes on; another one may have held its lock at the moment of the fork.
    this_thread().lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
