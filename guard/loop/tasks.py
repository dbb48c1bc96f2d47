"""Tasks that nobody waits for."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Tasks of one owner, on one loop.

    They are referenced here, since a loop refers to its tasks weakly and the garbage collector
    could end one that is under way. Each begins in an empty context: what a caller has set (its
    scope, its trace) must not be taken for the task's own.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a coroutine without waiting for it; on the loop."""
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel those that are under way, without waiting for their end."""
        for task in self._tasks:
            task.cancel()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until those that are under way have ended.

        Args:
            timeout_s: how long at most, in seconds; without a bound, if None.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def stop(self) -> None:
        """Cancel those that are under way and wait for their end."""
        self.cancel()
        await self.wait()
