"""Fixtures for tests that run whole programs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from guard.gateway.embedded import Gateway, run_gateway
from tests.support.forward_proxy import UsersProxy, users_proxy
from tests.support.llm_vendor import vendor_process
from tests.support.programs import environment
from tests.support.runs import Runs, local_directory

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run() -> Run:
    """Run ``python ARGUMENTS`` to its end and return what it printed."""

    def runner(
        *arguments: str,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout_s: float = 300.0,
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


@pytest.fixture(scope="module")
def vendor() -> Iterator[str]:
    """The address of a stand-in of the vendor."""
    with vendor_process() as url:
        yield url


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a local gateway, which does not outlive the module's tests."""
    with local_directory(tmp_path_factory.mktemp("run") / "local") as directory:
        yield directory


@pytest.fixture
def guard(directory: Path) -> Iterator[Runs]:
    """``guard`` commands beside that gateway."""
    with contextlib.closing(Runs(directory)) as runs:
        yield runs


@pytest.fixture
def users() -> Iterator[UsersProxy]:
    """A forward proxy that the user has set."""
    with users_proxy() as proxy:
        yield proxy
