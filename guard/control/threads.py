"""A plain function's body in its thread, and the asynchronous exception that stops it.

At most one exception is pending per thread, however many bodies are nested in it, and none after
the body that it is meant for has ended: it is posted, checked and withdrawn under the thread's
lock. A body that swallows the exception gets it again.

Two threads take part: the body's own thread makes and ends the :class:`ThreadBody`, and the
background loop's thread marks it and delivers the kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, Final

from msgspec import Struct

from guard.breaker.exceptions import WorkflowKilledInterrupt
from guard.breaker.refusals import interrupt_for
from guard.control.async_exceptions import post, withdraw
from guard.control.cleanup_time import CleanupTime
from guard.control.line_trap import LineTrap, unwatch, watch
from guard.control.safepoints import (
    SAFE,
    UNSAFE,
    Safepoint,
    frames_inside,
    handles_kill,
    has_safe_points,
    inspect,
    point_at,
)
from guard.control.sockets import shut_down
from guard.control.task_kill import TaskKill
from guard.core.control import Mark
from guard.scope.scope import Scope

_WATCHES: Final = sys.version_info >= (3, 12)
"""Whether a thread can be made to raise the exception itself: see :func:`line_trap.watch`."""

_PATIENCE_S: Final = 1.0 if _WATCHES else 5.0
"""How long after its kill a body may go on to take hold of things and let go of them.

Longer where a safe point has to be met by looking."""

_LOOKS: Final = 16
_LOOK_S: Final = 0.000_5
"""How often a thread is looked at for one delivery, and the longest pause in between."""

_CHECKS: Final = 100
"""Rounds of a loop in which the interpreter certainly checks for a pending exception."""


class Thread:
    """One thread: its lock, and the body whose exception is pending in it."""

    __slots__ = ("ident", "lock", "pending")

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        # Held by the background thread while it inspects this thread and posts to it. This thread
        # waits for it when a killed body ends, so nothing is posted to a body that has ended.
        self.lock = threading.Lock()
        # The body that an exception is posted for and not raised yet. Set and withdrawn under the
        # lock; this thread clears it without the lock, when the exception is raised.
        self.pending: ThreadBody | None = None


class _LocalThread(threading.local):
    def __init__(self) -> None:  # runs in each thread at its first access
        self.thread = Thread()


local_thread: Final = _LocalThread()
"""Holds the calling thread's record, for callers that cannot afford :func:`this_thread`."""

_call: Final[Any] = operator.call

_pending: dict[int, ThreadBody] = {}
"""By thread identifier, the body whose exception has been posted and not been raised yet.

The interpreter makes the exception without arguments, so it looks for its body here. ``pop`` is
atomic: raising and withdrawing both pop, and only one of them gets the body.
"""


def this_thread() -> Thread:
    """Return the calling thread's record, the same one every time."""
    return local_thread.thread


class _Posted(WorkflowKilledInterrupt):
    """The exception that is posted: the interpreter makes it in the thread, without arguments."""

    def __init__(self) -> None:
        body = _pending.pop(threading.get_ident(), None)
        if body is None or body.killed_by is None:  # not made by the interpreter but by copy.copy
            super().__init__()
        else:
            # Without the lock, which the posting thread may hold at this moment.
            body.carrier.pending = None
            super().__init__(workflow_id=body.scope.workflow_id, reason=body.killed_by.reason)
            body.reached(sys._getframe(1))

    def __reduce__(self) -> tuple[object, ...]:
        # Pickled and copied as the public class: this one is made by the interpreter only.
        killed = WorkflowKilledInterrupt(workflow_id=self.workflow_id, reason=self.reason)
        return killed.__reduce__()


# Tracebacks and logs show the public name.
_Posted.__name__ = _Posted.__qualname__ = "WorkflowKilledInterrupt"


class _ThreadKill:
    """The state of one body's kill.

    Made before the body's mark is set: a thread that sees the mark finds this too.
    """

    def __init__(self) -> None:
        # When the body was killed, by `time.monotonic()`; patience with unsafe points is limited.
        self.began_s = time.monotonic()
        # Begun in the body's thread, when the exception is raised or when a stopped inner body
        # unwinds this one. The background thread reads it.
        self.grace = CleanupTime()
        # How often the exception has been raised in the body, and, from the second time on, the
        # trap that raises it at a line. Both are written in the body's thread only.
        self.raised = 0
        self.trap: LineTrap | None = None
        # Cancels the task of an event loop that the body runs (`asyncio.run` in a plain function).
        # Written by the background thread under the carrier's lock.
        self.loop_kill: TaskKill | None = None
        # Code whose lines the thread looks at, to raise the exception itself. Written by the
        # background thread under the carrier's lock, and taken by the body's.
        self.watched: set[CodeType] = set()

    @property
    def is_patient(self) -> bool:
        """Whether what ends by itself soon is left to."""
        return time.monotonic() - self.began_s < _PATIENCE_S


class ThreadBody(Struct, eq=False):
    """A plain function's body.

    Attributes:
        scope: the scope that the body runs in.
        _frame: frame of the SDK's function that is about to call the user's. None once a killed
            body has ended; cleared when no delivery reads it.
        carrier: the thread that runs the body; it makes this object.
        killed_by: the mark that killed the body, if one did. Set once, on the background thread.
        _kill: the state of its kill; set before ``killed_by``.
        outer: the body around it in the same thread; set by :class:`ActiveBodies`.
        ended: whether it has ended. Set in the body's thread, before it looks at ``killed_by``.
        stopped: whether it ended with the kill's exception, which unwinds the bodies around it.
    """

    scope: Scope
    _frame: FrameType | None
    carrier: Thread
    killed_by: Mark | None = None
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

        A body that runs on after an interrupt gets another one, unless it is cleaning up.

        Returns:
            False when the delivery has to be retried soon.
        """
        carrier, kill = self.carrier, self._kill
        # The lock keeps `end` from finishing between the check of `ended` and the post.
        with carrier.lock:
            # 1. There is nothing to stop.
            if self.ended or kill is None:
                return True
            # 2. The thread's one place for a pending exception is taken.
            if carrier.pending is not None and carrier.pending is not self:
                return False  # the body of another workflow in the same thread is being stopped
            # 3. The body has got the kill and is in a handler or a `finally` because of it.
            in_loop = kill.loop_kill is not None
            if not kill.grace.is_over and handles_kill(carrier.ident, in_loop=in_loop):
                return True
            # 4. It computes or waits: interrupt it.
            return self._post(kill)

    def _post(self, kill: _ThreadKill) -> bool:
        """Post the exception if the thread is at a safe point; False to retry soon.

        Called with the carrier's lock held. That stops neither the thread nor the exception: what
        is read of the thread's frames may be out of date by the next line.
        """
        patient = kill.is_patient
        assert self._frame is not None, "the body has not ended"
        ident = self.carrier.ident
        point = inspect(ident, self._frame, patient=patient)
        if patient and point is UNSAFE and not _WATCHES:
            point = self._look_often()
        if _WATCHES and point.socket is None and point.kind != "loop" and self._watch(kill):
            return False
        if point.kind != "interruptible":
            # The thread has moved to an unsafe point since an earlier post, which is still pending.
            if self.carrier.pending is self:
                self._withdraw()
            if point.kind == "loop":
                self._cancel_in_loop(kill, point.loop, point.task)
            return False
        # Recorded first: the exception looks for its body as soon as it is raised.
        self.carrier.pending = _pending[ident] = self
        post(ident, _Posted)
        # The other thread may have moved between the inspection and the post.
        then = inspect(ident, self._frame, patient=patient)
        if then.kind != "interruptible" and self._withdraw():
            return False
        # After the post: the thread blocks in C code, where the exception is not raised. When the
        # shutdown makes that call return, the exception is pending already. Only if both
        # inspections found this socket: another one may belong to a request begun since.
        if then.socket is not None and then.socket is point.socket:
            shut_down(then.socket)
        return True

    def _look_often(self) -> Safepoint:
        """Look until the thread is at a safe point, some times, and return the last point.

        Looks that only come when the thread waits for something find it in the same places each
        time: while it takes hold of a file, say, and never while it computes. With a short interval
        it gives way anywhere.
        """
        assert self._frame is not None, "the body has not ended"
        point, interval_s = UNSAFE, sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for _ in range(_LOOKS):
                time.sleep(random.random() * _LOOK_S)
                point = inspect(self.carrier.ident, self._frame)
                if point is not UNSAFE:
                    break
        finally:
            sys.setswitchinterval(interval_s)
        return point

    def _watch(self, kill: _ThreadKill) -> bool:
        """Have the thread raise the exception itself, at a line where it may; False if it cannot.

        What is posted is raised where the thread was seen, if that was at a check of the
        interpreter's, and CPython 3.13 raises it later even then: in an ``__exit__``, perhaps.
        """
        ident, body = self.carrier.ident, self._frame
        assert body is not None, "the body has not ended"
        frames = frames_inside(sys._current_frames().get(ident), body)
        codes = {frame.f_code for frame in frames if has_safe_points(frame)}
        kill.watched |= codes
        return watch(ident, codes, self._raise_in)

    def _raise_in(self, frame: FrameType) -> None:
        """Raise the exception in a frame of this thread, if it may be raised there."""
        kill, body = self._kill, self._frame
        if self.ended or kill is None or body is None or self.carrier.pending is not None:
            return
        in_loop = kill.loop_kill is not None
        if not kill.grace.is_over and handles_kill(self.carrier.ident, in_loop=in_loop):
            return
        if point_at(frame, body, patient=kill.is_patient) is SAFE:
            self._unwatch(kill)
            self.reached(frame)
            raise self.interrupt()

    def _unwatch(self, kill: _ThreadKill) -> None:
        watched, kill.watched = kill.watched, set()
        if watched:
            unwatch(self.carrier.ident, watched)

    def _cancel_in_loop(self, kill: _ThreadKill, loop: Any, task: Any) -> None:
        """Cancel the task of an event loop that the body runs in its thread.

        An exception that is posted to the thread would be raised in the loop's own code.
        """
        found = kill.loop_kill
        if found is None or found.task is not task:  # perhaps a loop after one that was killed
            found = kill.loop_kill = TaskKill(self, task, self._interrupt_in_loop)
            with contextlib.suppress(RuntimeError):  # it has closed
                # Counts the cancellation as a kill that was raised in the body.
                loop.call_soon_threadsafe(self._reached_in_loop)
        found.deliver(loop)

    def _interrupt_in_loop(self) -> BaseException:
        # The exception ends the loop, and the code around the loop may swallow it: count it as
        # raised in the body, so that a line trap is set for that code.
        asyncio.get_running_loop().call_soon(self._reached_in_loop)
        return self.interrupt()

    def _reached_in_loop(self) -> None:
        self.reached(sys._getframe())

    def _withdraw(self) -> bool:
        """Withdraw the exception; False when it has been raised already.

        Called with the carrier's lock held.
        """
        withdraw(self.carrier.ident)
        self.carrier.pending = None
        return _pending.pop(self.carrier.ident, None) is not None

    def begin_grace(self) -> None:
        """Begin the time to clean up: the kill has reached the body."""
        if self._kill is not None:
            self._kill.grace.begin()

    def reached(self, frame: FrameType) -> None:
        """Count an exception that is raised in the body; called in the body's thread.

        From the second one on a line trap is set, since the body has swallowed the first.

        Args:
            frame: the innermost frame that the exception passes through, or is caught in.
        """
        kill = self._kill
        assert kill is not None, "it is killed"
        kill.grace.begin()
        kill.raised += 1
        if kill.raised > 1 and not self.ended:
            # The second exception raises at the next line, the third lets one line pass, and so on.
            kill.trap = LineTrap(self, self.interrupt, kill.raised - 2)
            kill.trap.arm(self._frames_from(frame))

    def _frames_from(self, frame: FrameType | None) -> Iterator[FrameType]:
        while frame is not None and frame is not self._frame:
            yield frame
            frame = frame.f_back

    def interrupt(self) -> BaseException:
        """Return the exception to raise in the body, and begin its time to clean up."""
        assert self.killed_by is not None, "it is killed"
        self.begin_grace()
        return interrupt_for(self.killed_by, self.scope.workflow_id)

    def end(self, exc: BaseException | None) -> BaseException | None:
        """End the body; return what is to be raised instead of ``exc``, or None.

        Called in the body's thread. An exception that is raised in here was meant for the body:
        end it again with that one.
        """
        # A body is marked before anything is posted to it, and nothing is posted after its end:
        # a kill that marks it from here on finds it ended. Without a mark nothing was posted, so
        # the common case takes no lock.
        self.ended = True
        if self.killed_by is None:
            return exc
        # Waits for a delivery that is under way; the next one sees `ended`. One call, so that no
        # signal handler runs in this thread while it holds the lock: a killed body in the handler
        # would wait for the lock for ever, and the background thread for the handler.
        lock = self.carrier.lock
        list(map(_call, (lock.acquire, lock.release)))
        self._frame = None
        if self._kill is not None:
            self._unwatch(self._kill)
            if self._kill.trap is not None:
                self._kill.trap.disarm()
        # Last: a pending exception must not be raised in the caller's code.
        self._take_pending()
        self.stopped = True
        return interrupt_for(self.killed_by, self.scope.workflow_id)

    def _take_pending(self) -> None:
        """Let a pending exception be raised here, and catch it.

        It is not withdrawn: ``withdraw`` is for threads that run no signal handlers, and a body's
        thread may be the main one.
        """
        try:
            for _ in range(_CHECKS):
                if self.carrier.pending is not self:
                    return
        except _Posted:
            return
        # It was raised, but there was no room to make it, because the body has used up the stack:
        # so its `__init__` has not cleared these. `pending` last, and without the lock: until then
        # the background thread posts nothing else to this thread.
        _pending.pop(self.carrier.ident, None)
        self.carrier.pending = None


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
        # Set once, on the background thread; the request's thread reads it at its end.
        self.killed_by: Mark | None = None
        # Cleared at the end, in the request's thread: a frame must not be kept alive. No lock:
        # `deliver` reads it once, and a frame that has returned is found nowhere in the thread.
        self._frame: FrameType | None = frame
        self.outer: Any = None
        # Whether it has ended, and whether with the kill's exception.
        self.ended = False
        self.stopped = False

    def mark(self, killed_by: Mark) -> None:
        """Mark the request as ended by a kill."""
        if self.killed_by is None:
            self.killed_by = killed_by

    def begin_grace(self) -> None:
        """Do nothing: the client cleans up without a time limit."""

    def deliver(self) -> bool:
        """Shut down the socket that the request waits for; called from another thread.

        Returns:
            False until the request has ended: the client may retry on another connection.
        """
        frame = self._frame
        if self.ended or frame is None:
            return True
        sock = inspect(self.carrier.ident, frame).socket
        if sock is not None:
            shut_down(sock)
        return False

    def end(self, exc: BaseException | None) -> BaseException | None:
        """End the request; return what is to be raised instead of ``exc``, or None.

        A response that has arrived is returned even after a kill, because its connection has to be
        released.
        """
        self.ended = True
        self._frame = None
        if self.killed_by is None or exc is None:
            return exc
        self.stopped = True
        return interrupt_for(self.killed_by, self.scope.workflow_id)


def _after_fork() -> None:
    # Only this thread exists in the child. The background thread may have held its lock at the
    # moment of the fork, and would never release the copy.
    this_thread().lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
