"""The recipe for CI, as printed: the steps of its job in bash, beside a stand-in of the vendor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.programs import ROOT
from tests.support.runs import AGENT, Runs

PAGE: Final = ROOT / "docs/recipes/ci.md"


def _steps() -> list[str]:
    """The scripts of the steps that follow the installation."""
    job: dict[str, Any] = yaml.safe_load(PAGE.read_text().split("```")[1].removeprefix("yaml"))
    steps = job["jobs"]["agent"]["steps"]
    assert "pip install" in steps[1]["run"]
    return [step["run"] for step in steps[2:]]


@pytest.mark.skipif(shutil.which("jq") is None, reason="the recipe needs jq")
@pytest.mark.parametrize(
    ("limit", "code", "summary"),
    [
        ("$2", 0, ["$0.0025625 of $2, 5 requests"]),
        (
            "$0.002",
            77,
            ["$0.0015375 of $0.002, 3 requests", "this run's --limit of $0.002 is reached"],
        ),
    ],
)
def test_a_job_is_limited_and_says_what_it_cost(
    guard: Runs, vendor: str, tmp_path: Path, limit: str, code: int, summary: list[str]
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (
        ("guard", f'#!/bin/sh\nexec {sys.executable} -m guard "$@"\n'),
        ("claude", f"#!{sys.executable}\nimport sys\nsys.argv[1:] = [{vendor!r}, '5']\n{AGENT}"),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    written = tmp_path / "summary.md"
    env = guard.env | {
        "PATH": f"{folder}:{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": str(written),
    }  # fmt: skip
    codes = [
        subprocess.run(["bash", "-eo", "pipefail", "-c", script.replace("'$2'", f"'{limit}'")],
                       cwd=tmp_path, env=env, timeout=300, check=False).returncode
        for script in _steps()
    ]  # fmt: skip
    assert codes == [code, 0]
    named, *rest = written.read_text().splitlines()
    assert [named.partition(": ")[2], *rest] == summary
