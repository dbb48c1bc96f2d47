"""mypy and pyright both agree with ``api.py``: the API's types are what they should be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # `nox -s types` says the same, and has analysed guard by then

ROOT = Path(__file__).parents[2]
API = Path(__file__).with_name("api.py")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_mypy_agrees(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    done = run(
        "mypy", "--strict", "--follow-imports=silent", f"--cache-dir={tmp_path}",
        "--no-error-summary", str(API),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_pyright_agrees() -> None:
    """pyright is a node program; its package brings node along if it is allowed to fetch it."""
    if "CI" not in os.environ:
        pytest.importorskip("pyright", reason="pyright is not installed")
        if run("pyright", "--version").returncode != 0:
            pytest.skip("pyright cannot run here: it needs node")
    done = run("pyright", "--pythonpath", sys.executable, "--warnings", str(API))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors" in done.stdout
