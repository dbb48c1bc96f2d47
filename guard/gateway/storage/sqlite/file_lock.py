"""The lock that keeps a database file to one process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def take(path: Path) -> int:
    """Lock a database; return the lock, to be closed at the end.

    Raises:
        RuntimeError: a gateway has it.
    """
    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise RuntimeError("another gateway is using this database") from None
    return lock


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep the lock of a database meanwhile.

    Raises:
        RuntimeError: a gateway has it.
    """
    lock = take(path)
    try:
        yield
    finally:
        os.close(lock)
