"""Migrations of a PostgreSQL schema, and which gateways may run on it.

The schema records its version and the oldest gateway that can run on it. A gateway older than the
schema's version runs on it unchanged, if it is not older than that. Each connection that writes
holds a lock that names its gateway's version, so a step with which a running older gateway could
not work is refused.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.errors import DeadlockDetected, LockNotAvailable

from guard.gateway.domain.errors import StoreError
from guard.gateway.storage.migrations import MigrationStep, SchemaStatus
from guard.gateway.storage.postgres import schema
from guard.gateway.storage.postgres.connection import connect, reason_of
from guard.gateway.storage.postgres.schema import Migration

LOCK_WAIT_MS: Final = 500
"""How long a step waits for a lock at a time, because all requests wait behind it.

Less than the server's ``deadlock_timeout``, so that in a deadlock the step fails, and not a
request.
"""

RETRY_S: Final = 1.0
PATIENCE_S: Final = 600.0
"""How long a step is repeated while its tables are in use."""

ENDING_S: Final = 2.0
"""A gateway that has ended counts as running until the server has ended its sessions."""

_FACTS: Final = "SELECT name, value FROM facts WHERE name IN ('schema', 'schema_oldest')"
_SET_FACT: Final = (
    "INSERT INTO facts VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_SOLE: Final = "SELECT pg_try_advisory_lock(%s::int, hashtext(current_schema()))"
_RELEASE: Final = "SELECT pg_advisory_unlock(%s::int, hashtext(current_schema()))"
_RUN: Final = "SELECT pg_advisory_lock_shared(%s::int, hashtext(current_schema() || ':' || %s))"
_NOBODY: Final = (
    "SELECT pg_try_advisory_xact_lock(%s::int, hashtext(current_schema() || ':' || %s))"
)

_LOOKS: Final = 3
"""How often to look at which session serves whom: other clients of a pooler take some meanwhile."""

_IS_VALID: Final = (
    "SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
    " WHERE c.relname = %s AND c.relnamespace = current_schema()::regnamespace"
)


class SchemaError(RuntimeError):
    """The schema cannot be used or changed by this gateway now."""


class SchemaVersion(NamedTuple):
    """The version that a schema records.

    Attributes:
        number: of its newest migration; 0: it is empty.
        oldest: the version that a gateway must know to run on it.
    """

    number: int
    oldest: int


def read_version(connection: psycopg.Connection[Any]) -> SchemaVersion:
    """Return the version of the schema, on which this gateway can run.

    Raises:
        SchemaError: only a newer gateway can, the schema is not a gateway's, or the database cannot
            keep every name.
    """
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ("UTF8", "SQL_ASCII"):
        raise SchemaError(
            f"the database has the encoding {encoding}, in which not every name can be kept: make "
            "one with CREATE DATABASE guard ENCODING 'UTF8' TEMPLATE template0"
        )
    found = connection.execute("SELECT to_regclass('facts')").fetchone()
    if found is None or found[0] is None:
        return SchemaVersion(0, 0)
    facts = {name: int(value) for name, value in connection.execute(_FACTS)}
    number = facts.get("schema", 0)
    if number == 0:
        raise SchemaError("this is not a gateway's database")
    if number < schema.FIRST:
        raise SchemaError(
            f"the database has schema {number}, which no release has written: go on with the "
            "version of guard that wrote it, or name an empty schema"
        )
    known = schema.newest()
    oldest = facts.get("schema_oldest", number if number > known else 1)
    if known < oldest:
        raise SchemaError(
            f"the database has schema {number}, newer than this gateway knows: it knows {known}, "
            f"and schema {oldest} is the least that runs on it"
        )
    return SchemaVersion(number, oldest)


def require_sessions(dsn: str) -> None:
    """Refuse a pooler that gives each transaction another session of the server.

    Locks, settings and notifications belong to a session: they would be lost, or reach others.

    Args:
        dsn: a connection URI or string of libpq.

    Raises:
        SchemaError: there is one between this gateway and its database.
    """
    with contextlib.closing(connect(dsn, "guard-gateway-session")) as first:
        if _session(first) == first.info.backend_pid:  # which a pooler does not know
            return
        with contextlib.closing(connect(dsn, "guard-gateway-session")) as second:
            for _ in range(_LOOKS):
                before = _session(first)
                with second.transaction():
                    held = _session(second)
                if held == before or _session(first) != before:
                    raise SchemaError(
                        "a pooler in between gives each transaction another session: set pool_mode "
                        "= session for this database (in PgBouncer), or name the server itself"
                    )


def _session(connection: psycopg.Connection[Any]) -> int:
    """Return the process of the server that serves a connection now."""
    [(found,)] = connection.execute("SELECT pg_backend_pid()").fetchall()
    return int(found)


def note_running(connection: psycopg.Connection[Any]) -> None:
    """Hold the lock of gateways of this version until the connection ends.

    Raises:
        SchemaError: the schema has changed, and this gateway cannot run on it.
    """
    connection.execute(_RUN, (schema.RUNS, str(schema.newest())))
    # After the lock: from here on no migration can make the schema unusable for this version.
    read_version(connection)


def migrate(connection: psycopg.Connection[Any]) -> list[MigrationStep]:
    """Apply the missing steps, each completely or not at all, and return them.

    Gateways that start at the same time take turns. The steps of an interrupted one stay, and the
    next one continues after them. Other gateways run meanwhile: a step that does not get its locks
    at once is repeated.

    Args:
        connection: outside of a transaction.

    Raises:
        SchemaError: a newer gateway's schema, a step that older gateways which run now could not
            bear, or tables that stay in use.
    """
    # Tried and not waited for: a statement that waits would hold a snapshot, and another gateway's
    # CREATE INDEX CONCURRENTLY would wait for that, in a deadlock.
    while not _is_true(connection.execute(_SOLE, (schema.MIGRATE,))):
        time.sleep(RETRY_S * random.uniform(0.05, 0.2))
    try:
        done = []
        for number, migration in schema.after(read_version(connection).number):
            _apply(connection, number, migration)
            done.append(MigrationStep(number, migration.name))
        return done
    finally:
        if not connection.closed:
            connection.execute(_RELEASE, (schema.MIGRATE,))


def rehearse(connection: psycopg.Connection[Any]) -> list[MigrationStep]:
    """Run every missing step in one transaction, roll it back, and return the steps.

    Indexes are left out: in a transaction, building them would block all writes.

    Raises:
        SchemaError: as :func:`migrate`, at once.
    """
    done: list[MigrationStep] = []
    number, migration = 0, Migration("")
    try:
        with _step(connection, force_rollback=True):
            for number, migration in schema.after(read_version(connection).number):
                _require_bearable(connection, number, migration)
                if migration.script:
                    _run_script(connection, migration)
                while migration.fill and connection.execute(migration.fill.encode()).rowcount:
                    pass
                _record(connection, number, migration)
                done.append(MigrationStep(number, migration.name))
    except (LockNotAvailable, DeadlockDetected):
        raise _in_use(number, migration) from None
    return done


def _apply(connection: psycopg.Connection[Any], number: int, migration: Migration) -> None:
    # Outside of a transaction, so before the step is recorded: if the process dies in between, the
    # next one finds the indexes built.
    for index in migration.indexes:
        _build(connection, index)

    # In one transaction: either the script and its record, or one batch of a fill.
    def run() -> bool:
        _require_bearable(connection, number, migration)
        # Not done yet: the batch is committed without the record, and the next one follows.
        if migration.fill and connection.execute(migration.fill.encode()).rowcount:
            return False
        if migration.script:
            _run_script(connection, migration)
        _record(connection, number, migration)
        return True

    while not _until_locked(connection, run, lambda: _in_use(number, migration)):
        pass


def _build(connection: psycopg.Connection[Any], index: str) -> None:
    """Build an index without blocking writes. One that was half built is dropped first."""
    name = index.split()[2]
    found = connection.execute(_IS_VALID, (name,)).fetchone()
    if found is not None and found[0]:
        return
    # The table may be large.
    connection.execute("SET statement_timeout = 0")
    try:
        # Half built: an earlier attempt was interrupted.
        if found is not None:
            connection.execute(f"DROP INDEX CONCURRENTLY {name}".encode())
        connection.execute(index.replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1).encode())
    finally:
        connection.execute("RESET statement_timeout")


def _until_locked(
    connection: psycopg.Connection[Any], run: Callable[[], bool], failed: Callable[[], Exception]
) -> bool:
    """Run a transaction; repeat it while other sessions hold the locks that it needs."""
    ends_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            with _step(connection):
                return run()
        except (LockNotAvailable, DeadlockDetected):
            if time.monotonic() > ends_s:
                raise failed() from None
            time.sleep(RETRY_S * random.uniform(0.5, 1.5))


@contextlib.contextmanager
def _step(connection: psycopg.Connection[Any], *, force_rollback: bool = False) -> Iterator[None]:
    with connection.transaction(force_rollback=force_rollback):
        connection.execute(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}".encode())
        connection.execute("SET LOCAL statement_timeout = 0")
        yield


def _run_script(connection: psycopg.Connection[Any], migration: Migration) -> None:
    # Ids sort by their bytes, as in the embedded store, whatever the database's locale.
    script = re.sub(r" TEXT\b(?!\[)", ' TEXT COLLATE "C"', migration.script)
    connection.execute(script.encode())


def _require_bearable(
    connection: psycopg.Connection[Any], number: int, migration: Migration
) -> None:
    """Keep gateways that could not run on the result from starting until the transaction ends.

    Raises:
        SchemaError: one of them runs.
    """
    for version in range(1, migration.oldest):
        if not _is_true(connection.execute(_NOBODY, (schema.RUNS, str(version)))):
            raise SchemaError(
                f"migration {number} ({migration.name}) takes away what a gateway that runs now "
                f"needs: it knows schema {version}, and {migration.oldest} is needed. Nothing was "
                "changed by it; update or stop every such gateway first"
            )


def require_stopped(connection: psycopg.Connection[Any]) -> None:
    """Keep every gateway from starting until the transaction ends.

    Raises:
        SchemaError: one runs.
    """
    ends_s = time.monotonic() + ENDING_S
    for version in range(schema.FIRST, schema.newest() + 1):
        while not _is_true(connection.execute(_NOBODY, (schema.RUNS, str(version)))):
            if time.monotonic() > ends_s:
                raise SchemaError("a gateway is running on this database: stop all of them first")
            time.sleep(0.05)


def _record(connection: psycopg.Connection[Any], number: int, migration: Migration) -> None:
    oldest = max(each.oldest for at, each in schema.after(0) if at <= number)
    for name, value in (("schema", number), ("schema_oldest", oldest)):
        connection.execute(_SET_FACT, (name, str(value)))


def _in_use(number: int, migration: Migration) -> SchemaError:
    return SchemaError(
        f"migration {number} ({migration.name}) needs tables that something else keeps locked; "
        "what was applied before it stays"
    )


def _is_true(cursor: psycopg.Cursor[Any]) -> bool:
    row = cursor.fetchone()
    return row is not None and row[0] is True


class PostgresMigrator:
    """Implements :class:`guard.gateway.storage.migrations.Migrator` on one schema.

    Args:
        dsn: a connection URI or string of libpq.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def status(self) -> SchemaStatus:
        """Return the versions; gateways may be running."""
        with self._connected() as connection:
            found = read_version(connection)
        pending = [MigrationStep(number, each.name) for number, each in schema.after(found.number)]
        return SchemaStatus(found.number, schema.newest(), pending, found.oldest)

    def preview(self, *, carry: bool = False) -> Sequence[str]:
        """Return nothing: release 0.7 knew no PostgreSQL."""
        return ()

    def up(self, *, dry_run: bool, carry: bool = False) -> Sequence[MigrationStep]:
        """Apply the pending steps; if dry, in one transaction that is rolled back."""
        with self._connected() as connection:
            return rehearse(connection) if dry_run else migrate(connection)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            require_sessions(self._dsn)
            with contextlib.closing(connect(self._dsn, "guard-gateway-migrate")) as connection:
                yield connection
        except (psycopg.Error, SchemaError) as exc:
            reason = reason_of(exc, self._dsn)
            raise StoreError(f"the database cannot be migrated: {reason}") from None
