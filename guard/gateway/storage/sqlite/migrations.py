"""Migrations of a SQLite file, without a gateway."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from guard.gateway.domain.errors import StoreError
from guard.gateway.storage.migrations import SchemaStatus, Step
from guard.gateway.storage.sqlite import file_lock, schema


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
            return _status(reading)

    def up(self, *, dry_run: bool) -> Sequence[Step]:
        """Apply the pending steps, one transaction each; all in one when dry."""
        with _failures(self._path), file_lock.held(self._path):
            with contextlib.closing(open_to_read(self._path)) as reading:
                pending = _status(reading).pending
            with contextlib.closing(schema.connect(str(self._path), durable=True)) as connection:
                if dry_run:
                    schema.rehearse(connection)
                else:
                    schema.migrate(connection)
        return pending


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a file for reading, wherever it lies.

    Raises:
        FileNotFoundError: there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no database at {path}")
    # Without a log beside it nothing changes it, and it may lie where nothing can be written.
    fixed = "" if Path(f"{path}-wal").exists() else "&immutable=1"
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro{fixed}", uri=True)


def _status(connection: sqlite3.Connection) -> SchemaStatus:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    newest = len(schema.MIGRATIONS)
    if version > newest:
        raise RuntimeError(f"the database has schema {version}, newer than this gateway knows")
    if tables and not version:
        raise RuntimeError("this is not a gateway's database")
    pending = [Step(number) for number in range(version + 1, newest + 1)]
    return SchemaStatus(version, newest, pending)


@contextlib.contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, sqlite3.Error) as exc:
        raise StoreError(f"{path}: {exc}") from exc
