"""A plain function's body in its thread, and the asynchronous exception that stops it.

At most one exception is pending for a thread at any time, whatever the number of bodies nested in
it, and none is when the body that it is meant for has ended: it is posted, looked after and taken
back under one lock of the thread.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from types import FrameType
from typing import Any, Final

from guard.breaker.exceptions import WorkflowKilledInterrupt
from guard.breaker.refusals import interrupt_for
from guard.control.safepoints import locate
from guard.control.sockets import shut_down
from guard.core.control import Mark
from guard.scope.scope import Scope

_PATIENCE_S: Final = 1.0


class Thread:
    """What is pending for one thread."""

    __slots__ = ("ident", "lock", "pending")

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.lock = threading.Lock()
        self.pending: ThreadBody | None = None


_threads = threading.local()
_pending: dict[int, ThreadBody] = {}
"""By thread, the body whose exception has been posted and not been raised yet."""


def this_thread() -> Thread:
    """Return the calling thread's record, the same one every time."""
    try:
        return _threads.record  # type: ignore[no-any-return]
    except AttributeError:
        record = _threads.record = Thread()
        return record


class _Posted(WorkflowKilledInterrupt):
    """What is raised in the thread: the interpreter calls it there, without arguments."""

    def __init__(self) -> None:
        body = _pending.pop(threading.get_ident(), None)
        if body is None or body.mark is None:  # made by somebody else, such as copy.copy
            super().__init__()
        else:
            super().__init__(workflow_id=body.scope.workflow_id, reason=body.mark.reason)
            body.raised = True
            body.thread.pending = None

    def __reduce__(self) -> tuple[object, ...]:
        killed = WorkflowKilledInterrupt(workflow_id=self.workflow_id, reason=self.reason)
        return killed.__reduce__()


_Posted.__name__ = _Posted.__qualname__ = "WorkflowKilledInterrupt"


class ThreadBody:
    """A plain function's body, in the thread that makes this object.

    Args:
        scope: the position of the body.
        frame: of the function of guard that is about to call the user's.

    Attributes:
        mark: what killed it, if something did.
        raised: whether the exception has been raised in the thread.
        sockets_shut_down: for tests and diagnosis.
    """

    __slots__ = (
        "_frame",
        "_loop_asked",
        "_since_s",
        "ended",
        "mark",
        "outer",
        "raised",
        "scope",
        "sockets_shut_down",
        "stopped",
        "thread",
    )

    def __init__(self, scope: Scope, frame: FrameType) -> None:
        self.scope = scope
        self.thread = this_thread()
        self.mark: Mark | None = None
        self.raised = False
        self.sockets_shut_down = 0
        self._frame: FrameType | None = frame
        self._since_s = 0.0
        self._loop_asked = False
        self.outer: Any = None
        self.ended = False
        self.stopped = False

    @property
    def carrier(self) -> object:
        """The thread."""
        return self.thread

    def note(self, mark: Mark) -> None:
        """Remember that the body is killed, so that no result of it is handed out."""
        if self.mark is None and not self.ended:
            self._since_s = time.monotonic()
            self.mark = mark

    def strike(self) -> bool:
        """Stop the noted body if its thread stands where that is safe; called from another thread.

        Returns:
            False when it has to be tried again soon.
        """
        with self.thread.lock:
            if self.ended or self.raised or self.thread.pending is self:
                return True
            if self.thread.pending is not None:
                return False  # the body of another workflow in the same thread is being stopped
            return self._post()

    def _post(self) -> bool:
        patient = time.monotonic() - self._since_s < _PATIENCE_S
        assert self._frame is not None, "the body has not ended"
        ident = self.thread.ident
        place = locate(ident, self._frame, patient=patient)
        if place.kind == "loop":
            self._ask_loop(place.loop, place.task)
            return False
        if place.kind != "open":
            return False
        self.thread.pending = _pending[ident] = self
        _raise_in(ident, _Posted)
        # Had this thread been held up between the look and the post, the other could have gone on.
        then = locate(ident, self._frame, patient=patient)
        if then.kind != "open" and self._take_back():
            return False
        if then.socket is not None and then.socket is place.socket:
            self.sockets_shut_down += 1
            shut_down(then.socket)
        return True

    def _ask_loop(self, loop: object, task: object) -> None:
        if not self._loop_asked:
            self._loop_asked = True
            loop.call_soon_threadsafe(task.cancel)  # type: ignore[attr-defined]

    def _take_back(self) -> bool:
        """Take the exception back; False when it has been raised already."""
        _raise_in(self.thread.ident, None)
        self.thread.pending = None
        return _pending.pop(self.thread.ident, None) is not None

    def end(self, exc: BaseException | None) -> BaseException | None:
        """Leave the body; return what is to be raised instead of ``exc``, or None.

        An exception that is raised in here was meant for the body; call it again then.
        """
        with self.thread.lock:
            self.ended = True
            self._frame = None
            if self.thread.pending is self:
                self._take_back()
        if self.mark is None:
            return exc
        self.stopped = True
        return interrupt_for(self.mark, self.scope.workflow_id)


class ThreadRequest:
    """An HTTP request in a thread that runs no body of its workflow: ``asyncio.to_thread``.

    Its socket is shut down and nothing is raised from outside, so that the client cleans up after a
    broken connection as it always does; what it raises then becomes the interrupt.

    Args:
        scope: the position of the request.
        frame: of the function of guard that is about to call the client's, in this thread.
    """

    __slots__ = ("_frame", "ended", "mark", "outer", "scope", "stopped", "thread")

    def __init__(self, scope: Scope, frame: FrameType) -> None:
        self.scope = scope
        self.thread = this_thread()
        self.mark: Mark | None = None
        self._frame: FrameType | None = frame
        self.outer: Any = None
        self.ended = False
        self.stopped = False

    @property
    def carrier(self) -> object:
        """The thread."""
        return self.thread

    def note(self, mark: Mark) -> None:
        """Remember why the request ends."""
        if self.mark is None:
            self.mark = mark

    def strike(self) -> bool:
        """Shut down the socket that the request waits for; called from another thread.

        Returns:
            False until the request has ended: the client may try again.
        """
        frame = self._frame
        if self.ended or frame is None:
            return True
        sock = locate(self.thread.ident, frame).socket
        if sock is not None:
            shut_down(sock)
        return False

    def end(self, exc: BaseException | None) -> BaseException | None:
        """The request ended; return what is to be raised instead of ``exc``, or None.

        A response that has come is handed out: its connection has to be given back.
        """
        self.ended = True
        self._frame = None
        if self.mark is None or exc is None:
            return exc
        self.stopped = True
        return interrupt_for(self.mark, self.scope.workflow_id)


def _after_fork() -> None:
    # Only this thread goes on; another one may have held its lock at the moment of the fork.
    this_thread().lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _raise_in(thread_id: int, kind: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if kind is None else ctypes.py_object(kind)
    )
