"""The page of the commands has each of them, and pages name only commands that exist."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest
from click.testing import CliRunner

from guard.cli import cli as guard
from spamdetect.cli.main import cli as spamdetect
from tests.support.named_commands import flaw_of
from tests.support.pages import pages
from tests.support.programs import ROOT

OPTION: Final = re.compile(r"^  (?:-\w, )?(--[\w-]+)", re.MULTILINE)


@pytest.fixture(scope="module")
def page() -> str:
    path = ROOT / "docs" / "site_of_commands.py"
    spec = importlib.util.spec_from_file_location("site_of_commands", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.text())


def _all(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            if not below.hidden:
                yield from _all(f"{name} {each}", below)


@pytest.mark.generator("commands of the reference with all that their --help says")
def test_each_command_is_there_with_each_option(
    page: str, count_cases: Callable[[int], None]
) -> None:
    """What ``--help`` prints is what counts."""
    sections = {
        part.partition("\n")[0]: part for part in re.split(r"^##+ ", page, flags=re.MULTILINE)
    }
    shared = set(
        OPTION.findall(CliRunner().invoke(guard, ["gateway", "workflows", "--help"]).output)
    )
    done = 0
    for name, command in [*_all("guard", guard), *_all("spamdetect", spamdetect)]:
        found = sections.get(name)
        if found is None:  # below a short form, whose section says which it is
            assert any(
                f"Short for `guard gateway {short}`" in sections[f"guard {short}"]
                for short in name.split()[1:2]
            ), name
            continue
        if "Short for" in found:
            continue
        text = CliRunner().invoke(command, ["--help"], prog_name=name).output
        for option in set(OPTION.findall(text)) - {"--help"}:
            assert f"{option}" in found or (
                option in shared and "And those of a gateway" in found
            ), f"{name} {option}"
        done += 1
    assert "\b" not in page
    assert done > 80
    count_cases(done)


BLOCK: Final = re.compile(r"^ *(```+|~~~+).*?^ *\1", re.DOTALL | re.MULTILINE)
INLINE: Final = re.compile(r"`(guard (?!run:)[^`]+)`")
NOT_WHOLE: Final = re.compile(r"[|…\[\]]|\.\.\.|<")
"""Signs of an abbreviation: `list | set`, `-- ...`."""

LEFT_OUT: Final = re.compile(r"^Missing|^Usage|requires an argument|File .* does not exist")
"""What a command in a line may still lack: what the reader gives it."""


def named() -> list[tuple[str, str]]:
    """Return the commands in the lines of each page, without blocks."""
    found = []
    for name in pages():
        if "/decisions/" in name:  # they say what was so on their day
            continue
        text = BLOCK.sub("", (ROOT / name).read_text())
        for each in INLINE.findall(text):
            command = " ".join(each.split())
            if not NOT_WHOLE.search(command):
                found.append((name, command))
    return found


@pytest.mark.generator("commands in the lines of pages that exist")
def test_each_command_that_a_page_names_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count_cases: Callable[[int], None]
) -> None:
    """With its options and their values; what it still needs may be left out."""
    monkeypatch.chdir(tmp_path)
    for file_of_the_readers in ("FILE", "BACKUP", "costs.csv", "facts.toml"):
        Path(file_of_the_readers).touch()
    found = named()
    flaws = {f"{page}: {command}": flaw_of(command) for page, command in found}
    flaws = {at: flaw for at, flaw in flaws.items() if flaw and not LEFT_OUT.search(flaw)}
    assert not flaws
    assert len(found) > 100
    count_cases(len(found))


def test_a_command_that_does_not_exist_is_seen() -> None:
    assert flaw_of("guard gateway budgets set --limits 5") is not None
    assert flaw_of("guard gateway budget list") is not None
