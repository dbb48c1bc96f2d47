"""Nothing that people read is misspelt, by codespell's list of misspellings."""

from __future__ import annotations

import re
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


LED_BY_OF: Final = re.compile(
    r"""^\s*(# Of |(?:[rf]*\"{3}|[a-z_]\w*(?:, [a-z_]\w*)*: )[Oo]f )""", re.ASCII
)
"""A comment, a docstring or the description of an argument that begins with "of"."""


def led_by_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if LED_BY_OF.match(line)]


def test_no_sentence_of_the_sdk_begins_with_of() -> None:
    """ "Of the URL" leaves to the reader what it is about, and mostly lacks its verb as well."""
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / "guard").rglob("*.py"))
        if "gateway" not in path.parts and (lines := led_by_of(path.read_text("utf-8")))
    }
    assert not found


@pytest.mark.parametrize(
    "line", ['"""Of one request."""', "    # Of the journal: open", "    host, path: of the URL."]
)
def test_a_sentence_that_begins_with_of_is_found(line: str) -> None:
    assert led_by_of(line)


@pytest.mark.parametrize("line", ["host: that of the URL.", "# Often", "x = 1  # of the URL"])
def test_a_sentence_with_another_beginning_is_not(line: str) -> None:
    assert not led_by_of(line)
