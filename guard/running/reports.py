"""What the processes of a run report to ``guard run``: files in one private directory."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final

from guard.local_gateway import open_private, read_json, try_lock

RUN_DIR_VARIABLE: Final = "GUARD_RUN_DIR"
REFUSED_CODE: Final = 77
"""Exit code of a run that guard has ended (``EX_NOPERM``)."""

_REFUSED: Final = "refused.json"
_PROCESS: Final = "process-"


def announce(directory: Path) -> int | None:
    """Say that this process is guarded, until its end; returns the lock that says so."""
    return try_lock(directory / f"{_PROCESS}{os.getpid()}")


def refuse(directory: Path, code: str, message: str, reason: str) -> None:
    """Report why the run has to end; the first reason stays."""
    fresh = directory / f"{_REFUSED}.{os.getpid()}"
    report = {"error_code": code, "message": message, "reason": reason[:1000]}
    with contextlib.suppress(OSError):  # the run is over, and its directory gone
        with open(open_private(fresh, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
            json.dump(report, file)
        # A link is made whole or not at all, and never over an earlier one.
        with contextlib.suppress(FileExistsError):
            os.link(fresh, directory / _REFUSED)
        fresh.unlink()


def refusal(directory: Path) -> dict[str, Any] | None:
    """Return why the run has to end, if it has to."""
    return read_json(directory / _REFUSED) or None


def guarded(directory: Path) -> tuple[int, list[int]]:
    """Return how many processes were guarded, and those of them that live."""
    living: list[int] = []
    paths = list(directory.glob(f"{_PROCESS}*"))
    for path in paths:
        lock = try_lock(path)
        if lock is None:  # its process holds it until it ends
            living.append(int(path.name.removeprefix(_PROCESS)))
        else:
            os.close(lock)
    return len(paths), living
