"""The pytest plugin, loaded by a pytest of its own: the documentation's example has to pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.pages import blocks_of
from tests.support.waiting import PATIENT

DOCUMENT = Path(__file__).parents[3] / "docs" / "testing.md"


def example() -> str:
    text = DOCUMENT.read_text()
    found = {
        each.value: each.text for each in blocks_of("testing.md", text) if each.marker == "file"
    }
    return found["test_agent.py"]


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GUARD_", "PYTEST"))}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **PATIENT}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_the_documented_example(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["guard.testing"]\n')
    (tmp_path / "test_agent.py").write_text(example())
    done = pytest_in(tmp_path)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


MORE = """
import asyncio
import os

import guard


def test_code_under_test_that_initialises_by_itself(guard_sandbox):
    assert guard.init() is guard_sandbox.runtime
    assert os.environ["GUARD_API_URL"] == guard_sandbox.api_url
    assert guard_sandbox.api_key not in repr(guard_sandbox)


def test_each_test_starts_anew(guard_sandbox):
    assert guard_sandbox.events() == []
    guard_sandbox.block_tools("x*")
    guard_sandbox.block_tools()

    @guard.protect
    def x():
        guard.track_tool("x")

    x()
    assert guard_sandbox.tool_calls() == ["x"]


def test_pause_in_async_code(guard_sandbox):
    @guard.protect
    async def work():
        return 1

    async def main():
        with guard.workflow("w"):
            guard_sandbox.pause("w", reason="lunch")
            try:
                await work()
            except guard.WorkflowPausedException as exc:
                assert exc.reason == "lunch"
            else:
                raise AssertionError("went on")
            guard_sandbox.resume("w")
            return await work()

    assert asyncio.run(main()) == 1


def test_shut_down_by_the_code_under_test(guard_sandbox):
    guard.shutdown()
"""


def test_what_users_do_with_it(tmp_path: Path) -> None:
    (tmp_path / "test_more.py").write_text(MORE)
    done = pytest_in(tmp_path, "-p", "guard.testing")
    assert "4 passed" in done.stdout, done.stdout + done.stderr
