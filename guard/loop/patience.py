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
    loop, part_s = asyncio.get_running_loop(), timeout_s / _PARTS
    timer: asyncio.TimerHandle

    def begins(parts: int, patience_s: float) -> asyncio.TimerHandle:
        due_s = loop.time() + part_s
        return loop.call_at(due_s, ends, parts, patience_s, due_s)

    def ends(parts: int, patience_s: float, due_s: float) -> None:
        nonlocal timer
        late_s = loop.time() - due_s
        if late_s > _LATE_SHARE * part_s and patience_s > part_s + late_s:
            timer = begins(parts, patience_s - part_s - late_s)
        elif parts > 1:
            timer = begins(parts - 1, patience_s)
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        timer = begins(_PARTS, PATIENCE_S)
        try:
            yield
        finally:
            timer.cancel()


def catch_up(asked_s: float, most_s: float, done: Callable[[], object]) -> None:
    """Call ``done`` on the loop that this runs on, once it has had time for what is due.

    Args:
        asked_s: when this was given to the loop, by ``time.monotonic()``: how late it comes.
        most_s: the most time to give, in seconds.
        done: called at once when the loop is on time.
    """
    late_s = time.monotonic() - asked_s
    asyncio.get_running_loop().call_later(min(most_s, _SHARE_BACK * late_s), done)
