"""Cancels an asyncio task until the body in it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from guard.control.cleanup_time import CleanupTime
from guard.control.line_trap import KilledBody, LineTrap

_ARMED_S: Final = 1.0
"""How long a trap stays set in a loop's thread; the cancelled task runs within a few steps."""


class TaskKill:
    """Cancels one task, and again whenever its time to clean up is over.

    From the second time on a line trap is set as well, since ``except BaseException`` around an
    ``await`` in a loop catches every cancellation.

    Args:
        body: the body that has to end.
        task: the task that runs the body, or runs in it.
        make: makes the exception that a trap raises.
        inside: returns whether a frame that the task runs belongs to the body; None if all do.

    Attributes:
        cancelled: how often the task was cancelled; written on the task's loop.
    """

    __slots__ = ("_body", "_grace", "_inside", "_make", "_trap", "cancelled", "task")

    def __init__(
        self,
        body: KilledBody,
        task: Any,
        make: Callable[[], BaseException],
        inside: Callable[[FrameType], bool] | None = None,
    ) -> None:
        self.task = task
        self._body = body
        self._make = make
        self._inside = inside
        # Begun on the background loop's thread, which also reads it, and in the body's own when a
        # stopped inner body unwinds this one.
        self._grace = CleanupTime()
        # The newest trap. Set, armed and disarmed in the thread of the task's loop.
        self._trap: LineTrap | None = None
        self.cancelled = 0

    def begin_grace(self) -> None:
        """Begin the time to clean up: the kill has reached the body."""
        self._grace.begin()

    def deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the task on its loop, unless it is still cleaning up; called from any thread."""
        if not self._grace.is_over:
            return
        # Now, and not when the loop gets to it: a busy loop would collect one cancellation for each
        # call of this, and take them all for swallowed ones.
        self.begin_grace()
        with contextlib.suppress(RuntimeError):  # that loop has closed, so the body has ended
            loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        # Runs on the body's loop: the task is suspended in the body, or has left it.
        if self._body.ended:
            return
        self.cancelled += 1
        if self.cancelled > 1:
            trap = self._trap = LineTrap(self._body, self._make, self.cancelled - 2, self._runs)
            trap.arm()
            # A trace function slows down the whole thread, and the task may never run again.
            asyncio.get_running_loop().call_later(_ARMED_S, trap.disarm)
        self.task.cancel()

    def _runs(self, frame: FrameType) -> bool:
        inside = self._inside
        return running_task() is self.task and (inside is None or inside(frame))

    def end(self) -> None:
        """Disarm the trap: the body has ended. Called in the body's thread."""
        if self._trap is not None:
            self._trap.disarm()


def running_task() -> asyncio.Task[object] | None:
    """Return the asyncio task that runs in the calling thread, or None."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here, or another library's
        return None
