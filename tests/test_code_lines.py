"""The code of each package stays below its ceiling: code_lines.toml."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
CEILINGS: Final[dict[str, int]] = tomllib.loads(
    Path(__file__).with_name("code_lines.toml").read_text()
)


def code_lines(source: str) -> int:
    """Count the lines without comments, docstrings and blank lines."""
    kept = enumerate((line.strip() for line in source.splitlines()), 1)
    lines = {number for number, line in kept if line and not line.startswith("#")}
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= _lines(node.body[0])
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            lines |= _lines(node)  # what looks blank or like a comment in a text is code
    return len(lines - docstrings)


def _lines(node: ast.stmt | ast.expr) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def test_what_counts_as_code() -> None:
    source = '''"""A module's docstring.

    of three lines"""

import os  # a comment beside code

# a comment
class Thing:
    """A docstring."""

    size = 3
    """Said of an attribute: it counts."""

    def text(self) -> str:
        """A docstring."""
        return """two

# lines"""
'''
    assert code_lines(source) == 8


@pytest.mark.parametrize("package", CEILINGS)
def test_a_package_stays_below_its_ceiling(package: str) -> None:
    apart = [ROOT / other for other in CEILINGS if other.startswith(f"{package}/")]
    total = sum(
        code_lines(path.read_text())
        for path in (ROOT / package).rglob("*.py")
        if not any(path.is_relative_to(folder) for folder in apart)
    )
    ceiling = CEILINGS[package]
    assert total <= ceiling, (
        f"{package} has {total:,} lines of code, {total - ceiling:,} more than its ceiling: delete "
        "as many, or raise the ceiling in tests/code_lines.toml and say in the commit what a user "
        "gets for it and what was deleted"
    )
