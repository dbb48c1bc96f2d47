"""Wait for a condition with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 120.0
"""The end of a wait that would last for ever: a busy machine takes long, and that is no failure."""

PATIENT = {"GUARD_TIMEOUT_MS": "60000"}
"""A setting for all programs whose subject is not this deadline: a slow gateway is no outage."""

_STEP_S = 0.005


def until(condition: Callable[[], T], timeout_s: float = WAIT_S) -> T:
    """Wait in this thread until ``condition()`` is truthy and return its value."""
    ends = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > ends:
            raise AssertionError(f"not within {timeout_s} s: {condition}")
        time.sleep(_STEP_S)


async def until_async(condition: Callable[[], T], timeout_s: float = WAIT_S) -> T:
    """Await until ``condition()`` is truthy and return its value."""
    ends = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > ends:
            raise AssertionError(f"not within {timeout_s} s: {condition}")
        await asyncio.sleep(_STEP_S)
