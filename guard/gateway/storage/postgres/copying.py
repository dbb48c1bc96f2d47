"""Copies a SQLite database into a PostgreSQL one, and checks the copy, in one transaction."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
from msgspec import Struct
from psycopg import sql

from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.records import LedgerReport
from guard.gateway.ledger.audit import GENESIS
from guard.gateway.storage.postgres import schema
from guard.gateway.storage.postgres.connection import PostgresReadConnection, connect, reason_of
from guard.gateway.storage.postgres.migrations import migrate, read_version, require_sessions
from guard.gateway.storage.sql import verify
from guard.gateway.storage.sqlite import file_lock
from guard.gateway.storage.sqlite.connection import SqliteReadConnection
from guard.gateway.storage.sqlite.migrations import SqliteMigrator
from guard.gateway.unit.connection import Connection

_FIRST: Final = ("organisations", "operators", "budgets", "keys")
"""Others refer to these."""

_TABLES: Final = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
)
_IDENTITIES: Final = (
    "SELECT table_name, column_name FROM information_schema.columns"
    " WHERE table_schema = current_schema() AND is_identity = 'YES'"
)
_BALANCES: Final = (
    "SELECT balance_id, budget_id, scope_id, period_start_ms, ends_ms, opening, committed,"
    " reserved, overspend, authorized_max, level, exhausted, leases, refused,"
    " zone FROM balances"
    " ORDER BY balance_id"
)
_SET_FACT: Final = (
    "INSERT INTO facts VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_HEAD: Final = "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1"


class Copied(Struct, frozen=True):
    """The result of a copy.

    Attributes:
        rows: by table.
        ledger: balances, open reservations and events; no problems.
        audit_head: number and hash of the newest audit entry, the same in both.
    """

    rows: dict[str, int]
    ledger: LedgerReport
    audit_head: tuple[int, str]


class Inside(PostgresReadConnection):
    """Reads inside the transaction that copies."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.psycopg = connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Do nothing: the transaction that copies is the only one that writes."""
        yield


def copy(
    source: Path, dsn: str, *, dry_run: bool = False, told: Callable[[str, int], None] | None = None
) -> Copied:
    """Copy the whole file of a stopped gateway into an empty database.

    Both are checked: every balance against its entries, the audit log's chain. The copy has the
    same balances, the same number of rows in each table, and the same audit head; otherwise the
    target stays empty.

    Args:
        source: the SQLite file; its schema must be the newest.
        dsn: a connection URI of the target. Its tables are made if needed, and must be empty.
        dry_run: copy and check, and roll back in the end.
        told: called with each table and its number of copied rows.

    Raises:
        StoreError: what is wrong; nothing was copied.
    """
    try:
        if not source.is_file():
            raise FileNotFoundError(f"no database at {source}")
        with file_lock.held(source):
            if SqliteMigrator(source).status().pending:
                raise RuntimeError(
                    "its schema is an older one: run `guard gateway migrate up` first"
                )
            return _copied(source, dsn, dry_run, told or (lambda *_: None))
    except psycopg.Error as exc:
        raise StoreError(f"the target failed: {reason_of(exc, dsn)}") from None
    except (OSError, RuntimeError, sqlite3.Error) as exc:
        raise StoreError(f"{source}: {exc}" if not isinstance(exc, OSError) else str(exc)) from exc


def _copied(source: Path, dsn: str, dry_run: bool, told: Callable[[str, int], None]) -> Copied:
    reading = SqliteReadConnection(source)
    try:
        ledger, head = checked(reading, None, "the file")
        require_sessions(dsn)
        with contextlib.closing(connect(dsn, "guard-gateway-copy")) as target:
            # The only step that stays if the copy fails: empty tables.
            migrate(target)
            if read_version(target).number > schema.newest():
                raise RuntimeError("the target's schema is newer: copy with the newest gateway")
            # The checks take minutes, in statements and between them.
            for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
                target.execute("SELECT set_config(%s, '0', false)", (setting,))
            with target.transaction(force_rollback=dry_run):
                _require_empty(target)
                rows = {}
                for table in tables_of(reading.sqlite):
                    rows[table] = _copy_table(reading, target, table)
                    told(table, rows[table])
                _set_identities(target)
                inside = Inside(target)
                compare(reading, inside, rows)
                copied, copied_head = checked(inside, head, "the copy")
                if (copied, copied_head) != (ledger, head):
                    raise RuntimeError("the copy's totals or its audit head are others")
        return Copied(rows, ledger, head)
    finally:
        reading.sqlite.close()


def checked(
    reading: Any, expect: tuple[int, str] | None, whose: str
) -> tuple[LedgerReport, tuple[int, str]]:
    """Check a store's ledger and audit log; return the ledger's totals and the audit head.

    Args:
        reading: a connection of the store.
        expect: number and hash of an audit entry that has to be there.
        whose: names the store in the error.

    Raises:
        RuntimeError: one of them is wrong.
    """
    ledger = verify.verify_ledger(reading)
    if ledger.problems:
        raise RuntimeError(f"the ledger of {whose} does not add up: {'; '.join(ledger.problems)}")
    _, wrong = verify.verify_audit(reading, expect)
    if wrong is not None:
        raise RuntimeError(f"the audit log of {whose} is wrong at entry {wrong}")
    rows = reading.rows(_HEAD)
    return ledger, (rows[0][0], rows[0][1]) if rows else (0, GENESIS)


def _require_empty(target: psycopg.Connection[Any]) -> None:
    # Held until the commit: no gateway can begin to use the database meanwhile.
    target.execute("LOCK TABLE organisations IN ACCESS EXCLUSIVE MODE")
    if target.execute("SELECT 1 FROM organisations LIMIT 1").fetchone() is not None:
        raise RuntimeError("the target is not empty: copy into a database that no gateway has used")


def tables_of(connection: sqlite3.Connection) -> list[str]:
    """Return the tables of a SQLite file, in an order in which foreign keys are satisfied."""
    found = [row[0] for row in connection.execute(_TABLES)]
    return [*_FIRST, *(name for name in found if name not in _FIRST)]


def _copy_table(reading: SqliteReadConnection, target: psycopg.Connection[Any], table: str) -> int:
    rows = reading.sqlite.execute(f"SELECT * FROM {table}")
    columns = sql.SQL(", ").join(sql.Identifier(column[0]) for column in rows.description)
    name = sql.Identifier(table)
    if table == "facts":  # the new schema has some
        facts = rows.fetchall()
        target.cursor().executemany(_SET_FACT, facts)
        return len(facts)
    query = sql.SQL("COPY {} ({}) FROM STDIN").format(name, columns)
    count = 0
    with target.cursor().copy(query) as writing:
        for row in rows:
            writing.write_row(row)
            count += 1
    return count


def _set_identities(target: psycopg.Connection[Any]) -> None:
    """Let the numbers of new rows follow those of the copied ones."""
    for table, column in target.execute(_IDENTITIES).fetchall():
        query = sql.SQL(
            "SELECT setval(pg_get_serial_sequence({table}, {column}), max({name})) FROM {source}"
            " HAVING max({name}) IS NOT NULL"
        ).format(
            table=table, column=column, name=sql.Identifier(column), source=sql.Identifier(table)
        )
        target.execute(query)


def compare(source: Connection, copied: Connection, rows: dict[str, int]) -> None:
    """Compare a copy with its source: how many rows each table has, and every balance.

    Args:
        source: a connection of the source.
        copied: a connection of the copy.
        rows: how many were copied, by table.

    Raises:
        RuntimeError: something has not arrived, or is another.
    """
    for table, count in rows.items():
        ((found,),) = copied.rows(f"SELECT count(*) FROM {table}")
        if found != count and table != "facts":
            raise RuntimeError(f"not all rows of {table} have arrived")
    for one, other in zip(source.stream(_BALANCES), copied.stream(_BALANCES), strict=True):
        if tuple(one) != tuple(other):
            raise RuntimeError(f"balance {one[0]} is another one in the copy")
