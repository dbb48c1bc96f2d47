"""Every Python example compiles, those marked ``run`` run, and docstrings' examples hold."""

from __future__ import annotations

import ast
import contextlib
import contextvars
import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

import guard
import spamdetect
from guard.gateway.embedded import run_gateway
from spamdetect.testing import run_service
from tests.support.programs import environment
from tests.support.runs import local_directory

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?P<run><!-- run: python -->\s*)?^```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE
)


@attrs.frozen
class Example:
    page: str
    line: int
    code: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def examples() -> list[Example]:
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if "_build" in page.parts:
            continue
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            name = page.relative_to(ROOT).as_posix()
            found.append(Example(name, line, match["code"], match["run"] is not None))
    return found


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, str]]:
    """A gateway and a spam service, as the settings of a program that uses them."""
    with run_gateway() as gateway, run_service() as service:
        yield {
            "GUARD_API_KEY": gateway.admin.create_key(),
            "GUARD_API_URL": gateway.base_url,
            "SPAMDETECT_BASE_URL": service.base_url,
            "SPAMDETECT_API_KEY": service.api_key,
        }


def test_there_are_examples() -> None:
    assert sum(example.runs for example in examples()) >= 4


@pytest.mark.parametrize("example", examples(), ids=str)
def test_example_compiles(example: Example) -> None:
    compile(example.code, str(example), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("example", [each for each in examples() if each.runs], ids=str)
def test_example_runs(example: Example, services: dict[str, str], tmp_path: Path) -> None:
    with local_directory(tmp_path / "local") as local:
        done = subprocess.run(
            [sys.executable, "-c", example.code],
            env=environment({**services, "GUARD_LOCAL_DIR": str(local)}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def modules() -> Iterator[tuple[str, str]]:
    """Each module's name and text, read without importing it."""
    for package in (guard, spamdetect):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            parts = [root.name, *path.relative_to(root).with_suffix("").parts]
            if parts[-1] != "__main__":
                yield ".".join(parts).removesuffix(".__init__"), path.read_text("utf-8")


def test_every_module_can_be_imported() -> None:
    for name, _ in modules():
        with contextlib.suppress(ModuleNotFoundError):  # an extra that is not installed
            importlib.import_module(name)


@pytest.mark.parametrize("name", [name for name, text in modules() if ">>>" in text])
def test_docstring_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUARD_API_KEY", "of-no-gateway-000000000000")
    monkeypatch.setenv("GUARD_API_URL", "http://127.0.0.1:9")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as exc:
        pytest.skip(f"needs {exc.name}")
    # In a context of its own: an example may set what would last for the tests after it.
    try:
        assert contextvars.copy_context().run(doctest.testmod, module).failed == 0
    finally:
        guard.shutdown(flush=False)
