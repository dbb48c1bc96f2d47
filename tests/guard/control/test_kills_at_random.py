"""A kill at a random moment leaves nothing held, open or half done, whatever the body is using."""

from __future__ import annotations

import _thread
import contextlib
import itertools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import guard
from guard import WorkflowKilledInterrupt
from guard.control import threads
from guard.core import wire
from guard.runtime.runtime import GuardRuntime
from tests.guard.control.things_to_hold import THINGS, compute
from tests.support import garbage
from tests.support.slow_server import SlowServer
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.interpreters


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


ROUNDS = 2
"""How often each thing is tried."""


@pytest.mark.generator("things in use when a kill comes: none is left held, open or half done")
@pytest.mark.filterwarnings("ignore")
def test_nothing_is_left_held_open_or_half_done(
    killed: Callable[..., None],
    server: SlowServer,
    tmp_path: Path,
    count_cases: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine the time may be over before CPython 3.11 was seen at a safe point.
    monkeypatch.setattr(threads, "_PATIENCE_S", WAIT_S / 2)
    found: Counter[str] = Counter()
    tried = ROUNDS * len(THINGS)
    for name, make in THINGS.items():
        for number in range(ROUNDS):
            folder = tmp_path / f"{name} {number}"
            folder.mkdir()
            use, left = make(folder, server.url)
            # In a thread that has nothing else to do: what it waits for may never come.
            user = threading.Thread(target=killed, args=(use,), daemon=True)
            user.start()
            user.join(WAIT_S)  # a body that runs on would disturb what comes after it
            garbage.collect()
            if user.is_alive() or left():
                found[name] += 1
            # Without the rules one in six leaves something. What can remain is rare, and
            # docs/control.md says what it is: an interpreter that is looked at from outside can
            # step on in between. Said at once: what is held is waited for long.
            assert 50 * found.total() <= tried, f"{found} of {ROUNDS} each"
    count_cases(tried)


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


@pytest.mark.skipif(sys.version_info < (3, 12), reason="it has no sys.monitoring")
def test_where_other_tools_monitor_the_program(killed: Callable[..., None]) -> None:
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009  # unknown to CPython 3.11
    for tool in (3, 4):
        if monitoring.get_tool(tool) is not None:
            monitoring.free_tool_id(tool)
        monitoring.use_tool_id(tool, "another")
    try:
        killed(compute)  # posted
    finally:
        for tool in (3, 4):
            monitoring.free_tool_id(tool)
    killed(compute)
    assert monitoring.get_tool(4) == "guard"
