"""Losses that no gateway knows of yet, each in the name of an empty file.

A full disk has no room for an event, but nearly always for a name.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

from guard.core import wire

_PREFIX: Final = "events-1.lost-"
_NAME: Final = re.compile(rf"{_PREFIX}([0-9a-f]{{32}})-(\d{{1,15}})-([0-9a-f-]{{36}})")


def write(directory: Path, owner: bytes, event_id: str, events: int) -> None:
    """Note a loss.

    Args:
        directory: the spool's.
        owner: the owner of the lost events, as in the spool.
        event_id: the id of the report, which makes it count once.
        events: how many were lost.

    Raises:
        OSError: the directory cannot be written to.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    name = f"{_PREFIX}{owner.hex()}-{events}-{event_id}"
    os.close(os.open(directory / name, flags, 0o600))


def found(directory: Path, owner: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the id and the encoded report of each loss that was noted for an owner."""
    for path in sorted(directory.glob(f"{_PREFIX}{owner.hex()}-*")):
        name = _NAME.fullmatch(path.name)
        if name is not None:
            at_ms = UUID(name[3]).int >> 80  # its first 48 bits
            data = cast("dict[str, Any]", {"events": int(name[2])})
            yield name[3], wire.encode(wire.Event(name[3], "sdk.loss", at_ms, data=data))


def remove(directory: Path, event_id: str) -> None:
    """Remove the note of a loss that was reported."""
    for path in directory.glob(f"{_PREFIX}*-{event_id}"):
        with contextlib.suppress(OSError):  # it is reported again, and counted once
            path.unlink()
