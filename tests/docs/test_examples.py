"""Every module can be imported, and the examples in docstrings hold."""

from __future__ import annotations

import contextlib
import contextvars
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import guard
import spamdetect


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
