"""A connection to read a SQLite file on."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


class SqliteReadConnection:
    """Implements :class:`guard.gateway.storage.sql.read_pool.Pooled`."""

    def __init__(self, path: Path) -> None:
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
        """Have all queries of a block see the same state."""
        self.sqlite.execute("BEGIN")
        try:
            yield
        finally:
            self.sqlite.execute("COMMIT")

    def checkpoint(self) -> int:
        """Copy what can be copied of the write-ahead log; return the bytes of it in use."""
        _, log_pages, _ = self.sqlite.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        (page_bytes,) = self.sqlite.execute("PRAGMA page_size").fetchone()
        return int(log_pages) * int(page_bytes)

    def is_broken(self) -> bool:
        """Tell whether the connection is lost: the one to a file never is."""
        return False

    def answers(self) -> bool:
        """Try the connection: a file answers."""
        return True

    def expect(self, within_s: float) -> None:
        """Do nothing: a file answers."""

    def rest(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close the connection."""
        self.sqlite.close()
