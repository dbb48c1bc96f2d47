"""Stops protected bodies in mid-call: cancels the task, or raises in the thread.

An interrupt is delivered only while its body runs. Asynchronous bodies are cancelled through their
own loop and the cancellation is told apart from the user's by bookkeeping; synchronous ones get
the exception at their next bytecode (``PyThreadState_SetAsyncExc``), and blocking requests that
were announced with :func:`aborting` are aborted first.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from guard.breaker.exceptions import WorkflowKilledInterrupt
from guard.core.control import Mark
from guard.scope import Scope

Concerned = Callable[[Scope], Mark | None]


class Body(Protocol):
    """One protected body that is running."""

    scope: Scope
    mark: Mark | None

    @property
    def carrier(self) -> object:
        """The task or thread that runs the body."""

    def interrupt(self, mark: Mark) -> None:
        """Stop the body; called from the background loop's thread."""

    def end(self, exc: BaseException | None) -> BaseException | None:
        """Leave the body; return what is to be raised instead of ``exc``, or None."""


class TaskBody:
    """A coroutine body inside an asyncio task."""

    __slots__ = ("_cancelling", "_ended", "_loop", "_task", "mark", "scope")

    def __init__(self, scope: Scope) -> None:
        task = asyncio.current_task()
        assert task is not None, "a protected coroutine runs in a task"
        self.scope = scope
        self.mark: Mark | None = None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._cancelling = task.cancelling()
        self._ended = False

    @property
    def carrier(self) -> object:
        """The task itself, not its id, which could be used again."""
        return self._task

    def interrupt(self, mark: Mark) -> None:
        """Cancel the task on its own loop."""
        with contextlib.suppress(RuntimeError):  # that loop has closed, so the body has ended
            self._loop.call_soon_threadsafe(self._cancel, mark)

    def _cancel(self, mark: Mark) -> None:
        # Runs on the body's loop, so the task is suspended inside the body, or has left it.
        if not self._ended and self.mark is None:
            self.mark = mark
            self._task.cancel()

    def end(self, exc: BaseException | None) -> BaseException | None:
        """Leave the body; return what is to be raised instead of ``exc``, or None.

        A kill wins over a result and over what the body made of its cancellation; the user's own
        cancellation at the same moment stays one.
        """
        self._ended = True
        if self.mark is None:
            return exc
        left = self._task.uncancel()
        if isinstance(exc, asyncio.CancelledError) and left > self._cancelling:
            return exc
        return _killed(self.scope, self.mark)


class ThreadBody:
    """A plain function body in the thread that made this object."""

    __slots__ = ("_aborts", "_ended", "_lock", "_posted", "_thread_id", "mark", "scope")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.mark: Mark | None = None
        self._thread_id = threading.get_ident()
        self._lock = threading.Lock()
        self._posted = False
        self._ended = False
        self._aborts: list[Callable[[], None]] = []

    @property
    def carrier(self) -> object:
        """The thread's identifier."""
        return self._thread_id

    def interrupt(self, mark: Mark) -> None:
        """Abort what blocks the thread and raise in it."""
        with self._lock:
            if self._ended or self._posted:
                return
            self.mark = mark
            self._posted = True
            _raise_in(self._thread_id, WorkflowKilledInterrupt)
            aborts = list(self._aborts)
        for abort in aborts:
            with contextlib.suppress(Exception):
                abort()

    @contextlib.contextmanager
    def aborting(self, abort: Callable[[], None]) -> Iterator[None]:
        """Have ``abort`` called when the body is interrupted inside this context."""
        self._aborts.append(abort)
        try:
            yield
        finally:
            self._aborts.remove(abort)

    def end(self, exc: BaseException | None) -> BaseException | None:
        """Leave the body; return what is to be raised instead of ``exc``, or None."""
        while True:
            try:
                with self._lock:
                    self._ended = True
                if self._posted:
                    _raise_in(self._thread_id, None)  # take back what has not been raised yet
                break
            except WorkflowKilledInterrupt:
                continue  # it came in here; at most one is ever posted
        return exc if self.mark is None else _killed(self.scope, self.mark)


def _killed(scope: Scope, mark: Mark) -> WorkflowKilledInterrupt:
    return WorkflowKilledInterrupt(workflow_id=scope.workflow_id, reason=mark.reason)


def _raise_in(thread_id: int, kind: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if kind is None else ctypes.py_object(kind)
    )


class ActiveBodies:
    """The protected bodies that are running in this process.

    Bodies of one task or thread are kept innermost last; an interrupt goes to the innermost one
    that it concerns, and unwinds the others as it propagates.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stacks: dict[object, list[Body]] = {}

    def enter(self, body: Body) -> None:
        """Take note of a body that starts."""
        with self._lock:
            self._stacks.setdefault(body.carrier, []).append(body)

    def leave(self, body: Body) -> None:
        """Forget a body that ended."""
        key = body.carrier
        with self._lock:
            stack = self._stacks.get(key)
            if stack is not None and body in stack:
                stack.remove(body)
                if not stack:
                    del self._stacks[key]

    def interrupt(self, concerned: Concerned) -> None:
        """Stop the innermost body of each task and thread that ``concerned`` gives a mark for."""
        with self._lock:
            stacks = [list(stack) for stack in self._stacks.values()]
        for stack in stacks:
            for body in reversed(stack):
                mark = concerned(body.scope)
                if mark is not None:
                    body.interrupt(mark)
                    break
