"""Nothing that people read is misspelt, by codespell's list of misspellings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.programs import ROOT

READ: Final = "*.md", "docs/**/*.md", "guard/**/*.py", "guard/**/*.html", "spamdetect/**/*.py"
IN_OTHER_LANGUAGES: Final = "spamdetect/training/"
"""What holds words of other languages than English."""


def misspelt(*paths: Path) -> str:
    """Return what codespell finds, with the settings in ``pyproject.toml``."""
    command = [sys.executable, "-m", "codespell_lib", "--toml", str(ROOT / "pyproject.toml")]
    done = subprocess.run([*command, *paths], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 65), done.stderr
    return done.stdout


@pytest.mark.generator("files without a misspelling")
def test_nothing_is_misspelt(count_cases: Callable[[int], None]) -> None:
    paths = [path for glob in READ for path in sorted(ROOT.glob(glob))
             if "_build" not in path.parts
             and not path.relative_to(ROOT).as_posix().startswith(IN_OTHER_LANGUAGES)]  # fmt: skip
    assert len(paths) > 500
    assert not misspelt(*paths)
    count_cases(len(paths))


def test_a_misspelling_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("A budget is seperate from the others.\n")
    assert "seperate ==> separate" in misspelt(page)
