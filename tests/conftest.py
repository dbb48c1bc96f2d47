"""What every test can rely on."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import random
import signal
import ssl
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import argon2
import pytest
from hypothesis import HealthCheck, settings
from websockets.asyncio import client as asyncio_client
from websockets.sync import client as sync_client

from guard.gateway import embedded
from tests.support import garbage
from tests.support.drawing import Case, draw, in_part, left_out_areas

# A run that was started in the background inherits an ignored SIGINT, and so would every program
# that the tests start; Ctrl-C is part of what they test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Whoever runs the tests, their programs print the same.
for _name in ("CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "PYTHONUNBUFFERED", "PYTHONWARNINGS"):
    os.environ.pop(_name, None)

# How long an example takes says something about the machine's load only; and a test that is tried
# again by the runner has another executor.
settings.register_profile(
    "suite",
    deadline=None,
    max_examples=200 if os.environ.get("CI") else 40,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("suite")

# A loop that a test blocks, or a busy machine, answers a ping late, and a handshake.
for _connect in (asyncio_client.connect.__init__, sync_client.connect):
    _connect.__kwdefaults__ |= {"ping_timeout": None, "open_timeout": 60.0}

# So long may it take to make the tables of a store.
embedded.START_TIMEOUT_S = 120.0

# Hashing a password is meant to be dear, and tests sign in hundreds of times. What it costs people
# is tested where the gateway is a program (dashboard/test_password_command.py).
_hasher: Any = argon2.PasswordHasher.__init__
_hasher.__defaults__ = (1, 8, 1, *_hasher.__defaults__[3:])


_METHODS = ("get", "head", "post", "put", "patch", "delete")


def _sharing(create: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    """Read the certificates of all authorities once, and not for each of thousands of clients."""

    @functools.cache
    def shared(trust_env: bool, *named: str | None) -> ssl.SSLContext:
        return create(trust_env=trust_env)

    def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is not True or cert is not None:
            return create(verify=verify, cert=cert, trust_env=trust_env)
        return shared(trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    return context


for _name in ("httpx", "httpx2"):
    with contextlib.suppress(ImportError):
        _client: Any = importlib.import_module(_name)
        _transports: Any = importlib.import_module(f"{_name}._transports.default")
        _transports.create_ssl_context = _sharing(_transports.create_ssl_context)
        # A busy machine may take longer for an answer than they wait by themselves: 5 seconds.
        for _ask in (_client.Client.__init__, _client.AsyncClient.__init__, _client.request,
                     *(getattr(_client, each) for each in _METHODS)):  # fmt: skip
            _ask.__kwdefaults__["timeout"] = _client.Timeout(60.0)


# Thousands of modules and tests are made now, of which nothing is garbage.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from going through every imported module again and again.

    A full collection took half a second, and many tests end with one.
    """
    try:
        return (yield)
    finally:
        gc.enable()
        garbage.collect()


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """What a module leaves open is found, and warned of, in that module and under its filters."""
    yield
    garbage.collect()


# -- what is drawn for a run -----------------------------------------------------------------------

MATRIX_MIN = 16
"""A test of more cases is a large matrix, of which about this many cases are drawn for a run."""

DRAW = os.environ.get("GUARD_TEST_DRAW", "")
"""The seed of what is drawn, or ``all``; without one it is nothing, and the rest is all."""

PART = int(os.environ.get("GUARD_TEST_PART") or 1)
"""One in how many of the cases that would run otherwise is drawn."""

ENGINES = "sqlite", "postgres"


def pytest_report_header() -> str | None:
    """Say how to draw the same cases again."""
    if not DRAW:
        return None
    part = f" GUARD_TEST_PART={PART}" if PART > 1 else ""
    left_out = ", ".join(left_out_areas()) if DRAW != "all" else ""
    return f"drawn with GUARD_TEST_DRAW={DRAW}{part}" + (
        f"; left out, since nothing of theirs has changed: {left_out}" if left_out else ""
    )


def _mark_undrawn(items: list[pytest.Item]) -> None:
    """Mark the cases that were not drawn, for ``-m`` to choose by."""
    matrices: defaultdict[str, list[Any]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            matrices[item.nodeid.partition("[")[0]].append(item)
    if DRAW == "all":
        return
    for name, cases in matrices.items():
        if len(cases) > MATRIX_MIN:
            named = [Case(case.callspec.id, case.callspec.indices) for case in cases]
            drawn = draw(named, MATRIX_MIN, f"{DRAW} {name}") if DRAW else set()
            for number, case in enumerate(cases):
                if number not in drawn:
                    case.add_marker("undrawn")
        if DRAW and not os.environ.get("CI"):
            _mark_other_engines(name, cases)
    areas = left_out_areas() if DRAW else ()
    for item in items:
        drawn = item.get_closest_marker("interpreters") or in_part(f"{DRAW} {item.nodeid}", PART)
        if item.nodeid.startswith(areas) or not drawn:
            item.add_marker("undrawn")


def _mark_other_engines(name: str, cases: list[Any]) -> None:
    """Mark all but one of the cases that differ in the storage engine alone."""
    alike: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for case in cases:
        axes = case.callspec.params
        if case.get_closest_marker("undrawn") is None and any(
            value in ENGINES for value in axes.values() if isinstance(value, str)
        ):
            others = [(axis, case.callspec.indices[axis]) for axis in axes
                      if axes[axis] not in ENGINES]  # fmt: skip
            alike[tuple(others)].append(case)
    for others, group in alike.items():
        drawn = random.Random(f"{DRAW} {name} {others}").choice(group)
        for case in group:
            if case is not drawn:
                case.add_marker("undrawn")


# -- how many cases the generators have gone through ----------------------------------------------


@pytest.fixture
def count_cases(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Counts the cases of a generator that goes through many of them in one test."""
    said = request.node.user_properties
    return lambda number: said.append(("cases", number))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what was not drawn, and let the report of a generator's test name the generator."""
    _mark_undrawn(items)
    for item in items:
        marker = item.get_closest_marker("generator")
        if marker is not None:
            item.user_properties.append(("generator", marker.args[0]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note the processor time of a generator, its programs included."""
    if item.get_closest_marker("generator") is None:
        return (yield)
    began_s = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_s", sum(os.times()[:4]) - began_s))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the cases and the seconds of each generator.

    A test is one case, unless it has counted its own. The names of all tests that passed go to the
    file that ``GUARD_TEST_CASES`` names.
    """
    cases: Counter[str] = Counter()
    cpu_s: Counter[str] = Counter()
    passed = terminalreporter.getreports("passed")
    for report in passed:
        said = report.user_properties
        counted = [number for what, number in said if what == "cases"]
        for what, name in said:
            if what == "generator":
                cases[name] += sum(counted) if counted else 1
                cpu_s[name] += sum(number for what, number in said if what == "cpu_s")
    if cases:
        terminalreporter.section("generated cases that passed")
        for name, number in sorted(cases.items()):
            terminalreporter.line(f"{number:>9,} {name} ({cpu_s[name]:.0f} s of processor time)")
    if file := os.environ.get("GUARD_TEST_CASES"):
        with Path(file).open("a") as names:
            names.writelines(f"{report.nodeid}\n" for report in passed)
