"""A PostgreSQL server for tests, and a schema of its own for each store."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest
from psycopg import conninfo, sql

from guard.gateway.storage.postgres.store import PostgresStorage

_DEFAULT = "postgresql://root@127.0.0.1:5432/test"
_made: set[str] = set()


@functools.cache
def server() -> str | None:
    """Return the connection string of the tests' server, or ``None`` where there is none."""
    dsn = os.environ.get("GUARD_TEST_POSTGRES_DSN", _DEFAULT)
    try:
        psycopg.connect(dsn, connect_timeout=60).close()
    except psycopg.Error:
        if "GUARD_TEST_POSTGRES_DSN" in os.environ:
            raise
        return None
    return dsn


@functools.cache
def _database() -> str:
    """Make a database for this process; dropping it is quicker than dropping many schemas."""
    return _new_database()


def own_database(options: str = "") -> str:
    """Make a database of a test's own, dropped at the end of the process; return its URI."""
    return _uri(conninfo.conninfo_to_dict(_new_database(options)))


def database_without_encoding() -> str:
    """Make one as a server has that was set up in the locale C: its bytes may mean anything."""
    return own_database("ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")


def _uri(parts: Mapping[str, Any]) -> str:
    known = [parts[each] for each in ("user", "password") if parts.get(each)]
    user = ":".join(quote(each, safe="") for each in known)
    return f"postgresql://{user}@{parts['host']}:{parts.get('port', 5432)}/{parts['dbname']}"


def _new_database(options: str = "") -> str:
    dsn = server()
    if dsn is None:
        pytest.skip("no PostgreSQL server (GUARD_TEST_POSTGRES_DSN)")
    name = f"guard_test_{os.getpid()}_{secrets.token_hex(4)}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        create = sql.SQL("CREATE DATABASE {} " + options)
        connection.execute(create.format(sql.Identifier(name)))
    atexit.register(_drop, dsn, name, os.getpid())
    return conninfo.make_conninfo(dsn, dbname=name)


def _drop(dsn: str, name: str, process_id: int) -> None:
    if os.getpid() == process_id:  # and not in a fork of it
        with psycopg.connect(dsn, autocommit=True) as connection:
            query = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
            connection.execute(query)


def dsn_of(folder: Path) -> str:
    """Return a connection string with a schema that belongs to a folder; it is made if needed."""
    dsn = _database()
    name = "t_" + hashlib.sha256(str(folder).encode()).hexdigest()[:20]
    if name not in _made:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        _made.add(name)
    # A test asks for what a commit promises, and not for the server's disk.
    options = f"-c search_path={name} -c synchronous_commit=off"
    return conninfo.make_conninfo(dsn, options=options)


def url_of(folder: Path) -> str:
    """Return :func:`dsn_of` as a URI, as operators write it."""
    parts = conninfo.conninfo_to_dict(dsn_of(folder))
    query = urlencode({"options": parts["options"]}, quote_via=quote)
    return f"{_uri(parts)}?{query}"


def waits_for_a_lock(folder: Path) -> bool:
    """Tell whether a connection to the database of a folder waits for a lock."""
    with psycopg.connect(dsn_of(folder), autocommit=True) as connection:
        waiting = connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock'"
        )
        return waiting.fetchone() is not None


def store(folder: Path, **options: Any) -> PostgresStorage:
    """Return a store on the schema of a folder."""
    return PostgresStorage(dsn_of(folder), **options)
