"""Everything that a gateway's database holds, to see what a command has changed."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterable
from typing import Any

import psycopg
from psycopg import sql

Rows = dict[str, list[tuple[Any, ...]]]

BOOKKEEPING = frozenset(
    {"audit", "facts", "idempotency_0", "idempotency_1", "nonces", "refusals", "replicas",
     "sqlite_sequence"}
)  # fmt: skip
"""What is noted of every command, whatever becomes of it."""

_OF_SCHEMA = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"


def dump(database: str, without: Collection[str] = (), but: Iterable[str] = ()) -> Rows:
    """Return the rows of every table.

    Args:
        database: the SQLite file, or the URI of the PostgreSQL schema.
        without: names that rows are of which are left out, such as an organisation's.
        but: more tables to leave out.
    """
    left_out = BOOKKEEPING.union(but)
    own = set(without)

    def kept(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        found = (tuple(map(_plain, row)) for row in rows)
        return sorted((row for row in found if own.isdisjoint(row)), key=repr)

    if database.startswith("postgresql:"):
        with psycopg.connect(database) as connection:
            tables = [name for (name,) in connection.execute(_OF_SCHEMA)]
            return {
                name: kept(
                    connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(name)))
                )
                for name in sorted(set(tables) - left_out)
            }
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as reading:
        names = "SELECT name FROM sqlite_master WHERE type = 'table'"
        tables = [name for (name,) in reading.execute(names)]
        return {
            name: kept(reading.execute(f'SELECT * FROM "{name}"'))
            for name in sorted(set(tables) - left_out)
        }


def difference(before: Rows, after: Rows) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return, by table, the rows that are gone and those that are new."""
    return {
        name: (
            [row for row in before[name] if row not in after[name]],
            [row for row in after[name] if row not in before[name]],
        )
        for name in before
        if before[name] != after[name]
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return bytes(value) if isinstance(value, memoryview) else value
