"""What belongs to a run at the local gateway, and whether its supervisor still lives.

``guard run`` keeps a file for each run, locked while it supervises; the kernel releases the lock
however it ends, and the program that it runs does not inherit it. The gateway removes the key,
budget and policy that an unlocked file names.

Used by both sides, so it knows nothing of guard.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import attrs

from guard.local_gateway import Files, try_lock

_FOLDER: Final = "runs"
_BYTES_MAX: Final = 4096


def policy_of(key_id: str) -> str:
    """Return the name of the policy of a run's key."""
    return f"run-{key_id}"


class RunMark:
    """The file of one run, held by its supervisor.

    Args:
        files: of the local gateway.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, files: Files) -> None:
        folder = files.directory / _FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        # The lock is what counts: the gateway takes an unlocked file for one that was left behind.
        while True:
            self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
            held = try_lock(self._path)
            if held is not None:  # else the gateway looks at it, and removes it
                break
        self._held = held

    def name(self, key_id: str, organisation_id: str, workflow: str) -> None:
        """Say which key is the run's, and which workflow."""
        os.write(self._held, json.dumps([key_id, organisation_id, workflow]).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it, once what it names is removed; else leave that to the gateway."""
        os.close(self._held)

    def done(self) -> None:
        """What it names is removed."""
        self._path.unlink(missing_ok=True)


@attrs.frozen
class Abandoned:
    """A run whose supervisor is gone.

    Attributes:
        path: of its file.
        key_id, organisation_id: of its key; None when it had not got one.
    """

    path: Path
    key_id: str | None = None
    organisation_id: str | None = None


def abandoned(files: Files) -> Iterator[Abandoned]:
    """Yield the runs whose supervisors are gone, each locked for the caller meanwhile."""
    try:
        found = [Path(entry.path) for entry in os.scandir(files.directory / _FOLDER)]
    except FileNotFoundError:
        return
    for path in found:
        held = try_lock(path)
        if held is None:
            continue
        try:
            yield _read(path, held)
        finally:
            os.close(held)


def _read(path: Path, descriptor: int) -> Abandoned:
    with contextlib.suppress(ValueError):
        match json.loads(os.read(descriptor, _BYTES_MAX)):
            case [str(key_id), str(organisation_id), *_]:
                return Abandoned(path, key_id, organisation_id)
    return Abandoned(path)


def living(directory: Path) -> dict[str, str]:
    """Return the workflow of each run whose supervisor lives, by the name of the run's file.

    Args:
        directory: of the local gateway; it need not exist.
    """
    found = {}
    with contextlib.suppress(OSError):
        for path in (directory / _FOLDER).iterdir():
            with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
                match json.load(file):
                    case [str(), str(), str(workflow)] if _is_held(file.fileno()):
                        found[path.name] = workflow
    return found


def _is_held(descriptor: int) -> bool:
    """Tell whether another process has locked an open file; the file is never created."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False  # unlocked when it is closed
