"""Connections to a SQLite file: to write, and to read."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from guard.gateway.unit.record import RowChange


class SqliteWriteConnection(sqlite3.Connection):
    """Implements :class:`guard.gateway.unit.connection.WritingConnection`."""

    def change(self, change: RowChange, rows: Iterable[tuple[Any, ...]], /) -> sqlite3.Cursor:
        """Run a change for each of many rows."""
        return self.executemany(change.one, rows)


class SqliteReadConnection:
    """Implements :class:`guard.gateway.storage.sql.read_pool.Pooled`."""

    def __init__(self, path: Path) -> None:
        # The pool gives it to one thread at a time, not always to the same one.
        self.sqlite = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
        self.sqlite.execute("PRAGMA query_only = ON")

    def rows(self, sql: str, *arguments: Any) -> list[Any]:
        """Return all rows of a query."""
        return self.sqlite.execute(sql, arguments).fetchall()

    def stream(self, sql: str) -> Iterable[Any]:
        """Return the rows of a query one by one."""
        return self.sqlite.execute(sql)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all queries of a block see the same state."""
        self.sqlite.execute("BEGIN")
        try:
            yield
        finally:
            self.sqlite.execute("COMMIT")

    def checkpoint(self) -> int:
        """Copy as much of the write-ahead log as no reader needs; return the bytes of it in use."""
        _, log_pages, _ = self.sqlite.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        (page_bytes,) = self.sqlite.execute("PRAGMA page_size").fetchone()
        return int(log_pages) * int(page_bytes)

    def is_broken(self) -> bool:
        """Return ``False``: the connection to a file is never lost."""
        return False

    def answers(self) -> bool:
        """Return ``True``: a file answers."""
        return True

    def expect(self, within_s: float) -> None:
        """Do nothing: a file answers."""

    def rest(self) -> None:
        """Do nothing."""

    def interrupt(self) -> None:
        """Let the statement that another thread runs fail."""
        self.sqlite.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self.sqlite.close()
