"""The environment of the programs that tests start."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import AnyStr

import psutil

from tests.support.waiting import PATIENT, WAIT_S

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


@contextlib.contextmanager
def killed_at_last(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Kill a program that has not ended when the block has, whatever became of the block."""
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what nobody reads any more
                    pipe.close()
