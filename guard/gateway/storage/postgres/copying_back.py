"""Copies a PostgreSQL database into a SQLite file, which is checked before it gets its name."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from guard.gateway.domain.errors import StoreError
from guard.gateway.storage.postgres import schema
from guard.gateway.storage.postgres.connection import connect, reason_of
from guard.gateway.storage.postgres.copying import Copied, Inside, checked, compare, tables_of
from guard.gateway.storage.postgres.migrations import read_version, require_stopped
from guard.gateway.storage.sqlite import file_lock
from guard.gateway.storage.sqlite import schema as sqlite_schema
from guard.gateway.storage.sqlite.connection import SqliteReadConnection
from guard.gateway.storage.sqlite.migrations import partial, put_in_place

_OWN_FACTS: Final = ("schema", "schema_oldest", "oldest_open")
"""Facts of one engine; without the last one, a SQLite store reads every reservation once."""

_SET_FACT: Final = (
    "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_ROWS: Final = 1000


def copy_back(
    dsn: str, target: Path, *, dry_run: bool = False, told: Callable[[str, int], None] | None = None
) -> Copied:
    """Copy the whole database of stopped gateways into a new SQLite file.

    Both are checked, as by :func:`guard.gateway.storage.postgres.copying.copy`.

    Args:
        dsn: a connection URI of the source; its schema must be the newest.
        target: the file, which must not be there.
        dry_run: copy and check, and remove the copy.
        told: called with each table and its number of copied rows.

    Raises:
        StoreError: what is wrong; there is no file.
    """
    try:
        with contextlib.closing(connect(dsn, "guard-gateway-copy")) as source:
            for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
                source.execute("SELECT set_config(%s, '0', false)", (setting,))
            # One transaction on the source, so that it cannot change between the copy and the
            # checks; nothing is written in it.
            with source.transaction(force_rollback=True), file_lock.held(target):
                return _copied(source, target, dry_run, told or (lambda *_: None))
    except psycopg.Error as exc:
        raise StoreError(f"the source failed: {reason_of(exc, dsn)}") from None
    except (OSError, RuntimeError, sqlite3.Error) as exc:
        raise StoreError(str(exc)) from exc


def _copied(
    source: psycopg.Connection[Any], target: Path, dry_run: bool, told: Callable[[str, int], None]
) -> Copied:
    require_stopped(source)
    if target.exists():
        raise FileExistsError(f"{target} is there already: name a file that is not")
    if read_version(source).number != schema.newest():
        raise RuntimeError(
            "the source's schema is not of this version: run `guard gateway migrate up`, or copy "
            "with the gateway that wrote it"
        )
    inside = Inside(source)
    ledger, head = checked(inside, None, "the source")
    with partial(target, "copying") as made:
        with contextlib.closing(sqlite_schema.connect(str(made), durable=True)) as writing:
            sqlite_schema.migrate(writing)
            # Checked once at the end: checking each row takes longer.
            writing.execute("PRAGMA foreign_keys = OFF")
            writing.execute("BEGIN IMMEDIATE")
            rows = {}
            for table in tables_of(writing):
                rows[table] = _copy_table(source, writing, table)
                told(table, rows[table])
            if (broken := writing.execute("PRAGMA foreign_key_check").fetchone()) is not None:
                raise RuntimeError(f"a row of {broken[0]} refers to one that is not there")
            writing.execute("COMMIT")
            # The file is renamed without its log, so the log must be empty.
            writing.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        with contextlib.closing(SqliteReadConnection(made)) as reading:
            compare(inside, reading, rows)
            if checked(reading, head, "the copy") != (ledger, head):
                raise RuntimeError("the copy's totals or its audit head are others")
        if not dry_run:
            put_in_place(made, target, "replaced")
    return Copied(rows, ledger, head)


def _copy_table(source: psycopg.Connection[Any], writing: sqlite3.Connection, table: str) -> int:
    names = [row[1] for row in writing.execute(f"PRAGMA table_info({table})")]
    query = sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join(map(sql.Identifier, names)), sql.Identifier(table)
    )
    if table == "facts":  # the new schema has some
        facts = [row for row in source.execute(query) if row[0] not in _OWN_FACTS]
        writing.executemany(_SET_FACT, facts)
        return len(facts)
    insert = f"INSERT INTO {table} VALUES ({','.join('?' * len(names))})"
    count = 0
    with source.cursor(name="copying") as cursor:
        cursor.execute(query)
        while rows := cursor.fetchmany(_ROWS):
            writing.executemany(insert, rows)
            count += len(rows)
    return count
