"""Migrations of a SQLite file, with and without a gateway."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from guard.gateway.domain.errors import StoreError
from guard.gateway.storage.migrations import MigrationStep, SchemaStatus
from guard.gateway.storage.sqlite import file_lock, joined_keys, release_0_7, schema
from guard.gateway.unit.rows import wall_clock_ms

logger = logging.getLogger("guard.gateway.storage")


class SqliteMigrator:
    """Implements :class:`guard.gateway.storage.migrations.Migrator` on one file.

    Args:
        path: of the file, which must exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def status(self) -> SchemaStatus:
        """Return the versions; a gateway may be running."""
        with _failures(self._path), contextlib.closing(open_to_read(self._path)) as reading:
            version = schema.read_version(reading)
        newest = schema.newest()
        names = {schema.BASELINE: "from release 0.7" if version else ""}
        first = max(version + 1, schema.BASELINE)
        pending = [
            MigrationStep(number, names.get(number, "")) for number in range(first, newest + 1)
        ]
        return SchemaStatus(version, newest, pending)

    def preview(self, *, carry: bool = False) -> list[str]:
        """Return what a conversion of release 0.7 joins; a gateway may be running."""
        with _failures(self._path), contextlib.closing(open_to_read(self._path)) as reading:
            if schema.read_version(reading) != schema.RELEASE_0_7:
                return []
            now_ms = wall_clock_ms()
            return joined_keys.Joined.of(reading, now_ms, carry=carry, schema="main").lines

    def up(self, *, dry_run: bool, carry: bool = False) -> Sequence[MigrationStep]:
        """Apply the pending steps; to a copy, when dry."""
        with _failures(self._path), file_lock.held(self._path):
            pending = self.status().pending
            if dry_run:
                with partial(self._path, "rehearsal") as copy:
                    copy_up_to_date(self._path, copy, carry=carry)
            else:
                convert_0_7(self._path, carry=carry)
                with contextlib.closing(schema.connect(str(self._path), durable=True)) as writing:
                    schema.migrate(writing)
        return pending


def convert_0_7(path: Path, *, carry: bool = False, now_ms: int | None = None) -> Path | None:
    """Replace a file of release 0.7 by one of today's, and keep it under another name.

    The new file is complete before it gets its name, in one rename: if the process dies, there is
    a file that can be opened. The caller holds the lock of the file.

    Args:
        path: of the file.
        carry, now_ms: as for :meth:`joined_keys.Joined.of`.

    Returns:
        Where the old file is; ``None`` if it was not one of 0.7.
    """
    with contextlib.closing(open_to_read(path)) as reading:
        if schema.read_version(reading) != schema.RELEASE_0_7:
            return None
    with partial(path, "converting") as converted:
        for line in copy_up_to_date(path, converted, carry=carry, now_ms=now_ms):
            logger.warning("converting %s: %s", path, line)
        return put_in_place(converted, path, "0.7")


def copy_up_to_date(
    source: Path, target: Path, *, carry: bool = False, now_ms: int | None = None
) -> list[str]:
    """Copy the contents of a file into an empty one, with the newest schema, and close both.

    Returns:
        What a conversion of release 0.7 has joined.

    Raises:
        RuntimeError: the source is damaged, or of an unknown version.
        sqlite3.Error: the source cannot be read, or the disk is full.
    """
    with contextlib.closing(open_to_read(source)) as reading:
        version = schema.read_version(reading)
        found = reading.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise RuntimeError(f"the database is damaged: {found}")
        if version != schema.RELEASE_0_7:
            with contextlib.closing(sqlite3.connect(target)) as writing:
                reading.backup(writing)
    with contextlib.closing(schema.connect(str(target), durable=True)) as writing:
        schema.migrate(writing)
        if version == schema.RELEASE_0_7:
            at_ms = wall_clock_ms() if now_ms is None else now_ms
            return release_0_7.convert(_read_only(source), writing, at_ms, carry=carry).lines
    return []


@contextlib.contextmanager
def partial(target: Path, ending: str) -> Iterator[Path]:
    """Make an empty file beside another one; it is removed in the end, unless it was renamed.

    The caller holds the lock of the target, so a file of that name was left by a killed process.
    """
    made = target.with_name(f"{target.name}.{ending}")
    _remove(made)
    os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        yield made
    finally:
        _remove(made)


def _remove(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)


def put_in_place(made: Path, target: Path, label: str) -> Path | None:
    """Rename a complete file to the name that a gateway opens.

    Returns:
        The new name of the file that had that name, if there was one.
    """
    kept = _set_aside(target, label) if target.exists() else None
    # Before the rename: after a power loss the new name must not lead to an incomplete file.
    _sync(made)
    os.replace(made, target)
    _sync(target.parent)
    return kept


def _set_aside(target: Path, label: str) -> Path:
    """Keep the old database under another name, its log within or beside it."""
    number = 1
    while (kept := target.with_name(f"{target.name}.{label}-{number}")).exists():
        number += 1
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(target)) as old:
        old.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    # A log that is left belongs to a damaged file. SQLite would apply it to the new one.
    log = Path(f"{target}-wal")
    if log.exists():
        os.replace(log, f"{kept}-wal")
    Path(f"{target}-shm").unlink(missing_ok=True)
    os.link(target, kept)
    return kept


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a file for reading, wherever it lies.

    Raises:
        FileNotFoundError: there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no database at {path}")
    return sqlite3.connect(_read_only(path), uri=True)


def _read_only(path: Path) -> str:
    # Without a log beside it no process changes the file, and it may be in a read-only directory,
    # where SQLite cannot make its own files.
    fixed = "" if Path(f"{path}-wal").exists() else "&immutable=1"
    return f"file:{quote(str(path.absolute()))}?mode=ro{fixed}"


@contextlib.contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, sqlite3.Error) as exc:
        raise StoreError(f"{path}: {exc}") from exc
