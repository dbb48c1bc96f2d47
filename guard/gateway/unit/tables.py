"""The base of all parts of a unit of work over SQL: the connection, the clock, the undo log.

A command can fail in the middle, and must leave no trace for the rest of its group. Rows are undone
by a savepoint of the database, cached copies by the undo log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any, Final, TypeVar

from guard.gateway.unit.connection import Cursor, WritingConnection
from guard.gateway.unit.decision_counts import Tally
from guard.gateway.unit.record import RowChange, Table

K = TypeVar("K")
V = TypeVar("V")
_SAVE_FACT: Final = Table("facts").upsert()
CACHE_MAX: Final = 50_000
"""Entries of one cache; a full cache is emptied, since finding the oldest entry costs more."""


class UnitBase:
    """Rows in the database and their cached copies, undone together.

    :meth:`write` writes rows at once, behind a savepoint that the first write of a command opens.
    Cached copies are restored from the undo log, newest change first.
    """

    def __init__(self, connection: WritingConnection) -> None:
        self.connection = connection
        # The time of the unit, read once when it begins, so that all its rows agree.
        self.now_ms = 0
        # Calls that restore the caches, oldest change first: a function, then its arguments. Every
        # change of a cached object appends its entry before or with the change. A commit clears it.
        self.undo_log: list[tuple[Any, ...]] = []
        # How long the log was when the present command began.
        self._undo_from = 0
        # Whether the savepoint of the command is open in the database, because it has written a
        # row. Most commands write none before the group ends, and a savepoint for each would cost
        # two statements.
        self._has_savepoint = False
        # Rows that were changed since the store was opened, undone ones included; retention
        # measures its steps by the difference.
        self.changed_rows = 0
        # Decisions by kind, for metrics.
        self.tally = Tally(self.on_undo)

    def write(self, statement: str | RowChange, arguments: tuple[Any, ...] = ()) -> Cursor:
        """Run a statement that :meth:`undo` can undo."""
        if not self._has_savepoint:
            self._open_savepoint()
        sql = statement if isinstance(statement, str) else statement.one
        cursor = self.connection.execute(sql, arguments)
        # The drivers return -1 for a statement that changes no rows.
        self.changed_rows += max(0, cursor.rowcount)
        return cursor

    def insert_numbered(self, column: str, change: RowChange, row: tuple[Any, ...]) -> int:
        """Insert a row whose number the database chooses, and return the number."""
        raise NotImplementedError

    def write_events(self) -> None:
        """Write the events that are kept back until the unit ends, before a query that reads them.

        Default: events are written at once, so there is nothing to do.
        """

    def save_fact(self, name: str, value: str) -> None:
        """Write one of the store's own values."""
        self.write(_SAVE_FACT, (name, value))

    def write_many(self, change: RowChange, rows: Iterable[tuple[Any, ...]]) -> None:
        """Change each of many rows; :meth:`undo` can undo it."""
        if not self._has_savepoint:
            self._open_savepoint()
        self.changed_rows += max(0, self.connection.change(change, rows).rowcount)

    def _open_savepoint(self) -> None:
        self.connection.execute("SAVEPOINT command")
        self._has_savepoint = True

    def row(self, sql: str, *arguments: Any) -> Any:
        """Return the first row of a query, or ``None``."""
        return self.connection.execute(sql, arguments).fetchone()

    def rows(self, sql: str, *arguments: Any) -> list[Any]:
        """Return all rows of a query."""
        return self.connection.execute(sql, arguments).fetchall()

    def on_undo(self, restore: Callable[..., object], *arguments: Any) -> None:
        """Call ``restore`` if the command, or the whole unit, is undone."""
        self.undo_log.append((restore, *arguments))

    def cache_set(self, cache: MutableMapping[K, V], key: K, value: V) -> None:
        """Set an entry of a cache, which an undo restores."""
        if key in cache:
            self.undo_log.append((cache.__setitem__, key, cache[key]))
        else:
            self.undo_log.append((cache.pop, key, None))
        cache[key] = value

    def savepoint(self) -> None:
        """Begin a command: :meth:`undo` returns to here."""
        # The command before has succeeded: its rows join the transaction.
        if self._has_savepoint:
            self.connection.execute("RELEASE command")
            self._has_savepoint = False
        self._undo_from = len(self.undo_log)

    def undo(self) -> None:
        """Undo everything since the last savepoint, and nothing else.

        Raises:
            Exception: the store has lost the whole transaction.
        """
        # The caches first: if the database fails below, the whole unit is undone, and the entries
        # that are left in the log are exactly those of the commands before.
        self._restore(self._undo_from)
        if self._has_savepoint:
            # ROLLBACK TO keeps the savepoint open; the next command opens its own.
            self.connection.execute("ROLLBACK TO command")
            self.connection.execute("RELEASE command")
            self._has_savepoint = False

    def _restore(self, length: int) -> None:
        # Newest first: a value that was changed twice ends as it was before both changes.
        log = self.undo_log
        while len(log) > length:
            restore, *arguments = log.pop()
            restore(*arguments)


def restore_list(changed: list[Any], before: list[Any]) -> None:
    """Restore a list's former content; for the undo log."""
    changed[:] = before


def restore_fields(changed: Any, names: Sequence[str], before: Sequence[Any]) -> None:
    """Restore an object's former values; for the undo log."""
    for name, value in zip(names, before, strict=True):
        setattr(changed, name, value)
