"""Ctrl-C, or a signal handler that raises, anywhere in a protected call of the main thread."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import guard
from guard import protected_call
from guard.protected_call import ProtectedCall
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import current_scope
from tests.support.waiting import WAIT_S, until


class Interrupted(BaseException):
    """What the signal handler raises."""


@pytest.fixture(params=[100, pytest.param(1000, marks=pytest.mark.long)])
def rounds(request: pytest.FixtureRequest) -> int:
    """How often it is tried."""
    return int(request.param)


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Raise in the main thread, once, some moments after the call."""

    def handler(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    assert main is not None
    due, ended = threading.Event(), threading.Event()
    moments: list[float] = []

    def work() -> None:
        while due.wait() and not ended.is_set():
            due.clear()
            time.sleep(moments.pop())
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def soon(longest_s: float) -> None:
        moments.append(random.uniform(0, longest_s))
        due.set()

    dropped = sys.unraisablehook

    def again(what: Any) -> None:
        # Python drops what is raised in a callback of a weak reference or of the collector.
        if what.exc_type is Interrupted:
            soon(0.01)
        else:
            dropped(what)

    monkeypatch.setattr(sys, "unraisablehook", again)
    yield soon
    ended.set()
    due.set()
    thread.join(WAIT_S)
    signal.signal(signal.SIGUSR1, before)


def test_it_is_raised_as_it_is_and_leaves_nothing_behind(
    runtime: GuardRuntime, interrupting: Callable[[float], None], rounds: int
) -> None:
    @guard.protect
    def step() -> str:
        return "ran"

    outcomes = {"ran": 0, "interrupted": 0}
    for _ in range(rounds):
        before = current_scope.get()
        try:
            interrupting(0.03)
            while True:
                step()
                outcomes["ran"] += 1
        except Interrupted:
            outcomes["interrupted"] += 1
        assert current_scope.get() is before
        assert len(runtime.enforcement.bodies) == 0
    assert outcomes["interrupted"] == rounds
    assert outcomes["ran"] > 0
    assert step() == "ran"
    admission = runtime.gate._courier._admission
    until(lambda: (admission._running, len(admission)) == (0, 0), WAIT_S)


def test_in_a_call_that_waits_for_the_loop(
    runtime: GuardRuntime, interrupting: Callable[[float], None], rounds: int
) -> None:
    for _ in range(rounds):
        interrupted = False
        try:
            interrupting(0.01)
            while True:
                guard.track_tool("search")
                runtime.flush(WAIT_S)
        except Interrupted:
            interrupted = True
        assert interrupted
    runtime.flush(WAIT_S)
    assert runtime.status().events_lost == 0


@pytest.mark.parametrize("how", ["covered", "with checks"])
def test_the_money_of_a_call_that_is_interrupted_as_it_begins_goes_back(
    runtime: GuardRuntime, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    @guard.protect
    def step() -> None:
        pass

    until(lambda: (session := runtime.link.session) and session.asks.can_lease, WAIT_S)
    until(lambda: (step(), runtime.leases.totals().leases)[1], WAIT_S)
    taken: list[Any] = []
    take = runtime.leases.take

    def noted(*args: Any) -> Any:
        taken.append(take(*args))
        return taken[-1]

    def interrupted(*_: Any) -> Any:
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(runtime.leases, "take", noted)
        if how == "covered":
            patched.setattr(protected_call, "call_scope", interrupted)
        else:  # as if another workflow were halted
            patched.setattr(runtime.enforcement, "halts", True)
            patched.setattr(ProtectedCall, "_accept", interrupted)
        with pytest.raises(Interrupted):
            step()
    assert taken[-1] is not None, "it was covered"
    assert not taken[-1].give_back(), "it has ended already"
    assert runtime.leases.totals().under_way == 0
