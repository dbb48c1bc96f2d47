"""Stops protected bodies in mid-call: cancels the task, or raises in the thread.

An interrupt is delivered only while its body runs. Asynchronous bodies are cancelled through their
own loop, and the cancellation is told apart from the user's by bookkeeping; synchronous ones get
the exception at their next bytecode (:mod:`guard.control.threads`) after the blocking HTTP call
that they are in has been aborted; a call that waits for the gate's answer stops waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from guard.breaker.refusals import interrupt_for
from guard.control.threads import this_thread
from guard.core.control import Mark
from guard.scope.scope import Scope

Concerned = Callable[[Scope], Mark | None]

_FIRST_LOOK_S: Final = 0.000_5
_LOOK_GROWTH: Final = 1.6
_LOOK_MAX_S: Final = 0.05


class Body(Protocol):
    """One protected body that is running.

    Attributes:
        scope: its position.
        mark: what killed it, if something did.
        outer: the body around it in the same task or thread; set by :class:`ActiveBodies`.
        ended: it has been left.
        stopped: and was left with the kill's exception, which unwinds the bodies around it.
    """

    scope: Scope
    mark: Mark | None
    outer: Body | None
    ended: bool
    stopped: bool

    @property
    def carrier(self) -> object:
        """The task or thread that runs the body."""

    def note(self, mark: Mark) -> None:
        """Remember that the body is killed, so that no result of it is handed out."""

    def strike(self) -> bool:
        """Stop the noted body; False when it has to be tried again soon.

        Called from the background loop's thread.
        """

    def end(self, exc: BaseException | None) -> BaseException | None:
        """Leave the body; return what is to be raised instead of ``exc``, or None."""


class TaskBody:
    """A coroutine body inside an asyncio task.

    Raises:
        RuntimeError: there is no running asyncio task.
    """

    __slots__ = (
        "_cancelled",
        "_cancelling",
        "_loop",
        "_task",
        "ended",
        "mark",
        "outer",
        "scope",
        "stopped",
    )

    def __init__(self, scope: Scope) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a protected coroutine runs in an asyncio task")
        self.scope = scope
        self.mark: Mark | None = None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._cancelling = task.cancelling()
        self._cancelled = False
        self.outer: Body | None = None
        self.ended = False
        self.stopped = False

    @property
    def carrier(self) -> object:
        """The task itself, not its id, which could be used again."""
        return self._task

    def note(self, mark: Mark) -> None:
        """Remember that the body is killed, so that no result of it is handed out."""
        if self.mark is None:
            self.mark = mark

    def strike(self) -> bool:
        """Cancel the task on its own loop."""
        with contextlib.suppress(RuntimeError):  # that loop has closed, so the body has ended
            self._loop.call_soon_threadsafe(self._cancel)
        return True

    def _cancel(self) -> None:
        # Runs on the body's loop, so the task is suspended inside the body, or has left it.
        body = _still_running(self)
        if isinstance(body, TaskBody) and body.mark is not None and not body._cancelled:
            body._cancelled = True
            body._task.cancel()

    def end(self, exc: BaseException | None) -> BaseException | None:
        """Leave the body; return what is to be raised instead of ``exc``, or None.

        A kill wins over a result and over what the body made of its cancellation; the user's own
        cancellation at the same moment stays one.
        """
        self.ended = True
        left = self._task.uncancel() if self._cancelled else self._task.cancelling()
        if self.mark is None or (
            isinstance(exc, asyncio.CancelledError) and left > self._cancelling
        ):
            return exc
        self.stopped = True
        return interrupt_for(self.mark, self.scope.workflow_id)


class TaskRequest(TaskBody):
    """An HTTP request in a task that runs no body of its workflow: a task that nobody awaits."""

    __slots__ = ()

    def end(self, exc: BaseException | None) -> BaseException | None:
        """The request ended; return what is to be raised instead of ``exc``, or None.

        A response that has come is handed out: its connection has to be given back.
        """
        if self.mark is None:
            self.ended = True
            return exc
        killed = super().end(exc)
        if exc is not None:
            return killed
        self.stopped = False
        return None


class GateWait:
    """A call of a plain function that waits for the gate's answer.

    Args:
        scope: the position of the call.
        cancel: makes the wait end.
    """

    __slots__ = ("_cancel", "_thread", "ended", "mark", "outer", "scope", "stopped")

    def __init__(self, scope: Scope, cancel: Callable[[], object]) -> None:
        self.scope = scope
        self.mark: Mark | None = None
        self._cancel = cancel
        self._thread = this_thread()
        self.outer: Body | None = None
        self.ended = False
        self.stopped = False

    @property
    def carrier(self) -> object:
        """The thread."""
        return self._thread

    def note(self, mark: Mark) -> None:
        """Remember why the wait ends."""
        if self.mark is None:
            self.mark = mark

    def strike(self) -> bool:
        """End the wait."""
        self._cancel()
        return True

    def end(self, exc: BaseException | None) -> BaseException | None:
        """Return what is to be raised instead of ``exc``, or None."""
        self.ended = True
        if self.mark is None:
            return exc
        self.stopped = True
        return interrupt_for(self.mark, self.scope.workflow_id)


def _still_running(body: Body | None) -> Body | None:
    """Return the body, or the one around it when it has ended without being stopped."""
    while body is not None and body.ended:
        if body.stopped:
            return None
        body = body.outer
    return body


def running_task() -> asyncio.Task[object] | None:
    """Return the task of asyncio that runs in the calling thread, if one does."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here, or another library's
        return None


class ActiveBodies:
    """The protected bodies that are running in this process.

    Bodies of one task or thread are kept innermost last; an interrupt stops the innermost one that
    it concerns, and unwinds the others as it propagates.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stacks: dict[object, list[Body]] = {}

    def __len__(self) -> int:
        return sum(len(stack) for stack in self._stacks.values())

    def enter(self, body: Body) -> None:
        """Take note of a body that starts."""
        key = body.carrier
        with self._lock:
            stack = self._stacks.get(key)
            if stack is None:
                self._stacks[key] = [body]
            else:
                body.outer = stack[-1]
                stack.append(body)

    def reach(self, carrier: object, scope: Scope) -> bool:
        """Tell whether a kill of ``scope`` stops what its task or thread does now anyway."""
        stack = self._stacks.get(carrier)
        if not stack:
            return False
        body = stack[-1].scope
        return body.run_id == scope.run_id and body.workflow_id == scope.workflow_id

    def leave(self, body: Body) -> None:
        """Forget a body that ended."""
        key = body.carrier
        with self._lock:
            stack = self._stacks.get(key)
            if stack == [body]:
                del self._stacks[key]
            elif stack is not None and body in stack:
                stack.remove(body)

    def interrupt(self, concerned: Concerned) -> None:
        """Stop the innermost body of each task and thread that ``concerned`` gives a mark for.

        To be called on the background loop, which goes on trying where a thread stands badly.
        """
        with self._lock:
            stacks = {key: list(stack) for key, stack in self._stacks.items()}
        for key, stack in stacks.items():
            target: Body | None = None
            for body in reversed(stack):
                mark = concerned(body.scope)
                if mark is not None and body.mark is None:
                    body.note(mark)
                    target = target or body
            if target is not None:
                self._pursue(key, target, _FIRST_LOOK_S)

    def _pursue(self, key: object, target: Body, delay_s: float) -> None:
        """Try until the target is stopped or has ended; a wait for the gate inside it ends too."""
        running = _still_running(target)
        if running is None or running.mark is None:
            return
        with self._lock:
            stack = list(self._stacks.get(key, ()))
        inside = stack[stack.index(running) + 1 :] if running in stack else []
        for body in inside:
            if isinstance(body, GateWait):
                body.note(running.mark)
                body.strike()
        if not running.strike():
            asyncio.get_running_loop().call_later(
                delay_s, self._pursue, key, running, min(delay_s * _LOOK_GROWTH, _LOOK_MAX_S)
            )

    @contextlib.contextmanager
    def waiting(self, scope: Scope, cancel: Callable[[], object]) -> Iterator[None]:
        """Have ``cancel`` called when the workflow of ``scope``, or a body around it, is killed.

        Raises:
            WorkflowKilledInterrupt: it was killed.
        """
        wait = GateWait(scope, cancel)
        self.enter(wait)
        try:
            yield
        except BaseException as exc:
            killed = wait.end(exc)
            if killed is not None and killed is not exc:
                raise killed from None
            raise
        finally:
            self.leave(wait)
