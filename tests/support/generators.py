"""The scripts that write pages of the documentation, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).parents[2] / "docs"


def generator(name: str) -> Any:
    """Load ``docs/generate_NAME.py``."""
    spec = importlib.util.spec_from_file_location(f"generate_{name}", _DOCS / f"generate_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
