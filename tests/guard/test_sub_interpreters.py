"""Guard where compiled modules are not loaded: a sub-interpreter with its own lock."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

_USES = (
    "guard.init()", "guard.protect(print)", "guard.track_llm(1, 1, model='m')", "guard.hooks",
)  # fmt: skip


@pytest.mark.skipif(sys.version_info < (3, 13), reason="these interpreters share what is loaded")
@pytest.mark.parametrize("use", _USES)
def test_guard_refuses_in_one_sentence_and_leaves_nothing(use: str) -> None:
    interpreters: Any = importlib.import_module("_interpreters")
    before = len(interpreters.list_all())
    for _ in range(3):
        made = interpreters.create()
        for _ in range(2):
            failed = interpreters.exec(made, f"import guard\n{use}")
            assert failed.type.__name__ == "GuardConfigError"
            assert "call it in the main interpreter" in failed.msg
        interpreters.destroy(made)
    assert len(interpreters.list_all()) == before
