"""The examples of the documentation run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spamdetect.testing import RunningService

_DOCS = Path(__file__).parents[2] / "docs" / "spamdetect"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _examples() -> list[tuple[str, str]]:
    pages = ["clients.md", "recipes.md", "service.md", "cli.md", "index.md"]
    found = []
    for page in pages:
        for number, code in enumerate(_BLOCK.findall((_DOCS / page).read_text("utf-8"))):
            found.append((f"{page} {number + 1}", code))
    return found


@pytest.mark.parametrize(("name", "code"), _examples(), ids=[name for name, _ in _examples()])
def test_an_example_runs(
    name: str, code: str, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compile(code, name, "exec")
    if "guard.init" in code:
        pytest.skip("needs a running gateway; only compiled here")
    if "fastapi" in code:
        pytest.importorskip("fastapi")
    monkeypatch.setenv("SPAMDETECT_BASE_URL", service.base_url)
    monkeypatch.setenv("SPAMDETECT_API_KEY", service.api_key)
    exec(compiled, {"__name__": "example"})


def test_there_are_examples() -> None:
    assert len(_examples()) >= 8
