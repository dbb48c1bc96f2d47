"""An answer from another thread wakes its task once, whatever else happens at that moment."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from guard.loop import Arrival
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.asyncio


def later(work: Callable[[], object], delay_s: float = 0.01) -> None:
    """Do something in another thread, once the caller waits."""

    def run() -> None:
        time.sleep(delay_s)
        work()

    threading.Thread(target=run, daemon=True).start()


async def test_an_answer_that_is_there_is_not_waited_for() -> None:
    future: Future[str] = Future()
    future.set_result("there")
    assert await Arrival(future, 0.0) == "there"


async def test_an_answer_from_another_thread_wakes_the_task() -> None:
    future: Future[str] = Future()
    later(lambda: future.set_result("came"))
    assert await Arrival(future, WAIT_S) == "came"


async def test_an_exception_is_raised() -> None:
    future: Future[str] = Future()
    later(lambda: future.set_exception(LookupError("gone")))
    with pytest.raises(LookupError, match="gone"):
        await Arrival(future, None)


async def test_a_cancelled_future_cancels_the_wait_but_not_the_task() -> None:
    future: Future[str] = Future()
    later(future.cancel)
    with pytest.raises(asyncio.CancelledError):
        await Arrival(future, WAIT_S)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_deadline_holds_and_leaves_the_future_alone() -> None:
    future: Future[str] = Future()
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        await Arrival(future, 0.05)
    assert 0.04 < time.monotonic() - began_s < WAIT_S
    assert not future.done()
    future.set_result("late")  # wakes nobody


async def test_a_cancelled_task_stops_waiting_and_says_why() -> None:
    future: Future[str] = Future()

    async def wait() -> str:
        return await Arrival(future, WAIT_S)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0.01)
    assert task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert not future.done()


async def test_asyncio_timeout_around_it_works() -> None:
    future: Future[str] = Future()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await Arrival(future, WAIT_S)


async def test_answer_deadline_and_cancellation_at_once_end_each_wait_once() -> None:
    ends = {"answer": 0, "late": 0, "cancelled": 0}

    async def wait(future: Future[int], timeout_s: float) -> None:
        try:
            assert await Arrival(future, timeout_s) == 1
            ends["answer"] += 1
        except TimeoutError:
            ends["late"] += 1
        except asyncio.CancelledError:
            ends["cancelled"] += 1
            raise
        await asyncio.sleep(0)  # a second wake-up would end this at the wrong point

    async def one(number: int) -> None:
        future: Future[int] = Future()
        task = asyncio.create_task(wait(future, 0.002 if number % 3 == 0 else WAIT_S))
        answering = threading.Timer(0.002, future.set_result, (1,))
        answering.start()
        await asyncio.sleep(0.002)
        if number % 3 == 1:
            task.cancel()
        await asyncio.wait([task])
        answering.join()
        assert task.cancelled() or task.exception() is None

    for round_ in range(20):
        await asyncio.gather(*(one(round_ * 20 + number) for number in range(20)))
    assert sum(ends.values()) == 400
    assert ends["answer"]


async def test_a_loop_that_has_closed_is_not_an_error() -> None:
    future: Future[str] = Future()

    async def wait() -> None:
        await Arrival(future, WAIT_S)

    def in_another_loop() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(wait())
        loop.run_until_complete(asyncio.sleep(0))
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))
        loop.close()

    await asyncio.to_thread(in_another_loop)
    future.set_result("nobody is there")
