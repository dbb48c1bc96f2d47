"""Running many short coroutines without a task each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Stepping(Generic[T]):
    """Runs a coroutine at once, up to its first wait, and goes on when that is over.

    A task costs its registration, a turn of the loop to begin and another to tell that it is done:
    a tenth of a decision. In return the coroutine has no task: it cannot be cancelled, and must not
    use what needs one (``asyncio.timeout``). It may wait for futures, also through other
    coroutines, and for tasks.

    Args:
        work: the coroutine; it must not raise.
        done: called with its result.
    """

    __slots__ = ("_done", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], done: Callable[[T], None]) -> None:
        self._work = work
        self._done = done
        self._step()

    def _step(self, _: asyncio.Future[Any] | None = None) -> None:
        try:
            waits_for = self._work.send(None)
        except StopIteration as stop:
            self._done(stop.value)
            return
        if waits_for is None:  # ``asyncio.sleep(0)``
            asyncio.get_running_loop().call_soon(self._step)
        else:
            # What a task does too: the mark says that the future was waited for by ``await``.
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(self._step)
