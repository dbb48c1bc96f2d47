"""Wait for a condition with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_STEP_S = 0.005
_DEADLINE_S = 60.0
"""Far longer than any wait: only what would last for ever reaches it, also on a busy machine."""


def until(condition: Callable[[], T], timeout_s: float = _DEADLINE_S) -> T:
    """Wait in this thread until ``condition()`` is truthy and return its value."""
    ends = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > ends:
            raise AssertionError(f"not within {timeout_s} s: {condition}")
        time.sleep(_STEP_S)


async def until_async(condition: Callable[[], T], timeout_s: float = _DEADLINE_S) -> T:
    """Await until ``condition()`` is truthy and return its value."""
    ends = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > ends:
            raise AssertionError(f"not within {timeout_s} s: {condition}")
        await asyncio.sleep(_STEP_S)
