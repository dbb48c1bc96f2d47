"""Running many short coroutines without a task each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Stepping(Generic[T]):
    """Runs a coroutine at once, up to its first wait, and resumes it when that is over.

    A task costs its registration, a turn of the loop to begin and another to report its end: a
    tenth of a decision. The price of doing without is that the coroutine cannot be cancelled, and
    must not use anything that needs a current task, such as ``asyncio.timeout``. It may wait for
    futures, also through other coroutines, and for tasks.

    The future that it waits for refers to this object, so no other reference is needed.

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
        # The result of the future is not passed in: ``await`` reads it from the future, or raises
        # the future's exception inside of the coroutine.
        try:
            waits_for = self._work.send(None)
        # 1. Finished.
        except StopIteration as stop:
            self._done(stop.value)
            return
        # 2. ``asyncio.sleep(0)`` yields nothing to wait for.
        if waits_for is None:
            asyncio.get_running_loop().call_soon(self._step)
        # 3. A future. ``await`` has set its mark, and the code that drives the coroutine has to
        # clear it, as a task does.
        else:
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(self._step)
