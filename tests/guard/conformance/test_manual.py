"""The manual's reference pages name everything that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import guard
from guard.breaker import exceptions
from guard.settings import Settings

DOCS = Path(__file__).parents[3] / "docs"


def _page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", dir(guard))
def test_the_api_page_describes_every_public_symbol(name: str) -> None:
    """Part 4, SDK interface: each symbol has its place on the API page."""
    described = re.findall(r"^\.\. auto\w+:: ([\w.]+)$", _page("api.md"), re.MULTILINE)
    assert described.count(f"guard.{name}") + described.count(name) == 1


def test_the_api_page_describes_every_exception() -> None:
    """Part 7, table: each class has its place on the API page."""
    described = set(re.findall(r"^\.\. autoexception:: (\w+)$", _page("api.md"), re.MULTILINE))
    public = {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and issubclass(value, BaseException) and not name.startswith("_")
    }
    assert described == public


def test_the_semantics_page_has_a_row_for_every_setting() -> None:
    """Part 2, Runtime: settings from the environment or from the constructor."""
    rows = re.findall(r"^\| `GUARD_(\w+)` \|", _page("semantics.md"), re.MULTILINE)
    assert sorted(map(str.lower, rows)) == sorted(field.name for field in Settings.__attrs_attrs__)


def test_every_code_that_the_semantics_page_links_to_exists() -> None:
    """Part 7: the codes."""
    linked = set(re.findall(r"\(#(gd-\w+)\)", _page("semantics.md")))
    anchors = set(re.findall(r"^\((gd-\w+)\)=$", _page("errors.md"), re.MULTILINE))
    assert linked
    assert linked <= anchors
