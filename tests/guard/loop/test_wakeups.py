"""The loop is woken once for many calls from other threads, and never misses one."""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Iterator
from typing import Any

import pytest

from guard.loop import BackgroundLoop
from tests.support.waiting import WAIT_S


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    background = BackgroundLoop("test-loop")
    background.start()
    yield background
    background.close(WAIT_S)


def test_one_byte_for_all_that_come_while_the_loop_is_busy(
    loop: BackgroundLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[None] = []
    write = BaseSelectorEventLoop._write_to_self  # type: ignore[attr-defined]

    own = loop.start()

    def counted(self: Any) -> None:
        if self is own:  # other loops are at work in this process
            writes.append(None)
        write(self)

    monkeypatch.setattr(BaseSelectorEventLoop, "_write_to_self", counted)
    busy, go = threading.Event(), threading.Event()
    loop.call_soon(lambda: (busy.set(), go.wait(WAIT_S)))
    assert busy.wait(WAIT_S)
    before, done = len(writes), threading.Event()
    ran: list[int] = []
    for number in range(1000):
        loop.call_soon(ran.append, number)
    loop.call_soon(done.set)
    assert len(writes) - before <= 1
    go.set()
    assert done.wait(WAIT_S)
    assert ran == list(range(1000))


def test_no_call_is_missed(loop: BackgroundLoop) -> None:
    """Each thread waits for its answer before it asks again, so a lost wake-up would end it."""

    async def echo(number: int) -> int:
        await asyncio.sleep(0)
        return number

    failures: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(1500):
                assert loop.run(echo, number, timeout_s=WAIT_S) == number
                if number % 100 == 0:
                    time.sleep(0.001)  # the loop falls asleep
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)


def test_an_interrupted_write_is_made_up_for(
    loop: BackgroundLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    time.sleep(0.05)
    own, write = loop.start(), BaseSelectorEventLoop._write_to_self  # type: ignore[attr-defined]

    def interrupted(self: Any) -> None:
        if self is own:
            raise KeyboardInterrupt
        write(self)

    with monkeypatch.context() as patched:
        patched.setattr(BaseSelectorEventLoop, "_write_to_self", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.call_soon(lambda: None)
    done = threading.Event()
    loop.call_soon(done.set)
    assert done.wait(WAIT_S)
