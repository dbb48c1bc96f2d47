"""Time in which a loop stood still is not that of those whom it waits for."""

from __future__ import annotations

import asyncio
import time

import pytest

from guard.loop.patience import fair_timeout


@pytest.mark.asyncio
async def test_a_loop_that_comes_late_again_and_again_reads_what_has_come() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read_late() -> None:
        for _ in range(8):
            time.sleep(0.05)  # noqa: ASYNC251  # the loop stands still, longer than the whole
            await asyncio.sleep(0)
        answer.set_result("read")

    reading = asyncio.create_task(read_late())
    async with fair_timeout(0.04):
        assert await answer == "read"
    await reading


@pytest.mark.asyncio
async def test_the_time_is_over_where_the_loop_was_there() -> None:
    with pytest.raises(TimeoutError):
        async with fair_timeout(0.04):
            await asyncio.Event().wait()
