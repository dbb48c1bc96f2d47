"""The files by which the local gateway finds runs whose supervisor has died.

``guard run`` keeps a file for each run, locked while it supervises; the kernel releases the lock
however it ends, and the program that it runs does not inherit it. The gateway removes the key,
budget and policy that an unlocked file names.

The life of a file: created and locked, empty; the run's key is made and written into it; removed
once the key is removed, and then unlocked. A supervisor that dies in between leaves an unlocked
file. If it dies after the key was made and before the key is written, the key stays at the gateway.

Used by both sides, so it imports nothing of the SDK.
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
"""How much of a file is read; a line has three names, each much shorter."""


def policy_of(key_id: str) -> str:
    """Return the name of the policy of a run's key."""
    return f"run-{key_id}"


class RunMark:
    """The file of one run, held by its supervisor.

    Args:
        files: the files of the local gateway.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, files: Files) -> None:
        folder = files.directory / _FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        # A file exists for a moment before it is locked. If the gateway looks just then, it takes
        # the file for one that was left behind, locks it, and removes it. Then the next name.
        while True:
            self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
            held = try_lock(self._path)
            if held is not None:
                break
        # Descriptor with the lock, not inherited by child processes.
        self._held = held

    def name(self, key_id: str, organisation_id: str, workflow: str) -> None:
        """Write the run's key and workflow into the file; once, as soon as the key is made."""
        os.write(self._held, json.dumps([key_id, organisation_id, workflow]).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Unlock the file. Without :meth:`done` before, the gateway removes what it names."""
        os.close(self._held)

    def done(self) -> None:
        """Remove the file: its key, budget and policy are removed."""
        self._path.unlink(missing_ok=True)


@attrs.frozen
class Abandoned:
    """A run whose supervisor is gone.

    Attributes:
        path: the path of its file.
        key_id, organisation_id: those of its key; None when it died before it had one.
    """

    path: Path
    key_id: str | None = None
    organisation_id: str | None = None


def abandoned(files: Files) -> Iterator[Abandoned]:
    """Yield the runs whose supervisors are gone; each is locked until the next is asked for."""
    try:
        found = [Path(entry.path) for entry in os.scandir(files.directory / _FOLDER)]
    except FileNotFoundError:
        return
    for path in found:
        held = try_lock(path)
        if held is None:  # it lives, or `living` looks at it right now
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
        directory: the directory of the local gateway; it need not exist.
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
    """Return whether another process has locked an open file.

    Unlike ``try_lock`` it takes a descriptor, so it never creates a file.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False  # unlocked when it is closed
