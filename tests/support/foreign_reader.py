"""A reader that the gateway knows nothing of, such as a backup: its snapshot and its locks."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg

from guard.gateway.storage.port import Storage
from guard.gateway.storage.sqlite.store import SqliteStorage
from tests.support import postgres


@contextlib.contextmanager
def reading(storage: Storage, folder: Path) -> Iterator[None]:
    """Read every table in one transaction, as ``pg_dump`` does, until the block ends."""
    if isinstance(storage, SqliteStorage):
        with contextlib.closing(sqlite3.connect(storage.path, isolation_level=None)) as file:
            file.execute("BEGIN")
            for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
                file.execute(f'SELECT count(*) FROM "{name}"').fetchone()
            yield
        return
    with psycopg.connect(postgres.dsn_of(folder)) as dump:
        dump.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        tables = dump.execute(
            "SELECT oid::regclass::text FROM pg_class"
            " WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"
        ).fetchall()
        for (name,) in tables:
            dump.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE".encode())
            dump.execute(f"SELECT count(*) FROM {name}".encode())
        yield
        dump.rollback()
