"""Operations on a database: opening a store, and the commands that need no gateway.

With :mod:`guard.gateway.app` the only module outside of ``storage`` that names a concrete store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from guard.gateway.domain.commands import Actor
from guard.gateway.domain.errors import StoreError
from guard.gateway.services.operators import OperatorService
from guard.gateway.settings import DatabaseUrl, GatewaySettings, database_of
from guard.gateway.storage.migrations import Migrator
from guard.gateway.storage.port import Storage
from guard.gateway.storage.sqlite.migrations import SqliteMigrator
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.rows import monotonic_clock_ms, wall_clock_ms
from guard.version import installs

if TYPE_CHECKING:
    from guard.gateway.storage.postgres.copying import Copied
    from guard.gateway.storage.postgres.temporary_schema import TemporarySchema
    from guard.gateway.storage.sqlite.restore import Restored


def backup(database: Path, target: Path) -> int:
    """Copy an embedded gateway's database while it runs, check the copy, return its bytes.

    Raises:
        OSError, sqlite3.Error: the copy could not be made, or is not whole.
    """
    from guard.gateway.storage.sqlite.backup import backup as copy

    return copy(database, target)


def restore(
    source: Path, target: Path, *, replace: bool = False, expect: tuple[int, str] | None = None
) -> Restored:
    """Make a backup an embedded gateway's database, once it has been checked.

    Raises:
        StoreError: what is wrong; the target is as it was.
    """
    from guard.gateway.storage.sqlite.restore import restore as put_back

    return put_back(source, target, replace=replace, expect=expect)


def migrator(database: str | Path) -> Migrator:
    """Return what migrates a database.

    Args:
        database: the name of a SQLite file, or a PostgreSQL URI.
    """
    found = database_of(database)
    if isinstance(found, Path):
        return SqliteMigrator(found)
    with _driver():
        from guard.gateway.storage.postgres.migrations import PostgresMigrator
    return PostgresMigrator(found)


def copy(
    source: Path | DatabaseUrl,
    target: Path | DatabaseUrl,
    *,
    dry_run: bool,
    told: Callable[[str, int], None],
) -> Copied:
    """Copy the database of stopped gateways into an empty one of the other engine, and check it.

    Raises:
        StoreError: what is wrong, or the engines are the same; nothing was copied.
    """
    with _driver():
        from guard.gateway.storage.postgres.copying import copy as into
        from guard.gateway.storage.postgres.copying_back import copy_back

    if isinstance(source, Path) and isinstance(target, DatabaseUrl):
        return into(source, str(target), dry_run=dry_run, told=told)
    if isinstance(source, DatabaseUrl) and isinstance(target, Path):
        return copy_back(str(source), target, dry_run=dry_run, told=told)
    raise StoreError("copy goes from SQLite to PostgreSQL, or back")


def temporary_schema(
    url: DatabaseUrl, prefix: str, left: Callable[[str], None]
) -> AbstractContextManager[TemporarySchema]:
    """Make a new schema in a PostgreSQL database, and drop it in the end.

    Args:
        url: of the database; whatever it holds stays as it is.
        prefix: of the schema's name.
        left: called with instructions if the schema could not be dropped.

    Raises:
        StoreError: no schema could be made.
    """
    with _driver():
        from guard.gateway.storage.postgres.temporary_schema import temporary_schema as made
    return made(url, prefix, left)


async def set_password(database: Path | DatabaseUrl, name: str, secret: str) -> None:
    """Set the password of an operator of all organisations, without a gateway.

    Args:
        database: the file of a gateway that is stopped, or a PostgreSQL database, whose gateways
            may be running.
        name: of the operator.
        secret: the password.

    Raises:
        StoreError: the database cannot be opened, or no gateway has used it.
        ConflictError: the name belongs to an operator of one organisation.
        ValueError: the password is too short or too long.
    """
    if not migrator(database).status().version:
        raise StoreError("no gateway has used this database yet: start one first")
    storage = storage_of(GatewaySettings(database=database), wall_clock_ms)
    # Fails on SQLite while a gateway has the file. Replicas on PostgreSQL notice the commit.
    await storage.open(lambda _: None)
    try:
        operators = OperatorService(storage, wall_clock_ms, monotonic_clock_ms)
        await operators.set_password(Actor("terminal"), name, secret, None)
    finally:
        await storage.close()


@contextlib.contextmanager
def _driver() -> Iterator[None]:
    """Import the PostgreSQL store, whose driver is an extra.

    Raises:
        StoreError: the driver is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is None or not exc.name.startswith("psycopg"):
            raise
        raise StoreError(f"PostgreSQL needs a package: {installs('postgres')}") from None


def storage_of(settings: GatewaySettings, clock_ms: Callable[[], int]) -> Storage:
    """Return the store that the settings name, not open yet.

    Args:
        settings: of the gateway.
        clock_ms: Unix milliseconds; the machine's clock, or a test's.
    """
    if isinstance(settings.database, Path):
        return SqliteStorage(
            settings.database,
            durable=settings.durable,
            clock_ms=clock_ms,
            retention_days=settings.retention_days,
            audit_retention_days=settings.audit_retention_days,
        )
    with _driver():
        from guard.gateway.storage.postgres.store import PostgresStorage
    # Replicas share the database's clock, unless a test gives one.
    return PostgresStorage(
        settings.database,
        clock_ms=None if clock_ms is wall_clock_ms else clock_ms,
        retention_days=settings.retention_days,
        audit_retention_days=settings.audit_retention_days,
    )
