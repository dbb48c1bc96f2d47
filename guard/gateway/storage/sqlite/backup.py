"""A consistent copy of a database that may be in use."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path


def backup(source: Path, target: Path) -> int:
    """Copy a database with SQLite's online backup and check the copy.

    The copy is a consistent snapshot; the gateway keeps running. It contains the same secrets as
    the original and is created with mode 0600.

    A backup that is killed leaves its unfinished copy, ``TARGET.*.partial``, beside the target. It
    may be deleted, and is in no later backup's way.

    Returns:
        The size of the copy in bytes.

    Raises:
        FileExistsError: the target exists.
        FileNotFoundError: the source does not exist.
        sqlite3.Error: the source cannot be read, or the copy is damaged.
    """
    if not source.is_file():
        raise FileNotFoundError(f"no database at {source}")
    if target.exists():
        raise FileExistsError(f"{target} is there already")
    # A name of its own: one that another backup left or is writing to belongs to that backup.
    descriptor, name = tempfile.mkstemp(".partial", target.name + ".", target.parent)  # mode 0600
    os.close(descriptor)
    partial = Path(name)
    try:
        reading = sqlite3.connect(source)
        writing = sqlite3.connect(partial)
        try:
            # In one step: a copy in several steps begins anew with each commit of the gateway.
            reading.backup(writing)
            (verdict,) = writing.execute("PRAGMA integrity_check").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError("the copy is damaged")
        finally:
            writing.close()
            reading.close()
        os.link(partial, target)  # unlike a rename, never replaces a file created meanwhile
    finally:
        partial.unlink()
    return target.stat().st_size
