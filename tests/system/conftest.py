"""Fixtures for tests that run whole programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from guard.gateway.embedded import Gateway, run_gateway

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment without settings of guard and spamdetect, and with ``extra``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GUARD_", "SPAMDETECT_"))
    }
    return {**kept, "PYTHONPATH": str(ROOT), **(extra or {})}


@pytest.fixture
def run() -> Run:
    """Run ``python ARGUMENTS`` to its end and return what it printed."""

    def runner(
        *arguments: str,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment(env),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return runner


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A real gateway on a free loopback port."""
    with run_gateway() as running:
        yield running
