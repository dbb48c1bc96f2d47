"""Connections to PostgreSQL that run the shared SQL."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, LiteralString
from urllib.parse import unquote

import psycopg
from psycopg import conninfo
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
from psycopg.types.string import StrDumperUnknown as StrDumper

from guard.gateway.storage.postgres.dialect import Spelled, spelled
from guard.gateway.storage.postgres.silence_watchdog import AnswerWatch, WatchedSocket
from guard.gateway.unit.connection import Cursor
from guard.gateway.unit.record import RowChange

CLOCK: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
"""The database's time, in Unix milliseconds."""

WRITER: Final = "guard-gateway-writer"
"""The name of connections that hold locks, in ``pg_stat_activity``."""

CONNECT_TIMEOUT_S: Final = 5
PING_S: Final = 3.0
STATEMENT_TIMEOUT_MS: Final = 12_000
"""No statement of a writer may take longer."""

ANSWER_WAIT_S: Final = 15.0
"""If the server is silent for so long after a statement of a unit of work, it counts as lost.

Longer than a statement may take, and than a unit may wait for a lock: those end with an error of
their own, after which the connection can still be used.
"""

LOCK_TIMEOUT_MS: Final = 10_000
"""A unit that waits longer for its organisations fails, and its callers repeat their requests."""

IDLE_TIMEOUT_MS: Final = 5000
"""The server ends a transaction whose client is silent for so long, and frees its locks.

Shorter than ``LOCK_TIMEOUT_MS``: the locks of a frozen replica are freed before the units of other
replicas give up.
"""

_CANCEL_S: Final = 2.0
"""How long the server may take to be asked to stop a query."""

_DEFAULTS: Final = {
    "connect_timeout": str(CONNECT_TIMEOUT_S), "keepalives_idle": "5", "keepalives_interval": "2",
    "keepalives_count": "3", "tcp_user_timeout": "10000",
}  # fmt: skip
_SERVER_SETTINGS: Final = {
    "jit": "off",  # compiling takes longer than any statement of the store
    "lock_timeout": LOCK_TIMEOUT_MS,
    "idle_in_transaction_session_timeout": IDLE_TIMEOUT_MS,
    # The session of a machine that has vanished ends soon, and so do the locks that it holds.
    "tcp_keepalives_idle": 5,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_SETTINGS_OF_READERS: Final = {
    "statement_timeout": 0,
    "default_transaction_read_only": "on",
    # Planned each time for the size that a table has now: reports are rare and differ.
    "plan_cache_mode": "force_custom_plan",
}
_SETTINGS_OF_WRITERS: Final = {
    "statement_timeout": STATEMENT_TIMEOUT_MS,
    "default_transaction_read_only": "off",
    # A prepared statement keeps the plan that was best while its tables were small, until they are
    # analysed again, and reads all of what they have become. What is written is found by an index.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class _BoolDumper(Dumper):
    """Sends booleans as numbers: the columns are the same as SQLite's, which has no booleans."""

    oid = psycopg.adapters.types["int8"].oid

    def dump(self, obj: Any) -> Buffer | None:
        return b"1" if obj else b"0"


_NUL: Final = "\ufdd0"
"""Replaces the NUL character, which PostgreSQL does not store; a noncharacter of Unicode."""


class _TextDumper(StrDumper):
    """Replaces NUL in text that is sent."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\0", _NUL) if "\0" in obj else obj)


class _TextLoader(Loader):
    """Puts NUL back into text that is received."""

    def load(self, data: Buffer) -> str:
        text = bytes(data).decode()
        return text.replace(_NUL, "\0") if _NUL in text else text


class _WholeLoader(Loader):
    """Reads ``numeric`` as ``int``: PostgreSQL sums bigints as numeric, and these are whole."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data))


def connect(dsn: str, name: str) -> psycopg.Connection[Any]:
    """Open a connection that writes; transactions are begun with ``BEGIN``, not by psycopg.

    Args:
        dsn: a connection URI or string of libpq.
        name: shown in ``pg_stat_activity``.

    Raises:
        psycopg.Error: the server cannot be reached, or refuses.
    """
    connection = _opened(dsn, name)
    _configure(connection, reading=False)
    return connection


def _opened(dsn: str, name: str) -> psycopg.Connection[Any]:
    given = conninfo.conninfo_to_dict(dsn)
    missing = {key: value for key, value in _DEFAULTS.items() if key not in given}
    # Without an encoding, names and text of a database in SQL_ASCII would come as bytes.
    named = conninfo.make_conninfo(dsn, application_name=name, client_encoding="utf8", **missing)
    connection = psycopg.connect(named, autocommit=True)
    adapters = connection.adapters
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(bool, _BoolDumper)
    adapters.register_dumper(str, _TextDumper)
    adapters.register_loader("numeric", _WholeLoader)
    adapters.register_loader("text", _TextLoader)
    return connection


def _configure(connection: psycopg.Connection[Any], *, reading: bool) -> None:
    settings = {
        **_SERVER_SETTINGS,
        **(_SETTINGS_OF_READERS if reading else _SETTINGS_OF_WRITERS),
    }
    connection.execute(
        "SELECT set_config(name, value, false)"
        " FROM unnest(%s::text[], %s::text[]) AS given(name, value)",
        (list(settings), [str(value) for value in settings.values()]),
    )


class _Connection:
    """A connection that is ended if the server does not answer in time.

    Args:
        dsn: a connection URI or string of libpq.
        name: shown in ``pg_stat_activity``.
        watch: ends it when an answer is overdue.
        reading: refuse to write.
    """

    def __init__(self, dsn: str, name: str, watch: AnswerWatch, *, reading: bool = False) -> None:
        # Used by one thread at a time. The watch's thread never touches it: libpq is not safe for
        # two threads, so the watch has a duplicate of the socket instead.
        self.psycopg = _opened(dsn, name)
        self._line = WatchedSocket(self.psycopg.fileno())
        self._watch = watch
        watch.add(self._line)
        self.expect(CONNECT_TIMEOUT_S)
        try:
            _configure(self.psycopg, reading=reading)
        except BaseException:
            self.close()
            raise
        self.rest()

    def expect(self, within_s: float) -> None:
        """End the connection unless everything asked from now on is answered within a time.

        The time runs until :meth:`rest`, or the next call of this, which sets it anew.
        """
        self._line.expect(within_s)

    def rest(self) -> None:
        """Expect no answer."""
        self._line.rest()

    def interrupt(self) -> None:
        """Let what another thread waits for fail."""
        # The server is asked first: a query whose connection is cut goes on there, with its locks,
        # until it has an answer to send.
        try:
            self.psycopg.cancel_safe(timeout=_CANCEL_S)
        except psycopg.Error:
            self._line.cut()

    def is_broken(self) -> bool:
        """Return whether the connection is lost."""
        return self.psycopg.closed or self.psycopg.broken

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.psycopg.close()
        # Closes the duplicate too; until then the server may still see the connection as open.
        self._watch.remove(self._line)


def reason_of(exc: BaseException, dsn: str) -> str:
    """Return the first line of an error, unless it quotes a part of the password in ``dsn``."""
    name = type(exc).__name__
    text = (str(exc).strip() or name).splitlines()[0]
    # Everything up to the last @: a URI that libpq cannot parse may have any character in its
    # password, and the error is likely to quote it.
    user, found, _ = dsn.partition("://")[2].partition("?")[0].rpartition("@")
    _, given, password = user.partition(":")
    if not found or not given:
        return text
    parts = {part for part in re.split(r"[:/@]", password) if part}
    return name if any(part in text or unquote(part) in text for part in parts) else text


def _run(cursor: psycopg.Cursor[Any], text: Spelled, arguments: Sequence[Any]) -> None:
    if not arguments:
        cursor.execute(text.plain.encode())
    elif text.is_named:
        cursor.execute(text.text.encode(), {f"a{at}": each for at, each in enumerate(arguments, 1)})
    else:
        cursor.execute(text.text.encode(), arguments)


class WriteConnection(_Connection):
    """Implements :class:`guard.gateway.unit.connection.Database`."""

    def ask(
        self, query: LiteralString, arguments: Sequence[Any] | Mapping[str, Any] = ()
    ) -> psycopg.Cursor[Any]:
        """Run a statement in PostgreSQL's own words."""
        self.expect(ANSWER_WAIT_S)
        return self.psycopg.execute(query, arguments or None)

    def execute(self, sql: str, arguments: Sequence[Any] = (), /) -> Cursor:
        """Run a statement of the shared SQL."""
        # Anew for each statement: a unit may have thousands, all of them answered at once.
        self.expect(ANSWER_WAIT_S)
        cursor = self.psycopg.cursor()
        _run(cursor, spelled(sql), arguments)
        return cursor

    def change(self, change: RowChange, rows: Iterable[tuple[Any, ...]], /) -> Cursor:
        """Run a change for many rows at once: each column is sent as one array."""
        self.expect(ANSWER_WAIT_S)
        cursor = self.psycopg.cursor()
        found = list(rows)
        if found:
            columns = zip(*found, strict=True)
            arrays = [_array(kind, c) for kind, c in zip(change.types, columns, strict=True)]
            cursor.execute(change.many.encode(), arrays)
        return cursor


def _array(kind: str, column: tuple[Any, ...]) -> str | list[Any]:
    """Return a column as an array: as text, which takes a fifth of the time of psycopg's lists."""
    write = _ELEMENTS.get(kind)
    if write is None:
        return list(column)
    return "{" + ",".join(["NULL" if each is None else write(each) for each in column]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_ELEMENTS: Final[dict[str, Callable[[Any], str]]] = {
    "bigint[]": lambda each: str(int(each)),
    "double precision[]": lambda each: repr(float(each)),
    "text[]": _quoted,
    "bytea[]": lambda each: f'"\\\\x{each.hex()}"',
}


class PostgresReadConnection(_Connection):
    """Implements :class:`guard.gateway.unit.connection.Connection`."""

    def __init__(self, dsn: str, name: str, watch: AnswerWatch) -> None:
        super().__init__(dsn, name, watch, reading=True)

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
        """Let all queries of a block see the same state."""
        self.psycopg.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        try:
            yield
        finally:
            self.psycopg.execute("ROLLBACK")

    def answers(self) -> bool:
        """Return whether the server still answers on a connection that was idle for a while."""
        self.expect(PING_S)
        try:
            self.psycopg.execute("SELECT 1")
        except psycopg.Error:
            return False  # without ``rest``: the caller closes the connection
        self.rest()
        return True
