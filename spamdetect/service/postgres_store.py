"""The key store for replicas: PostgreSQL through psycopg.

Nothing is cached: each request asks the database, so that a key revoked anywhere is refused
everywhere at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, LiteralString, Self, TypeVar

import psycopg

from spamdetect.service.keys import KeyRecord, StoreError, WouldWaitError
from spamdetect.service.postgres_pool import Pool
from spamdetect.service.store import SELECT_KEYS, KeyStore, Rows, Spelling, Transaction
from spamdetect.service.together import Together

R = TypeVar("R")

_ADD_RULES_VERSION: Final = """
DO $$ BEGIN
  -- Looked up first: ALTER TABLE waits for a backup that reads the table, and requests for it.
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attname = 'rules_version'
                 AND attrelid = 'spamdetect_api_keys'::regclass) THEN
    ALTER TABLE spamdetect_api_keys ADD COLUMN rules_version bigint NOT NULL DEFAULT 0;
  END IF;
END $$;
"""
# An arbitrary lock number: replicas that start together must not create the schema concurrently.
_SCHEMA_LOCK: Final = 7_236_114_501
_SCHEMA_TIMEOUT_S: Final = 5.0
_FOUND_MAX: Final = 1000
_FAILURES: Final = (psycopg.Error, OSError, TimeoutError, ValueError)


class PostgresKeyStore(KeyStore):
    """Keys in PostgreSQL, in tables named ``spamdetect_*``.

    Args:
        pool: Connections to the database.
    """

    spelling = Spelling(
        prefix="spamdetect_",
        parameter="%s",
        lock="SELECT pg_advisory_xact_lock(hashtextextended(?, 0))",
        now_s="extract(epoch FROM clock_timestamp())::double precision",
        integer="bigint",
        real="double precision",
        blob="bytea",
        boolean="boolean",
        # PostgreSQL's text type cannot hold U+0000.
        any_text="bytea",
        encoded="?",
        by_key="",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._find = Together(self._find_all, _FOUND_MAX)

    @classmethod
    async def open(cls, dsn: str) -> Self:
        """Connect, and create missing tables.

        Args:
            dsn: ``postgresql://user:password@host/name``.

        Raises:
            StoreError: The database cannot be reached or refuses the connection.
        """
        pool = Pool(dsn)
        try:
            # Replicas that start together wait for one another.
            async with pool.connection(_SCHEMA_TIMEOUT_S) as connection, connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
                await connection.execute(cls.spelling.schema + _ADD_RULES_VERSION)
        except _FAILURES as error:
            # Only the error's type: its message could contain the DSN and so the password.
            raise StoreError(
                f"Cannot open the PostgreSQL key store: {type(error).__name__}. "
                "Is the server up and the database URL right?"
            ) from None
        return cls(pool)

    def find_now(self, key_id: str) -> KeyRecord | None:
        """See :class:`~spamdetect.service.store.KeyStore`."""
        raise WouldWaitError

    async def find(self, key_id: str) -> KeyRecord | None:
        """See :class:`~spamdetect.service.store.KeyStore`."""
        return await self._find(key_id)

    async def _find_all(self, key_ids: list[str]) -> list[KeyRecord | None]:
        rows = await self._read(f"{SELECT_KEYS} WHERE key_id = ANY(?)", key_ids)
        found = {row[0]: KeyRecord(*row) for row in rows}
        return [found.get(key_id) for key_id in key_ids]

    async def close(self) -> None:
        """See :class:`~spamdetect.service.store.KeyStore`."""
        await self._pool.close()

    async def _read(self, sql: LiteralString, *parameters: Any) -> Rows:
        try:
            async with self._pool.connection() as db:
                return await self._execute(db, sql, parameters)
        except _FAILURES as error:
            raise _store_error(error) from None

    _change = _read

    async def _transact(self, steps: Transaction[R]) -> R:
        try:
            async with self._pool.connection() as db, db.transaction():
                return await self._run(db, steps)
        except _FAILURES as error:
            raise _store_error(error) from None

    async def _run(self, db: psycopg.AsyncConnection[Any], steps: Transaction[R]) -> R:
        try:
            sql, parameters = next(steps)
            while True:
                rows = await self._execute(db, sql, parameters)
                sql, parameters = steps.send(rows)
        except StopIteration as end:
            result: R = end.value
            return result

    async def _execute(
        self, db: psycopg.AsyncConnection[Any], sql: LiteralString, parameters: Sequence[Any]
    ) -> Rows:
        cursor = await db.execute(self.spelling.spelled(sql), parameters)
        return await cursor.fetchall() if cursor.description else []


def _store_error(error: Exception) -> StoreError:
    # Only the type: the message could contain the statement's values.
    return StoreError(f"The PostgreSQL key store failed: {type(error).__name__}.")
