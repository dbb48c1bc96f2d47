"""A plugin of pytest: event loops and threads come late, at random, as on a busy machine.

Run: ``pytest -p tests.support.stalls [--stalls 3] ...``, or ``nox -s flaky -- --stalls``

It costs no processor time, so it finds in minutes what a test takes for granted: that a thread has
begun, that an answer is there, that a second is long. Programs that tests start are as fast as
always.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

SHORT: Final = 0.02, 0.0, 0.04
LONG: Final = 0.0004, 0.3, 1.2
BEGIN: Final = 0.3, 0.0, 0.08
"""How probable a stall is, and how long it is at least and at most, in seconds: of a turn of a loop
(two kinds), and of a thread that begins."""

SWITCH_S: Final = 0.02
"""How long a thread that computes keeps the interpreter: four times as long as usual."""


class Stalls:
    """Stalls, by chance.

    Args:
        factor: how many times as probable as by default.
        seed: of the chances.
    """

    def __init__(self, factor: float, seed: str) -> None:
        self._factor = factor
        self._random = random.Random(seed)
        self._sleep = time.sleep  # a test may replace it

    def maybe(self, *kinds: tuple[float, float, float]) -> None:
        """Stand still, perhaps."""
        for probability, least_s, most_s in kinds:
            if self._random.random() < probability * self._factor:
                self._sleep(self._random.uniform(least_s, most_s))

    def before(self, method: Callable[..., Any], *kinds: tuple[float, float, float]) -> Any:
        """Return a method that may stall before it does what it does."""

        @functools.wraps(method)
        def late(*args: Any, **options: Any) -> Any:
            self.maybe(*kinds)
            return method(*args, **options)

        return late


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--stalls``."""
    parser.addoption("--stalls", type=float, default=1.0, help="how many times as many (1)")


def pytest_configure(config: pytest.Config) -> None:
    """Begin."""
    seed = os.environ.get("GUARD_TEST_DRAW", "") + os.environ.get("PYTEST_XDIST_WORKER", "")
    stalls = Stalls(config.getoption("--stalls"), seed)
    loop: Any = asyncio.base_events.BaseEventLoop
    loop._run_once = stalls.before(loop._run_once, SHORT, LONG)
    thread: Any = threading.Thread
    thread.run = stalls.before(thread.run, BEGIN)
    sys.setswitchinterval(SWITCH_S)
