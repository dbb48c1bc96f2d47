"""Every benchmark runs to its end, with as little to measure as it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support import postgres
from tests.support.redis_server import redis_url  # noqa: F401  # a fixture
from tests.support.waiting import PATIENT

ROOT: Final = Path(__file__).parents[2]
TINY: Final[dict[str, tuple[str, ...]]] = {
    "agent_run": ("--calls", "100", "--latency-ms", "0"),
    "covered": ("--rounds", "1", "--requests", "3"),
    "events": ("--events", "200", "--rounds", "1", "--only", "guard"),
    "gate": ("--rounds", "1", "--calls", "5"),
    "gateway": ("--seconds", "0.1", "--rounds", "1", "--concurrency", "1"),
    "hard_stop": ("--requests", "3", "--only", "openai, async"),
    "hops": (),
    "init": ("--rounds", "1"),
    "input_factors": ("--help",),  # its tokenisers are no package of this project's
    "instrumentation": ("--starts", "1", "--rounds", "1", "--quick"),
    "kill": ("--kills", "1"),
    "kill_beside_attackers": ("--kills", "1", "--attackers", "1", "--only", "trailer"),
    "limit_cases": ("--only", "gpt-4o-mini, serial, whole, max 300, nested"),
    "neighbours": ("--seconds", "0.2", "--events", "2000", "--connections", "1", "--only", "batch",
                   "--engines", "sqlite"),
    "operator_pages": ("--events", "2000", "--rounds", "1", "--postgres", "POSTGRES"),
    "proxy": ("--seconds", "0.2", "--rounds", "1", "--streams", "4"),
    "rates": ("--seconds", "0.05", "--rounds", "1"),
    "scale": ("--replicas", "1", "--seconds", "0.3", "--rounds", "1", "--postgres", "POSTGRES",
              "--redis", "REDIS"),
    "sizing": ("--sockets", "2", "--events", "200", "--seconds", "0.1"),
    "spam_client": ("--requests", "5"),
    "spam_engine": ("--quick",),
    "spam_service": ("--seconds", "0.1", "--rounds", "1", "--connections", "1", "--kinds", "null",
                     "service"),
    "unit_of_work": ("--groups", "4", "--seconds", "0.1", "--rounds", "1", "--postgres",
                     "POSTGRES"),
    "walk": (),
}  # fmt: skip


def test_each_benchmark_is_here() -> None:
    files = (ROOT / "benchmarks").glob("*.py")
    assert {file.stem for file in files if not file.stem.startswith("_")} == TINY.keys()


@pytest.fixture
def places(request: pytest.FixtureRequest) -> dict[str, str]:
    """Where the servers are that a benchmark needs."""
    name = request.getfixturevalue("name")
    found = {}
    if "REDIS" in TINY[name]:
        found["REDIS"] = request.getfixturevalue("redis_url")
    if "POSTGRES" in TINY[name]:
        found["POSTGRES"] = postgres.own_database()
    return found


@pytest.mark.long
@pytest.mark.generator("benchmarks that start")
@pytest.mark.parametrize("name", TINY)
def test_it_runs(name: str, places: dict[str, str]) -> None:
    words = [places.get(word, word) for word in TINY[name]]
    environment = {key: text for key, text in os.environ.items() if not key.startswith("GUARD_")}
    environment |= PATIENT
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *words],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.strip()
