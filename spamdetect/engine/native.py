"""The compiled inner loops, `spamdetect.engine.speedups`, where they were built and are wanted.

Each of its functions has a twin in Python with numpy, which says what it computes and does the
work where nothing was compiled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Final

VERSION: Final = 4
"""Of what the compiled functions take and give, as in `speedups.c`."""


def wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the compiled parts may be used: unless ``SPAMDETECT_SPEEDUPS`` is 0.

    Args:
        environ: Environment to read instead of the process's own.
    """
    env = os.environ if environ is None else environ
    return env.get("SPAMDETECT_SPEEDUPS", "").strip() != "0"


def _load() -> ModuleType | None:
    if not wanted():
        return None
    try:
        from spamdetect.engine import speedups
    except ImportError:
        return None
    # An editable installation may hold a module that was compiled from older sources.
    return speedups if getattr(speedups, "VERSION", None) == VERSION else None


compiled = _load()
"""The module, or None where Python does the work."""
