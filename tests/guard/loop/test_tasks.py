"""Tasks that nobody waits for."""

from __future__ import annotations

import asyncio
import gc
from contextvars import ContextVar

import pytest

from guard.loop import Tasks

WHOSE: ContextVar[str] = ContextVar("whose", default="nobody's")

pytestmark = pytest.mark.asyncio


async def test_a_task_is_kept_and_knows_nothing_of_its_caller() -> None:
    tasks, seen = Tasks(), list[str]()
    goes_on = asyncio.Event()

    async def work() -> None:
        await goes_on.wait()
        seen.append(WHOSE.get())

    WHOSE.set("the caller's")
    tasks.start(work())
    await asyncio.sleep(0)
    gc.collect()
    goes_on.set()
    await tasks.wait()
    assert seen == ["nobody's"]


async def test_a_wait_may_end_before_the_tasks_and_a_stop_ends_them() -> None:
    tasks, ended = Tasks(), list[str]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    tasks.start(work())
    await tasks.wait(0.01)
    assert ended == []
    await tasks.stop()
    assert ended == ["cancelled"]
    await tasks.stop()  # of none
