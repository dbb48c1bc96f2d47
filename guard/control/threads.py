"""A plain function's body in its thread, and the asynchronous exception that stops it.

At most one exception is pending for each thread, whatever the number of bodies nested in it, and
none once the body that it is meant for has ended: it is posted, checked and withdrawn under the
thread's lock.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from types import FrameType
from typing import Any, Final

from msgspec import Struct

from guard.breaker.exceptions import WorkflowKilledInterrupt
from guard.breaker.refusals import interrupt_for
from guard.control.safepoints import inspect
from guard.control.sockets import shut_down
from guard.core.control import Mark
from guard.scope.scope import Scope

_TIMED_ACQUIRE_WAIT_S: Final = 1.0


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
            super().__init__(workflow_id=body.scope.workflow_id, reason=body.killed_by.reason)
            body.raised = True
            body.carrier.pending = None

    def __reduce__(self) -> tuple[object, ...]:
        killed = WorkflowKilledInterrupt(workflow_id=self.workflow_id, reason=self.reason)
        return killed.__reduce__()


_Posted.__name__ = _Posted.__qualname__ = "WorkflowKilledInterrupt"


class ThreadBody(Struct, eq=False):
    """A plain function's body.

    Attributes:
        scope: the scope that the body runs in.
        _frame: frame of the SDK's function that is about to call the user's.
        carrier: the thread, which makes this object.
        killed_by: the mark that killed it, if one did.
        raised: whether the exception has been raised in the thread.
        sockets_shut_down: for tests and diagnosis.
    """

    scope: Scope
    _frame: FrameType | None
    carrier: Thread
    killed_by: Mark | None = None
    raised: bool = False
    sockets_shut_down: int = 0
    _since_s: float = 0.0
    _loop_cancelled: bool = False
    outer: Any = None
    ended: bool = False
    stopped: bool = False

    def mark(self, killed_by: Mark) -> None:
        """Mark the body as killed, so that it returns no result."""
        if self.killed_by is None and not self.ended:
            self._since_s = time.monotonic()
            self.killed_by = killed_by

    def deliver(self) -> bool:
        """Deliver the interrupt if the thread is at a safe point; called from another thread.

        Returns:
            False when that has to be retried soon.
        """
        with self.carrier.lock:
            if self.ended or self.raised or self.carrier.pending is self:
                return True
            if self.carrier.pending is not None:
                return False  # the body of another workflow in the same thread is being stopped
            return self._post()

    def _post(self) -> bool:
        patient = time.monotonic() - self._since_s < _TIMED_ACQUIRE_WAIT_S
        assert self._frame is not None, "the body has not ended"
        ident = self.carrier.ident
        point = inspect(ident, self._frame, patient=patient)
        if point.kind == "loop":
            self._cancel_in_loop(point.loop, point.task)
            return False
        if point.kind != "interruptible":
            return False
        self.carrier.pending = _pending[ident] = self
        _raise_in(ident, _Posted)
        # The other thread may have gone on between the inspection and the post.
        then = inspect(ident, self._frame, patient=patient)
        if then.kind != "interruptible" and self._withdraw():
            return False
        if then.socket is not None and then.socket is point.socket:
            self.sockets_shut_down += 1
            shut_down(then.socket)
        return True

    def _cancel_in_loop(self, loop: object, task: object) -> None:
        if not self._loop_cancelled:
            self._loop_cancelled = True
            loop.call_soon_threadsafe(task.cancel)  # type: ignore[attr-defined]

    def _withdraw(self) -> bool:
        """Withdraw the exception; False when it has been raised already."""
        _raise_in(self.carrier.ident, None)
        self.carrier.pending = None
        return _pending.pop(self.carrier.ident, None) is not None

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
            if self.carrier.pending is self:
                self._withdraw()
        self.stopped = True
        return interrupt_for(self.killed_by, self.scope.workflow_id)


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


def _raise_in(thread_id: int, kind: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if kind is None else ctypes.py_object(kind)
    )
