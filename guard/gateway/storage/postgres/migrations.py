"""Migrations of a PostgreSQL schema, without a gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from guard.gateway.domain.errors import StoreError
from guard.gateway.storage.migrations import SchemaStatus, Step
from guard.gateway.storage.postgres import schema
from guard.gateway.storage.postgres.connection import connect


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
            version, newest = schema.version(connection), len(schema.MIGRATIONS)
        pending = [Step(number) for number in range(version + 1, newest + 1)]
        return SchemaStatus(version, newest, pending)

    def up(self, *, dry_run: bool) -> Sequence[Step]:
        """Apply the pending steps in one transaction, which a dry run takes back."""
        pending = self.status().pending
        with self._connected() as connection:
            schema.migrate(connection, dry_run=dry_run)
        return pending

    @contextlib.contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            with contextlib.closing(connect(self._dsn, "guard-gateway-migrate")) as connection:
                yield connection
        except (psycopg.Error, RuntimeError) as exc:
            raise StoreError(f"the database cannot be migrated: {exc}") from None
