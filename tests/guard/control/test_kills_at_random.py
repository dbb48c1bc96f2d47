"""A kill at a random moment leaves nothing held, open or half done, whatever the body is using."""

from __future__ import annotations

import _thread
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable

import pytest

import guard
from guard import WorkflowKilledInterrupt
from guard.core import wire
from guard.runtime.runtime import GuardRuntime


@pytest.fixture
def killed(runtime: GuardRuntime) -> Callable[[Callable[[], object]], None]:
    """Run a function again and again as a protected body, which a kill ends at a random moment."""
    numbers = itertools.count(1)
    loop = runtime._background.start()

    def kill(name: str, seq: int) -> None:
        runtime.enforcement.apply(wire.ControlMessage(seq=seq, type="kill", workflow_id=name))

    def run(use: Callable[[], object]) -> None:
        @guard.protect
        def body() -> None:
            loop.call_soon_threadsafe(loop.call_later, random.random() * 0.01, kill, name, number)
            while True:
                use()

        number = next(numbers)
        name = f"random-{number}"
        with guard.workflow(name), contextlib.suppress(WorkflowKilledInterrupt):
            body()
        assert len(runtime.enforcement.bodies) == 0

    return run


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", ["Thread", "start_new_thread"])
def test_while_it_starts_threads(killed: Callable[..., None], how: str) -> None:
    """CPython 3.11 may give what is meant for a thread to the one that it is starting."""
    ran: list[int] = []

    def use() -> None:
        if how == "Thread":
            thread = threading.Thread(target=ran.append, args=(1,), daemon=True)
            thread.start()
            thread.join()
        else:  # the thread that is started may get it and die: then it is posted again
            started = threading.Lock()
            started.acquire()
            _thread.start_new_thread(started.release, ())
            time.sleep(0.001)

    runners = [threading.Thread(target=killed, args=(use,), daemon=True) for _ in range(20)]
    for runner in runners:
        runner.start()
        runner.join(10.0)
        assert not runner.is_alive(), "the kill has ended the body"
