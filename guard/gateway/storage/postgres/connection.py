"""Connections to PostgreSQL that run the shared SQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import conninfo
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
from psycopg.types.string import StrDumperUnknown as StrDumper

from guard.gateway.storage.postgres.spelling import Bulk, Spelled, bulk, spelled
from guard.gateway.storage.sql.connection import Cursor

CLOCK: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
"""The database's time, in Unix milliseconds."""

CONNECT_TIMEOUT_S: Final = 5
STATEMENT_TIMEOUT_MS: Final = 30_000
"""No statement of a writer may take longer."""

LOCK_TIMEOUT_MS: Final = 10_000
IDLE_TIMEOUT_MS: Final = 5000
"""The server ends a transaction whose client is silent for so long, and frees its locks.

Shorter than others wait for a lock, so that a frozen replica fails nobody.
"""

_DEFAULTS: Final = {
    "connect_timeout": str(CONNECT_TIMEOUT_S), "keepalives_idle": "5", "keepalives_interval": "2",
    "keepalives_count": "3", "tcp_user_timeout": "10000",
}  # fmt: skip
_TYPES: Final = (
    "SELECT table_name, column_name, data_type FROM information_schema.columns"
    " WHERE table_schema = current_schema() ORDER BY table_name, ordinal_position"
)


class _BoolDumper(Dumper):
    """Booleans are numbers in the store."""

    oid = psycopg.adapters.types["int8"].oid

    def dump(self, obj: Any) -> Buffer | None:
        return b"1" if obj else b"0"


_NUL: Final = "\ufdd0"
"""Stands for the NUL character, which PostgreSQL does not store; no text has this one."""


class _TextDumper(StrDumper):
    """Text in which NUL is spelled."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\0", _NUL) if "\0" in obj else obj)


class _TextLoader(Loader):
    """Text in which NUL was spelled."""

    def load(self, data: Buffer) -> str:
        text = bytes(data).decode()
        return text.replace(_NUL, "\0") if _NUL in text else text


class _WholeLoader(Loader):
    """Sums of whole numbers are numeric, and whole."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data))


def connect(dsn: str, name: str, *, reading: bool = False) -> psycopg.Connection[Any]:
    """Open a connection on which transactions are begun by hand.

    Args:
        dsn: a connection URI or string of libpq.
        name: shown in ``pg_stat_activity``.
        reading: refuse to write.

    Raises:
        psycopg.Error: the server cannot be reached, or refuses.
    """
    given = conninfo.conninfo_to_dict(dsn)
    missing = {key: value for key, value in _DEFAULTS.items() if key not in given}
    named = conninfo.make_conninfo(dsn, application_name=name, **missing)
    connection = psycopg.connect(named, autocommit=True)
    adapters = connection.adapters
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(bool, _BoolDumper)
    adapters.register_dumper(str, _TextDumper)
    adapters.register_loader("numeric", _WholeLoader)
    adapters.register_loader("text", _TextLoader)
    for setting, value in (
        ("statement_timeout", 0 if reading else STATEMENT_TIMEOUT_MS),
        ("lock_timeout", LOCK_TIMEOUT_MS),
        ("idle_in_transaction_session_timeout", IDLE_TIMEOUT_MS),
        ("default_transaction_read_only", "on" if reading else "off"),
    ):
        connection.execute("SELECT set_config(%s, %s, false)", (setting, str(value)))
    return connection


def _run(cursor: psycopg.Cursor[Any], text: Spelled, arguments: Sequence[Any]) -> None:
    if not arguments:
        cursor.execute(text.plain.encode())
    elif text.is_named:
        cursor.execute(text.text.encode(), {f"a{at}": each for at, each in enumerate(arguments, 1)})
    else:
        cursor.execute(text.text.encode(), arguments)


class WriteConnection:
    """Implements :class:`guard.gateway.storage.sql.connection.Database`."""

    def __init__(self, dsn: str, name: str) -> None:
        self.psycopg = connect(dsn, name)
        self._types: dict[str, dict[str, str]] = {}
        self._bulks: dict[str, Bulk | None] = {}

    def learn_types(self) -> None:
        """Read the types of all columns, for statements that take many rows."""
        for table, column, kind in self.psycopg.execute(_TYPES):
            self._types.setdefault(table, {})[column] = kind

    def execute(self, sql: str, arguments: Sequence[Any] = (), /) -> Cursor:
        """Run a statement of the shared SQL."""
        cursor = self.psycopg.cursor()
        _run(cursor, spelled(sql), arguments)
        return cursor

    def executemany(self, sql: str, rows: Iterable[tuple[Any, ...]], /) -> Cursor:
        """Run a statement for many rows at once: each column is sent as one array."""
        cursor = self.psycopg.cursor()
        found = list(rows)
        if sql not in self._bulks:
            self._bulks[sql] = bulk(sql, self._types)
        many = self._bulks[sql]
        if not found:
            return cursor
        if many is None:
            cursor.executemany(spelled(sql).text.encode(), found)
        else:
            columns = zip(*found, strict=True)
            arrays = [_array(kind, c) for kind, c in zip(many.types, columns, strict=True)]
            cursor.execute(many.text.encode(), arrays)
        return cursor

    def is_broken(self) -> bool:
        """Tell whether the connection is lost."""
        return self.psycopg.closed or self.psycopg.broken


def _array(kind: str, column: tuple[Any, ...]) -> str | list[Any]:
    """Return a column as an array; as text, which takes a fifth of what psycopg's lists do."""
    write = _ELEMENTS.get(kind)
    if write is None:
        return list(column)
    return "{" + ",".join(["NULL" if each is None else write(each) for each in column]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_ELEMENTS: Final[dict[str, Callable[[Any], str]]] = {
    "bigint": lambda each: str(int(each)),
    "double precision": lambda each: repr(float(each)),
    "text": _quoted,
    "bytea": lambda each: f'"\\\\x{each.hex()}"',
}


class ReadConnection:
    """Implements :class:`guard.gateway.storage.sql.connection.Connection`."""

    def __init__(self, dsn: str, name: str) -> None:
        self.psycopg = connect(dsn, name, reading=True)

    def rows(self, sql: str, *arguments: Any) -> list[Any]:
        """Return all rows of a query."""
        cursor = self.psycopg.cursor()
        _run(cursor, spelled(sql), arguments)
        return cursor.fetchall()

    def stream(self, sql: str) -> Iterable[Any]:
        """Return the rows of a query one by one, inside a snapshot."""
        with self.psycopg.cursor(name="stream") as cursor:
            cursor.itersize = 1000
            yield from cursor.execute(spelled(sql).plain.encode())

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Have all queries of a block see the same state."""
        self.psycopg.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        try:
            yield
        finally:
            self.psycopg.execute("ROLLBACK")

    def is_broken(self) -> bool:
        """Tell whether the connection is lost."""
        return self.psycopg.closed or self.psycopg.broken

    def close(self) -> None:
        """Close the connection."""
        self.psycopg.close()
