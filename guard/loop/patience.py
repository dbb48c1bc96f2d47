"""Deadlines for what others do: time in which this loop stood still is not theirs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

PATIENCE_S: Final = 10.0
"""How long to wait, at most, for a loop of this process that comes late; besides any deadline."""

_PARTS: Final = 4
_LATE_SHARE: Final = 0.25
"""A part that ends later than by this share of it does not count: what has come is read first."""

_SHARE_BACK: Final = 4
"""How many times the time that a loop came late is given to what it has to catch up with."""


@contextlib.asynccontextmanager
async def fair_timeout(timeout_s: float) -> AsyncIterator[None]:
    """Bound what the block waits for, like ``asyncio.timeout``, by the time that the loop ran.

    On a busy machine, or while a module is imported, a loop stands still: the answer has come, and
    the timer of ``asyncio.timeout`` is due as well, and wins.

    Raises:
        TimeoutError: the time is over, after ``timeout_s + PATIENCE_S`` by the clock at the latest.
    """
    async with asyncio.timeout(None) as limit:
        parts = _Parts(limit, timeout_s / _PARTS)
        parts.begin(_PARTS, PATIENCE_S)
        try:
            yield
        finally:
            parts.timer.cancel()


class _Parts:
    """The parts of a deadline, one timer after the other.

    Nothing here refers to itself once its timer is cancelled: the limit refers to its task, and the
    task to what was answered, which would stay until the garbage collector comes by.
    """

    timer: asyncio.TimerHandle

    def __init__(self, limit: asyncio.Timeout, part_s: float) -> None:
        self._limit = limit
        self._part_s = part_s
        self._loop = asyncio.get_running_loop()

    def begin(self, parts: int, patience_s: float) -> None:
        due_s = self._loop.time() + self._part_s
        self.timer = self._loop.call_at(due_s, self._end, parts, patience_s, due_s)

    def _end(self, parts: int, patience_s: float, due_s: float) -> None:
        late_s = self._loop.time() - due_s
        if late_s > _LATE_SHARE * self._part_s and patience_s > self._part_s + late_s:
            self.begin(parts, patience_s - self._part_s - late_s)
        elif parts > 1:
            self.begin(parts - 1, patience_s)
        else:
            self._limit.reschedule(self._loop.time())


def catch_up(asked_s: float, most_s: float, done: Callable[[], object]) -> None:
    """Call ``done`` on the loop that this runs on, once it has had time for what is due.

    Args:
        asked_s: when this was given to the loop, by ``time.monotonic()``: how late it comes.
        most_s: the most time to give, in seconds.
        done: called at once when the loop is on time.
    """
    late_s = time.monotonic() - asked_s
    asyncio.get_running_loop().call_later(min(most_s, _SHARE_BACK * late_s), done)
