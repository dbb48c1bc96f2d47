"""The environment of the programs that tests start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.support.waiting import PATIENT

ROOT = Path(__file__).parents[2]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment without settings of guard and spamdetect, patient, with ``extra``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GUARD_", "SPAMDETECT_"))
    }
    return {**kept, **PATIENT, "PYTHONPATH": str(ROOT), **(extra or {})}


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended, though nobody may have asked how."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
