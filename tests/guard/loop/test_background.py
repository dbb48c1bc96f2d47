"""One loop in one thread: start, submit, cancel, context, close; under a thousand threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import selectors
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from guard.loop import BackgroundLoop, LoopClosedError
from tests.support.waiting import WAIT_S as DEADLINE_S
from tests.support.waiting import until

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    background = BackgroundLoop("test-loop")
    yield background
    background.close(DEADLINE_S)


async def give(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def where() -> int:
    return threading.get_ident()


class Sleeper:
    """A coroutine that waits for ever, and tells how it ended."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.cancelled = threading.Event()

    async def __call__(self) -> None:
        self.started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_nothing_starts_before_the_first_use() -> None:
    background = BackgroundLoop("lazy-loop")
    assert not background.is_running
    assert not threads_named("lazy-loop")
    assert not background.call_soon(print)
    assert not threads_named("lazy-loop")
    assert background.close()
    assert not threads_named("lazy-loop")


def test_everything_runs_on_one_daemon_thread(loop: BackgroundLoop) -> None:
    found = {loop.run(where) for _ in range(20)}
    assert len(found) == 1
    assert found != {threading.get_ident()}
    [thread] = threads_named("test-loop")
    assert thread.daemon


def test_results_and_exceptions_come_back(loop: BackgroundLoop) -> None:
    assert loop.run(give, 42) == 42

    async def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        loop.run(fail)

    async def time_out() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        loop.run(time_out, timeout_s=DEADLINE_S)


def test_waiting_from_the_loops_own_thread_raises_instead_of_deadlocking(
    loop: BackgroundLoop,
) -> None:
    async def wait_for_itself() -> None:
        loop.run(give, 1)

    async def await_itself() -> None:
        await loop.run_async(give, 1)

    for function in (wait_for_itself, await_itself):
        with pytest.raises(RuntimeError, match="own thread"):
            loop.run(function, timeout_s=DEADLINE_S)

    async def close_itself() -> None:
        loop.close()

    with pytest.raises(RuntimeError, match="own thread"):
        loop.run(close_itself, timeout_s=DEADLINE_S)
    assert loop.run(give, 3) == 3, "none of it broke the loop"


def test_a_timeout_cancels_the_remote_coroutine(loop: BackgroundLoop) -> None:
    sleeper = Sleeper()
    with pytest.raises(TimeoutError):
        loop.run(sleeper.__call__, timeout_s=0.05)
    assert sleeper.cancelled.wait(DEADLINE_S)
    assert loop.run(give, 1) == 1


def test_ctrl_c_in_the_waiting_caller_cancels_the_remote_coroutine(loop: BackgroundLoop) -> None:
    sleeper = Sleeper()

    def interrupt() -> None:
        sleeper.started.wait(DEADLINE_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    presser = threading.Thread(target=interrupt)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        loop.run(sleeper.__call__)
    presser.join(DEADLINE_S)
    assert sleeper.cancelled.wait(DEADLINE_S)


@pytest.mark.asyncio
async def test_an_async_callers_cancellation_passes_through(loop: BackgroundLoop) -> None:
    sleeper = Sleeper()
    task = asyncio.create_task(loop.run_async(sleeper.__call__))
    await asyncio.to_thread(sleeper.started.wait, DEADLINE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(sleeper.cancelled.wait, DEADLINE_S)


@pytest.mark.asyncio
async def test_an_async_callers_loop_is_not_blocked(loop: BackgroundLoop) -> None:
    release = threading.Event()

    async def block() -> str:
        release.wait(DEADLINE_S)
        return "released"

    waiting = asyncio.create_task(loop.run_async(block))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not waiting.done()
    release.set()
    assert await asyncio.wait_for(waiting, DEADLINE_S) == "released"


async def read_tenant() -> str:
    return tenant.get()


def test_a_call_carries_the_callers_context(loop: BackgroundLoop) -> None:
    assert loop.run(read_tenant) == "nobody"
    token = tenant.set("acme")
    try:
        assert loop.run(read_tenant) == "acme"
    finally:
        tenant.reset(token)
    assert loop.run(read_tenant) == "nobody"

    def from_a_thread(name: str) -> str:
        tenant.set(name)
        return loop.run(read_tenant)

    names = [f"tenant-{number}" for number in range(50)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(from_a_thread, names)) == names


@pytest.mark.asyncio
async def test_an_async_call_carries_the_callers_context(loop: BackgroundLoop) -> None:
    async def as_tenant(name: str) -> str:
        tenant.set(name)
        await asyncio.sleep(0)
        return await loop.run_async(read_tenant)

    names = [f"tenant-{number}" for number in range(20)]
    assert await asyncio.gather(*map(as_tenant, names)) == names


def test_a_service_runs_in_an_empty_context(loop: BackgroundLoop) -> None:
    """Otherwise the flusher would keep the first tenant's identity for ever."""
    seen: list[str] = []

    async def service() -> None:
        seen.append(tenant.get())

    async def spawn() -> None:
        loop.spawn(service, name="a-service")

    token = tenant.set("acme")
    try:
        loop.run(spawn)
        loop.call_soon(lambda: None)
    finally:
        tenant.reset(token)
    until(lambda: seen)
    assert seen == ["nobody"]


def test_a_service_is_cancelled_by_close(loop: BackgroundLoop) -> None:
    sleeper = Sleeper()

    async def spawn() -> None:
        loop.spawn(sleeper.__call__, name="a-service")

    loop.run(spawn)
    assert sleeper.started.wait(DEADLINE_S)
    assert loop.close(DEADLINE_S)
    assert sleeper.cancelled.is_set()


def test_close_is_idempotent_and_refuses_new_work(loop: BackgroundLoop) -> None:
    loop.run(give, 1)
    for _ in range(3):
        assert loop.close(DEADLINE_S)
    assert not threads_named("test-loop")
    with pytest.raises(LoopClosedError):
        loop.run(give, 1)
    with pytest.raises(LoopClosedError):
        loop.submit(give, 1)
    with pytest.raises(LoopClosedError):
        loop.start()
    assert not loop.call_soon(print)


def test_close_from_many_threads_at_once(loop: BackgroundLoop) -> None:
    loop.run(give, 1)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda _: loop.close(DEADLINE_S), range(16)))
    assert not threads_named("test-loop")


def test_close_answers_everybody_who_waits(loop: BackgroundLoop) -> None:
    sleepers = [Sleeper() for _ in range(20)]
    futures = [loop.submit(sleeper.__call__) for sleeper in sleepers]
    for sleeper in sleepers:
        assert sleeper.started.wait(DEADLINE_S)
    assert loop.close(DEADLINE_S)
    for future in futures:
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(DEADLINE_S)


def test_close_keeps_its_deadline_when_a_task_will_not_end(loop: BackgroundLoop) -> None:
    release = threading.Event()
    started = threading.Event()

    async def stubborn() -> None:
        started.set()
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    waiting = loop.submit(stubborn)
    assert started.wait(DEADLINE_S)
    loop.close(0.3)
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(DEADLINE_S)
    release.set()
    until(lambda: not threads_named("test-loop"))


def test_close_keeps_its_deadline_when_the_loop_is_blocked(loop: BackgroundLoop) -> None:
    release = threading.Event()
    started = threading.Event()

    async def block() -> None:
        started.set()
        release.wait(DEADLINE_S)

    waiting = loop.submit(block)
    assert started.wait(DEADLINE_S)
    assert not loop.close(0.1), "it says that the thread has not ended"
    assert waiting.cancelled(), "who waited has an answer"
    release.set()
    assert loop.close(DEADLINE_S)


def test_a_thousand_threads_submit(loop: BackgroundLoop) -> None:
    start = threading.Barrier(1_000)
    answers: list[int] = []

    def work(number: int) -> None:
        start.wait(DEADLINE_S)
        answers.append(loop.run(give, number, timeout_s=DEADLINE_S * 2))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S * 3)
    assert sorted(answers) == list(range(1_000))
    assert len(threads_named("test-loop")) == 1


def test_every_submitter_has_an_answer_when_the_loop_closes_meanwhile() -> None:
    """A result, a cancellation or a refusal; never a wait without end."""
    for attempt in range(20):
        background = BackgroundLoop(f"closing-{attempt}")
        background.start()
        start = threading.Barrier(9)
        endings: list[str] = []

        def work(background: BackgroundLoop, start: threading.Barrier, endings: list[str]) -> None:
            start.wait(DEADLINE_S)
            try:
                while True:
                    background.submit(give, 1).result(DEADLINE_S)
            except (LoopClosedError, concurrent.futures.CancelledError) as exc:
                endings.append(type(exc).__name__)

        threads = [
            threading.Thread(target=work, args=(background, start, endings)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        start.wait(DEADLINE_S)
        assert background.close(DEADLINE_S)
        for thread in threads:
            thread.join(DEADLINE_S)
        assert len(endings) == 8


def test_a_thread_that_cannot_start_tells_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    background = BackgroundLoop("starved")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            background.run(give, 1)
    assert background.run(give, 2) == 2, "it is tried anew the next time"
    background.close(DEADLINE_S)


@pytest.mark.filterwarnings("ignore:unclosed event loop:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_cannot_be_made_tells_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    background = BackgroundLoop("no-selector")

    def refuse() -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(selectors, "DefaultSelector", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            background.run(give, 1)
        gc.collect()  # the half-made loop complains here, and not in another test
    assert background.run(give, 2) == 2
    background.close(DEADLINE_S)


def test_two_loops_do_not_meet() -> None:
    first, second = BackgroundLoop("first"), BackgroundLoop("second")
    assert first.run(where) != second.run(where)
    assert first.close(DEADLINE_S)
    assert second.run(give, 1) == 1
    assert second.close(DEADLINE_S)
