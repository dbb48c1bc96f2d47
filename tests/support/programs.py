"""The environment of the programs that tests start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment without settings of guard and spamdetect, and with ``extra``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GUARD_", "SPAMDETECT_"))
    }
    return {**kept, "PYTHONPATH": str(ROOT), **(extra or {})}
