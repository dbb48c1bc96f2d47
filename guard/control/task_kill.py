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
"""How long a trap stays in a loop's thread; the task runs on within some steps of the loop."""


class TaskKill:
    """The cancellation of one task, made again after a time of grace.

    From the second time on a line trap goes with it, since ``except BaseException`` around an
    ``await`` in a loop catches every cancellation.

    Args:
        body: which is to end.
        task: which runs it, or runs in it.
        make: makes the exception that a trap raises.
        inside: whether a frame that the task runs belongs to the body; None if all of them do.

    Attributes:
        cancelled: how often; written on the task's loop.
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
        self._grace = CleanupTime()
        self._trap: LineTrap | None = None
        self.cancelled = 0

    def told(self) -> None:
        """The kill has reached the body, which is given time to clean up."""
        self._grace.begin()

    def deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the task on its loop, unless the time of grace lasts; called from any thread."""
        if not self._grace.is_over:
            return
        self.told()
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
            asyncio.get_running_loop().call_later(_ARMED_S, trap.disarm)
        self.task.cancel()

    def _runs(self, frame: FrameType) -> bool:
        inside = self._inside
        return running_task() is self.task and (inside is None or inside(frame))

    def end(self) -> None:
        """The body has ended; called in its thread."""
        if self._trap is not None:
            self._trap.disarm()


def running_task() -> asyncio.Task[object] | None:
    """Return the task of asyncio that runs in the calling thread, if one does."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here, or another library's
        return None
