"""What a kill has led to is left alone for a time: handlers and ``finally`` run to their end.

A matrix: where the body waits when the kill comes, and what cleans up. What cleans up takes longer
than any distance at which a kill is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import guard
from guard import WorkflowKilledInterrupt
from guard.control.cleanup_time import CleanupTime
from tests.support.waiting import WAIT_S

pytestmark = [
    pytest.mark.generator("places and ways to clean up"),
    pytest.mark.usefixtures("connected"),
]


@pytest.fixture(autouse=True)
def _long_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes long for the steps; how long the time is, is not the subject here."""
    monkeypatch.setattr(CleanupTime, "first_s", WAIT_S)


STEPS = 300
STEP_S = 0.001


class CleanUp:
    """Steps that are counted; each takes a moment."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.steps = 0

    def run(self) -> None:
        for _ in range(STEPS):
            ends_s = time.perf_counter() + STEP_S
            while time.perf_counter() < ends_s:
                pass
            self.steps += 1


# -- where a body is ------------------------------------------------------------------------------


def computes(clean_up: CleanUp) -> None:
    clean_up.entered.set()
    while True:
        pass


def naps(clean_up: CleanUp) -> None:
    clean_up.entered.set()
    while True:
        time.sleep(0.01)


def runs_a_loop(clean_up: CleanUp) -> None:
    async def main() -> None:
        clean_up.entered.set()
        await asyncio.sleep(WAIT_S)

    asyncio.run(main())


def runs_a_busy_loop(clean_up: CleanUp) -> None:
    async def main() -> None:
        clean_up.entered.set()
        while True:
            await asyncio.sleep(0)

    asyncio.run(main())


def waits_for_a_thread(clean_up: CleanUp) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(guard.context.carry(computes), clean_up).result()


def calls_a_protected_one(clean_up: CleanUp) -> None:
    guard.protect(computes)(clean_up)


def calls_a_protected_one_with_a_loop(clean_up: CleanUp) -> None:
    guard.protect(runs_a_loop)(clean_up)


PLACES = (computes, naps, runs_a_loop, runs_a_busy_loop, waits_for_a_thread, calls_a_protected_one,
          calls_a_protected_one_with_a_loop)  # fmt: skip


# -- what cleans up -------------------------------------------------------------------------------


def in_finally(work: Callable[[CleanUp], None], clean_up: CleanUp) -> None:
    try:
        work(clean_up)
    finally:
        clean_up.run()


def in_a_handler(work: Callable[[CleanUp], None], clean_up: CleanUp) -> None:
    try:
        work(clean_up)
    except BaseException:
        clean_up.run()
        raise


def in_a_context_manager(work: Callable[[CleanUp], None], clean_up: CleanUp) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(clean_up.run)
        work(clean_up)


def after_another_error(work: Callable[[CleanUp], None], clean_up: CleanUp) -> None:
    try:
        work(clean_up)
    except BaseException:
        try:
            raise ValueError("of the clean-up")
        except ValueError:
            clean_up.run()
        raise


WAYS = (in_finally, in_a_handler, in_a_context_manager, after_another_error)


@pytest.mark.parametrize("place", PLACES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("way", WAYS, ids=lambda each: each.__name__)
def test_clean_up_runs_to_its_end(
    operator: Any,
    place: Callable[[CleanUp], None],
    way: Callable[[Callable[[CleanUp], None], CleanUp], None],
) -> None:
    clean_up = CleanUp()

    @guard.protect
    def body() -> None:
        way(place, clean_up)

    operator(clean_up.entered)
    with guard.workflow("w"), pytest.raises(WorkflowKilledInterrupt):
        body()
    assert clean_up.steps == STEPS
