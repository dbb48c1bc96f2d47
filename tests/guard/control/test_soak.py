"""Many kills at random moments: none is missed, none arrives outside of its body.

``GUARD_TEST_KILL_SOAK`` sets how many (a few hundred by default; 10,000 takes some minutes).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import guard
from guard import WorkflowKilledInterrupt
from guard.control import threads
from guard.core import wire
from guard.runtime.runtime import GuardRuntime
from tests.support.waiting import WAIT_S, until

KILLS = int(os.environ.get("GUARD_TEST_KILL_SOAK", "200"))
WORKERS = 4


class Soak:
    """Workers that run bodies, each killed once, at a random moment."""

    def __init__(self, runtime: GuardRuntime) -> None:
        self.runtime = runtime
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []
        self.lock = threading.Lock()
        self._seqs = itertools.count(1)
        self._numbers = iter(range(KILLS))
        self._taking = threading.Lock()

    # -- bodies: all but the short ones run until they are killed --------------------------------

    def loop(self) -> None:
        while True:
            sum(range(20))

    def naps(self) -> None:
        while True:
            time.sleep(0.000_5)

    def locks(self) -> None:
        while True:
            with self.lock:
                pass
            self.lock.acquire()
            try:
                pass
            finally:
                self.lock.release()

    def guards_own(self) -> None:
        while True:
            guard.track_event("soak", number=1)
            with guard.span("s"):
                guard.track_llm(1, 1, model="m")

    def nested(self) -> None:
        while True:
            guard.protect(time.sleep)(0)

    def generator(self) -> None:
        @guard.protect
        def numbers() -> Iterator[int]:
            while True:
                yield 1

        for _ in numbers():
            pass

    def an_event_loop(self) -> None:
        asyncio.run(asyncio.sleep(WAIT_S))

    def a_coroutine(self) -> None:
        @guard.protect
        async def body() -> None:
            while True:
                await asyncio.sleep(random.choice([0, 0.001]))

        asyncio.run(body())

    def swallows(self) -> None:
        for _ in range(random.randrange(1, 4)):
            with contextlib.suppress(BaseException):
                self.loop()
        self.loop()

    def swallows_and_ends(self) -> None:
        with contextlib.suppress(BaseException):
            self.loop()
        time.sleep(random.random() * 0.1)  # until about when it is raised again

    def short(self) -> None:
        for _ in range(random.randrange(20_000)):
            pass

    def short_and_failing(self) -> None:
        time.sleep(random.random() * 0.004)
        raise LookupError

    # -- the workers -------------------------------------------------------------------------------

    def _kill(self, name: str) -> None:
        message = wire.ControlMessage(seq=next(self._seqs), type="kill", workflow_id=name)
        self.runtime.enforcement.apply(message)

    def work(self) -> None:
        """Run bodies until there are enough; nothing may be raised outside of them."""
        try:
            while self._one():
                pass
        except BaseException as exc:
            self.failures.append(f"outside of any body: {exc!r}")

    def _one(self) -> bool:
        with self._taking:
            number = next(self._numbers, None)
        if number is None:
            return False
        kinds: list[Callable[[], None]] = [
            self.loop, self.naps, self.locks, self.guards_own, self.nested, self.generator,
            self.an_event_loop, self.a_coroutine, self.swallows, self.swallows_and_ends,
            self.short, self.short_and_failing,
        ]  # fmt: skip
        kind = kinds[number % len(kinds)]
        name = f"soak-{number}"
        loop = self.runtime._background.start()
        delay_s = random.random() * 0.01
        with guard.workflow(name):
            loop.call_soon_threadsafe(loop.call_later, delay_s, self._kill, name)
            try:
                guard.protect(kind)()
                outcome = "result"
            except WorkflowKilledInterrupt as exc:
                outcome = "killed" if exc.workflow_id == name else f"wrong: {exc.workflow_id}"
            except LookupError:
                outcome = "failed"
        for _ in range(2000):  # an interrupt that is left over would arrive here
            pass
        self.outcomes[f"{kind.__name__}: {outcome}"] += 1
        return True


@pytest.mark.fault
@pytest.mark.timeout(3600 if KILLS > 2000 else 120)
def test_no_miss_and_no_interrupt_outside_of_its_body(
    start: Callable[..., GuardRuntime], capsys: pytest.CaptureFixture[str]
) -> None:
    # Four threads that compute leave the background loop little time: the gate is to be waited for.
    runtime = start(timeout_ms=30_000, buffer_size=100_000)
    soak = Soak(runtime)
    workers = [threading.Thread(target=soak.work, daemon=True) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        until(lambda worker=worker: not worker.is_alive(), 60.0 + KILLS * 0.5)  # type: ignore[misc]
    with capsys.disabled():
        if KILLS > 2000:
            print(f"\n{dict(soak.outcomes)}")
    assert not soak.failures
    assert sum(soak.outcomes.values()) == KILLS
    for outcome in soak.outcomes:
        body, _, result = outcome.partition(": ")
        assert result in ({"killed", "result", "failed"} if "short" in body else {"killed"})
    assert len(runtime.enforcement.bodies) == 0
    assert not threads._pending
    assert soak.lock.acquire(timeout=WAIT_S)
