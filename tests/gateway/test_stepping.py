"""Coroutines that run without a task."""

from __future__ import annotations

import asyncio

import pytest

from guard.gateway.api.stepping import Stepping


@pytest.mark.asyncio
async def test_it_begins_at_once_and_goes_on_when_its_future_is_done() -> None:
    loop = asyncio.get_running_loop()
    first: asyncio.Future[int] = loop.create_future()
    seen: list[str] = []
    done: asyncio.Future[int] = loop.create_future()

    async def inner() -> int:
        return await first + 1

    async def work() -> int:
        seen.append("begun")
        found = await inner()
        seen.append("between")
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        found += await asyncio.create_task(asyncio.sleep(0, 10))
        done_first, _ = await asyncio.wait({loop.run_in_executor(None, lambda: 100)})
        return found + sum(each.result() for each in done_first)

    Stepping(work(), done.set_result)
    assert seen == ["begun"]
    first.set_result(1)
    assert seen == ["begun"], "in the loop's next turn, as with a task"
    assert await asyncio.wait_for(done, 60) == 112


@pytest.mark.asyncio
async def test_what_does_not_wait_is_done_at_once() -> None:
    async def work() -> str:
        return "x"

    found: list[str] = []
    Stepping(work(), found.append)
    assert found == ["x"]


@pytest.mark.asyncio
async def test_a_failed_future_raises_where_it_is_awaited() -> None:
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[None] = loop.create_future()
    done: asyncio.Future[str] = loop.create_future()

    async def work() -> str:
        try:
            await broken
        except OSError as exc:
            return str(exc)
        return "not raised"

    Stepping(work(), done.set_result)
    broken.set_exception(OSError("gone"))
    assert await asyncio.wait_for(done, 60) == "gone"
