"""Awaits what another thread completes, with one wake-up of the loop of the task that waits.

``asyncio.wrap_future`` inside ``asyncio.timeout`` does the same with a second future, which costs
the caller another turn of its loop: a fifth of a round trip to a gateway nearby.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextvars import Context
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_Wakeup = Callable[[Any], object]


class Arrival(Generic[T]):
    """Awaits a concurrent future within a deadline; for one task, once.

    ``asyncio.Task`` treats it as a future. Its task is woken exactly once: by the answer, by the
    deadline or by its cancellation, whichever is first.

    Args:
        future: completed or cancelled from any thread; the wait does not cancel it.
        timeout_s: how long to wait, in seconds; None waits to the end.

    Raises (when awaited):
        TimeoutError: the deadline has passed.
        asyncio.CancelledError: the task was cancelled, or the future.

    Example:
        >>> async def waits(future: Future[str]) -> str:
        ...     return await Arrival(future, 2.0)
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_cancelled",
        "_future",
        "_is_late",
        "_loop",
        "_timeout_s",
        "_waiting",
    )

    def __init__(self, future: Future[T], timeout_s: float | None) -> None:
        # asyncio.Task treats any object with this attribute as a future; it is set at each `yield`.
        self._asyncio_future_blocking = False
        self._future = future
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        # The callback that wakes the task; at most one. Taking it off the list is the right to
        # wake: `list.pop` is atomic, and answer, deadline and cancellation come from different
        # threads.
        self._waiting: list[tuple[_Wakeup, Context | None]] = []
        # Whether the deadline has passed. Set on the loop of the task.
        self._is_late = False
        # Arguments of the CancelledError to raise, if the task was cancelled. Set on its loop.
        self._cancelled: tuple[Any, ...] | None = None

    def __await__(self) -> Generator[Any, None, T]:
        future, deadline = self._future, None
        if not future.done():
            future.add_done_callback(self._wake)
            if self._timeout_s is not None:
                deadline = self._loop.call_later(self._timeout_s, self._expire)
            self._asyncio_future_blocking = True
            try:
                yield self
            finally:
                if deadline is not None:
                    deadline.cancel()
        if future.done():
            if future.cancelled():
                raise asyncio.CancelledError
            return future.result()
        raise TimeoutError

    def _expire(self) -> None:
        self._is_late = True
        self._wake()

    def _wake(self, future: object = None) -> bool:
        """Wake the task, from any thread; False when it has been woken already."""
        try:
            wakeup, context = self._waiting.pop()  # the right to wake
        except IndexError:
            return False
        with contextlib.suppress(RuntimeError):  # its loop has closed, and the task with it
            self._loop.call_soon_threadsafe(wakeup, self, context=context)
        return True

    # -- the part of a future's interface that a task uses ----------------------------------------

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the task that waits."""
        return self._loop

    def done(self) -> bool:
        """Return whether the wait is over."""
        return self._future.done() or self._is_late or self._cancelled is not None

    def add_done_callback(self, wakeup: _Wakeup, *, context: Context | None = None) -> None:
        """Store the callback that wakes the task."""
        self._waiting.append((wakeup, context))
        # The future may have completed before the callback was here, when `_wake` found none.
        if self._future.done():
            self._wake()

    def cancel(self, msg: object = None) -> bool:
        """Cancel the wait; False when the task is being woken already."""
        cancelled = () if msg is None else (msg,)
        if not self._waiting:
            return False
        # Set first: the task may run, on this loop, as soon as it is woken.
        self._cancelled = cancelled
        if self._wake():
            return True
        self._cancelled = None
        return False

    def result(self) -> None:
        """Raise the exception to wake the task with, if there is one."""
        if self._cancelled is not None:
            raise asyncio.CancelledError(*self._cancelled)
