"""The tools that people patch their clients with, in every order with guard: `nox -s patchers`.

Each request is observed once, and no client breaks. Without such a tool its tests are skipped.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.guard.instrumentation.conftest import start_observing
from tests.guard.instrumentation.patch_seams import ASK
from tests.guard.instrumentation.standin.server import StandIn

PROGRAM: Final = Path(__file__).with_name("patcher_program.py")
ROOT: Final = Path(__file__).parents[3]
TOOLS: Final = {
    "wrapt": "wrapt",
    "ddtrace": "ddtrace",
    "newrelic": "newrelic",
    "opentelemetry": "opentelemetry.instrumentation.httpx",
    "sentry": "sentry_sdk",
    "vcr": "vcr",
}
QUIET: Final = {
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    "DD_TRACE_AGENT_URL": "http://127.0.0.1:9",
    "DD_TRACE_STARTUP_LOGS": "0",
    "NEW_RELIC_DEVELOPER_MODE": "true",
    "NEW_RELIC_LICENSE_KEY": "0" * 40,
    "NEW_RELIC_APP_NAME": "guard",
}
"""Nothing is sent anywhere."""


ENDLESS: Final = ("newrelic", "sentry")
"""Those that cannot be taken out."""

BROKEN: Final = {"ddtrace": ("unpatch", "import"), "opentelemetry": ("again", "patch")}
"""Orders in which a tool breaks by itself, without guard."""


def orders(tool: str) -> list[tuple[str, ...]]:
    """Return every order of the steps, and of them with one step more."""
    steps = ("import", "guard", "patch", "unpatch", "again")
    found = [
        order
        for length in (3, 4)
        for chosen in itertools.combinations(steps, length)
        if {"import", "guard", "patch"} <= {*chosen}
        for order in itertools.permutations(chosen)
        if _after(order, "unpatch", "patch") and _after(order, "again", "import")
    ]
    return [
        order
        for order in found
        if (tool not in ENDLESS or "unpatch" not in order)
        and (tool not in BROKEN or not _is_before(order, *BROKEN[tool]))
    ]


def _is_before(order: tuple[str, ...], first: str, second: str) -> bool:
    return first in order and order.index(first) < order.index(second)


def _after(order: tuple[str, ...], later: str, earlier: str) -> bool:
    return later not in order or order.index(later) > order.index(earlier)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.generator("orders with six real patchers")
@pytest.mark.parametrize("tool", TOOLS)
def test_every_order_with(tool: str, standin: StandIn, count_cases: Callable[[int], None]) -> None:
    pytest.importorskip(TOOLS[tool])
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT)}
    every = orders(tool)
    once = dict.fromkeys(["httpx", "httpx_async", "aiohttp", "requests", "botocore"], 1)
    wrong: list[Any] = []
    for order in every:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), tool, ",".join(order), standin.url],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        counts = json.loads(done.stdout) if done.returncode == 0 else done.stderr[-2000:]
        if counts != once:
            wrong.append((order, counts))
    assert not wrong
    count_cases(len(every))


@pytest.mark.parametrize("order", ["guard first", "mock first"])
def test_pytest_httpx(order: str, request: pytest.FixtureRequest) -> None:
    """It answers in place of the transport: nothing leaves, and nothing is charged."""
    pytest.importorskip("pytest_httpx")
    url = "http://127.0.0.1:9/v1/chat/completions"
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    observed = start_observing() if order == "guard first" else None
    mock = request.getfixturevalue("httpx_mock")
    mock.add_response(json={"id": "c", "model": "m", "choices": [], "usage": usage})
    observed = observed or start_observing()
    assert httpx.post(url, json=ASK).json()["usage"] == usage
    observed.instrumentation.uninstall()
    assert observed.events == []
