"""Fixtures: a server that hangs and drips, and an operator who kills when a body is at work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

import guard
from tests.support import garbage
from tests.support.slow_server import SlowServer
from tests.support.waiting import WAIT_S, until


class Operator(Protocol):
    """Kills a workflow as soon as a condition holds."""

    def __call__(
        self,
        when: Callable[[], object] | threading.Event,
        workflow_id: str = ...,
        **order: Any,
    ) -> None: ...


@pytest.fixture
def server() -> Iterator[SlowServer]:
    """A server that never hurries."""
    slow = SlowServer()
    yield slow
    slow.close()


@pytest.fixture
def operator(tenant: Any) -> Iterator[Operator]:
    """An operator in a thread of its own."""
    threads: list[threading.Thread] = []
    failures: list[BaseException] = []

    def kill_when(
        when: Callable[[], object] | threading.Event, workflow_id: str = "w", **order: Any
    ) -> None:
        condition = when.is_set if isinstance(when, threading.Event) else when

        def work() -> None:
            try:
                until(condition, WAIT_S)
                order.setdefault("reason", "stop it")
                tenant.admin.kill(None if "run_id" in order else workflow_id, **order)
            except BaseException as exc:
                failures.append(exc)

        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()

    yield kill_when
    for thread in threads:
        thread.join(WAIT_S)
    assert not failures, failures


@pytest.fixture
def collected() -> Iterator[None]:
    """What a client leaves to the garbage collector is collected here, not in another test."""
    yield
    garbage.collect()


@pytest.fixture
def connected(runtime: guard.GuardRuntime) -> guard.GuardRuntime:
    """A runtime whose control socket is open."""
    until(lambda: runtime.status().control_channel == "websocket", WAIT_S)
    return runtime
