"""Large answers are made in steps, with requests that decide calls served in between.

An organisation's answers take turns, step by step, and each step is followed by a pause as long as
it took, however many are asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final
from weakref import WeakValueDictionary

PAUSE_MAX_S: Final = 0.1


class Turns:
    """Whose step may run. Used on the loop only."""

    def __init__(self) -> None:
        # By organisation; kept by the answers that wait.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def step(self, organisation_id: str) -> AsyncIterator[None]:
        """Wait for a turn, and after the block for as long as that took."""
        async with self._locks.setdefault(organisation_id, asyncio.Lock()):
            began_s = time.monotonic()
            yield
            await asyncio.sleep(min(time.monotonic() - began_s, PAUSE_MAX_S))
