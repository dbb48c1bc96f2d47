"""The interface between the shared SQL and an engine: connections to write and to read on.

The queries of this package are written once, in the SQL that both engines understand. Where the two
differ, the text is SQLite's, and :mod:`guard.gateway.storage.postgres.dialect` translates it.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from guard.gateway.unit.record import RowChange

T = TypeVar("T")


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Rows that were changed."""

    def fetchone(self) -> Any:
        """Return the next row, or ``None``."""

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""

    def __iter__(self) -> Iterator[Any]: ...


class WritingConnection(Protocol):
    """A connection to write on, inside a transaction."""

    def execute(self, sql: str, arguments: Sequence[Any] = (), /) -> Cursor:
        """Run a statement."""

    def change(self, change: RowChange, rows: Iterable[tuple[Any, ...]], /) -> Cursor:
        """Run a change for each of many rows.

        No two rows may have the same key: PostgreSQL gets all of them in one statement, which must
        not change a row twice.
        """


class Connection(Protocol):
    """A read-only connection, used from one thread at a time."""

    def rows(self, sql: str, *arguments: Any) -> list[Any]:
        """Return all rows of a query."""

    def stream(self, sql: str) -> Iterable[Any]:
        """Return the rows of a query one by one, inside a snapshot."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Let all queries of a block see the same state."""


class ReadingStore(abc.ABC):
    """A store that runs queries beside its writer."""

    clock_ms: Callable[[], int]

    @abc.abstractmethod
    def look_up(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Run a short query that requests and control channels wait for."""

    @abc.abstractmethod
    def report(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Run a query that may be slow."""


def equals(**values: Any) -> tuple[str, list[Any]]:
    """Return a condition on columns and its arguments; columns that are ``None`` are left out.

    >>> equals(organisation_id="o", workflow_id=None)
    ('organisation_id = ?', ['o'])
    """
    asked = {name: value for name, value in values.items() if value is not None}
    return " AND ".join(f"{name} = ?" for name in asked), list(asked.values())
