"""The key store for replicas: PostgreSQL through psycopg.

Nothing is cached: each request asks the database, so that a key revoked anywhere is refused
everywhere at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, LiteralString, Self

import psycopg

from spamdetect.service.keys import (
    UPDATE_AGE_S,
    KeyRecord,
    KeySpec,
    NewKey,
    StoredRule,
    StoreError,
    WouldWaitError,
    make_key,
)
from spamdetect.service.postgres_pool import Pool
from spamdetect.service.shares import Share, Wanted, take
from spamdetect.service.together import Together

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS spamdetect_api_keys (
  key_id text PRIMARY KEY,
  secret_hash bytea NOT NULL,
  label text NOT NULL,
  owner text NOT NULL,
  created_s double precision NOT NULL,
  revoked_s double precision,
  rate_per_minute bigint,
  quota_per_day bigint
);
CREATE UNIQUE INDEX IF NOT EXISTS spamdetect_one_active_key_per_owner
  ON spamdetect_api_keys (owner) WHERE revoked_s IS NULL AND owner <> '';
CREATE INDEX IF NOT EXISTS spamdetect_keys_by_owner
  ON spamdetect_api_keys (owner, created_s) WHERE owner <> '';
CREATE TABLE IF NOT EXISTS spamdetect_key_usage (
  key_id text NOT NULL, day text NOT NULL, requests bigint NOT NULL,
  PRIMARY KEY (key_id, day)
);
CREATE TABLE IF NOT EXISTS spamdetect_key_cells (
  key_id text PRIMARY KEY, cell_s double precision NOT NULL
);
CREATE TABLE IF NOT EXISTS spamdetect_feedback (
  feedback_id text PRIMARY KEY, key_id text NOT NULL, received_s double precision NOT NULL,
  is_spam boolean NOT NULL, text bytea NOT NULL
);
DO $$ BEGIN
  -- Looked up first: ALTER TABLE waits for a backup that reads the table, and requests for it.
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attname = 'rules_version'
                 AND attrelid = 'spamdetect_api_keys'::regclass) THEN
    ALTER TABLE spamdetect_api_keys ADD COLUMN rules_version bigint NOT NULL DEFAULT 0;
  END IF;
END $$;
CREATE TABLE IF NOT EXISTS spamdetect_key_rules (
  key_id text NOT NULL, kind text NOT NULL, rule_id text NOT NULL,
  created_s double precision NOT NULL, content bytea NOT NULL,
  PRIMARY KEY (key_id, kind, rule_id)
);
-- The content of one that is done is NULL.
CREATE TABLE IF NOT EXISTS spamdetect_bot_updates (
  bot_id bigint NOT NULL, update_id bigint NOT NULL, received_s double precision NOT NULL,
  content bytea, starts bigint NOT NULL DEFAULT 0, PRIMARY KEY (bot_id, update_id)
);
"""
_COLUMNS: Final = (
    "key_id, secret_hash, label, owner, created_s, revoked_s, rate_per_minute, quota_per_day,"
    " rules_version"
)
# Locks the key's row: changes of one key's rules take turns.
_TOUCH: Final = (
    "UPDATE spamdetect_api_keys SET rules_version = rules_version + 1"
    " WHERE key_id = %s AND revoked_s IS NULL"
)
# An arbitrary lock number: replicas that start together must not create the schema concurrently.
_SCHEMA_LOCK: Final = 7_236_114_501
_SCHEMA_TIMEOUT_S: Final = 5.0
_FOUND_MAX: Final = 1000
_FAILURES: Final = (psycopg.Error, OSError, TimeoutError, ValueError)


class PostgresKeyStore:
    """Keys in PostgreSQL, in tables named ``spamdetect_*``.

    Args:
        pool: Connections to the database.
    """

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
                await connection.execute(_SCHEMA)
        except _FAILURES as error:
            # Only the error's type: its message could contain the DSN and so the password.
            raise StoreError(
                f"Cannot open the PostgreSQL key store: {type(error).__name__}. "
                "Is the server up and the database URL right?"
            ) from None
        return cls(pool)

    def find_now(self, key_id: str) -> KeyRecord | None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        raise WouldWaitError

    async def find(self, key_id: str) -> KeyRecord | None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        return await self._find(key_id)

    async def _find_all(self, key_ids: list[str]) -> list[KeyRecord | None]:
        rows = await self._fetch(
            f"SELECT {_COLUMNS} FROM spamdetect_api_keys WHERE key_id = ANY(%s)",  # noqa: S608 - constant
            key_ids,
        )
        found = {row[0]: KeyRecord(*row) for row in rows}
        return [found.get(key_id) for key_id in key_ids]

    async def create(self, spec: KeySpec) -> NewKey:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        async with self._transaction() as db:
            return await _create(db, spec)

    async def create_first(self, spec: KeySpec) -> NewKey | None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        async with self._transaction() as db:
            await db.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
            cursor = await db.execute("SELECT 1 FROM spamdetect_api_keys LIMIT 1")
            return None if await cursor.fetchone() else await _create(db, spec)

    async def revoke(self, key_id: str) -> bool:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        async with self._transaction() as db:
            cursor = await db.execute(
                "UPDATE spamdetect_api_keys SET revoked_s = %s"
                " WHERE key_id = %s AND revoked_s IS NULL",
                (time.time(), key_id),
            )
            await db.execute("DELETE FROM spamdetect_key_rules WHERE key_id = %s", (key_id,))
            return cursor.rowcount == 1

    async def list_keys(self) -> list[KeyRecord]:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = await self._fetch(
            f"SELECT {_COLUMNS} FROM spamdetect_api_keys ORDER BY created_s, key_id"  # noqa: S608 - constant
        )
        return [KeyRecord(*row) for row in rows]

    async def active_key_of(self, owner: str) -> KeyRecord | None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = await self._fetch(
            f"SELECT {_COLUMNS} FROM spamdetect_api_keys"  # noqa: S608 - constant
            " WHERE owner = %s AND revoked_s IS NULL",
            owner,
        )
        return KeyRecord(*rows[0]) if rows else None

    async def change_owner(self, key_id: str, owner: str) -> None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        await self._fetch(
            "UPDATE spamdetect_api_keys SET owner = %s WHERE key_id = %s", owner, key_id
        )

    async def issued_since(self, owner: str, since_s: float) -> int:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = await self._fetch(
            "SELECT count(*) FROM spamdetect_api_keys WHERE owner = %s AND created_s >= %s",
            owner,
            since_s,
        )
        return int(rows[0][0])

    async def take_share(self, key_id: str, wanted: Wanted) -> Share:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        async with self._transaction() as db:
            # Locks the key's row, so that processes take turns.
            cursor = await db.execute(
                "INSERT INTO spamdetect_key_cells (key_id, cell_s) VALUES (%s, 0)"
                " ON CONFLICT (key_id) DO UPDATE SET cell_s = spamdetect_key_cells.cell_s"
                " RETURNING cell_s, extract(epoch FROM clock_timestamp())::double precision",
                (key_id,),
            )
            cell_s, now_s = await cursor.fetchone() or (0.0, time.time())
            await cursor.execute(
                "SELECT requests FROM spamdetect_key_usage WHERE key_id = %s AND day = %s",
                (key_id, wanted.day),
            )
            (used,) = await cursor.fetchone() or (0,)
            cell_s, now_used, share = take(cell_s, used, now_s, wanted)
            await cursor.execute(
                "UPDATE spamdetect_key_cells SET cell_s = %s WHERE key_id = %s", (cell_s, key_id)
            )
            await cursor.execute(
                "INSERT INTO spamdetect_key_usage (key_id, day, requests) VALUES (%s, %s, %s)"
                " ON CONFLICT (key_id, day) DO UPDATE"
                " SET requests = spamdetect_key_usage.requests + %s",
                (key_id, wanted.day, now_used, now_used - used),
            )
            return share

    async def add_usage(self, counts: dict[tuple[str, str], int]) -> None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        # In a fixed order, so that replicas that write concurrently cannot deadlock.
        ordered = sorted(counts.items())
        await self._fetch(
            "INSERT INTO spamdetect_key_usage (key_id, day, requests)"
            " SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[])"
            " ON CONFLICT (key_id, day) DO UPDATE"
            " SET requests = spamdetect_key_usage.requests + excluded.requests",
            [key_id for (key_id, _), _ in ordered],
            [day for (_, day), _ in ordered],
            [requests for _, requests in ordered],
        )

    async def usage(self, key_id: str, day: str) -> int:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = await self._fetch(
            "SELECT requests FROM spamdetect_key_usage WHERE key_id = %s AND day = %s", key_id, day
        )
        return int(rows[0][0]) if rows else 0

    async def add_feedback(self, feedback_id: str, key_id: str, text: str, is_spam: bool) -> None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        # Bytes, because PostgreSQL's text type cannot hold U+0000 and a reported text may.
        await self._fetch(
            "INSERT INTO spamdetect_feedback (feedback_id, key_id, received_s, is_spam, text)"
            " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (feedback_id) DO NOTHING",
            feedback_id,
            key_id,
            time.time(),
            is_spam,
            text.encode(),
        )

    async def feedback(self) -> list[tuple[str, bool]]:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = await self._fetch(
            "SELECT text, is_spam FROM spamdetect_feedback ORDER BY received_s, feedback_id"
        )
        return [(bytes(text).decode(), bool(is_spam)) for text, is_spam in rows]

    async def rules(self, key_id: str) -> list[StoredRule]:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = await self._fetch(
            "SELECT kind, rule_id, content FROM spamdetect_key_rules WHERE key_id = %s"
            " ORDER BY created_s, kind, rule_id",
            key_id,
        )
        return [StoredRule(kind, rule_id, bytes(content)) for kind, rule_id, content in rows]

    async def put_rules(
        self, key_id: str, rules: Sequence[StoredRule], most: int, *, drop_oldest: bool = False
    ) -> bool:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        one = key_id, rules[0].kind
        ids = [rule.rule_id for rule in rules]
        async with self._transaction() as db:
            if not (await db.execute(_TOUCH, (key_id,))).rowcount:
                return False
            cursor = await db.execute(
                "SELECT count(*) FROM spamdetect_key_rules"
                " WHERE key_id = %s AND kind = %s AND rule_id <> ALL(%s)",
                (*one, ids),
            )
            found = await cursor.fetchone()
            if found is not None and found[0] + len(set(ids)) > most and not drop_oldest:
                return False
            now_s = time.time()
            await cursor.executemany(
                "INSERT INTO spamdetect_key_rules (key_id, kind, rule_id, created_s, content)"
                " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (key_id, kind, rule_id) DO UPDATE"
                " SET created_s = excluded.created_s, content = excluded.content",
                [(*one, rule.rule_id, now_s, rule.content) for rule in rules],
            )
            await db.execute(
                "DELETE FROM spamdetect_key_rules WHERE key_id = %s AND kind = %s AND rule_id IN ("
                " SELECT rule_id FROM spamdetect_key_rules WHERE key_id = %s AND kind = %s"
                " ORDER BY created_s DESC, rule_id OFFSET %s)",
                (*one, *one, most),
            )
            return True

    async def delete_rule(self, key_id: str, kind: str, rule_id: str) -> bool:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        async with self._transaction() as db:
            await db.execute(_TOUCH, (key_id,))
            cursor = await db.execute(
                "DELETE FROM spamdetect_key_rules WHERE key_id = %s AND kind = %s AND rule_id = %s",
                (key_id, kind, rule_id),
            )
            return cursor.rowcount == 1

    async def take_updates(self, bot_id: int, updates: dict[int, bytes]) -> list[int]:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        now_s = time.time()
        async with self._transaction() as db:
            await db.execute(
                "DELETE FROM spamdetect_bot_updates"
                " WHERE bot_id = %s AND content IS NULL AND received_s < %s",
                (bot_id, now_s - UPDATE_AGE_S),
            )
            cursor = await db.execute(
                "INSERT INTO spamdetect_bot_updates (bot_id, update_id, received_s, content)"
                " SELECT %s, number, %s, content"
                " FROM unnest(%s::bigint[], %s::bytea[]) AS given (number, content)"
                " ON CONFLICT (bot_id, update_id) DO NOTHING RETURNING update_id",
                (bot_id, now_s, list(updates), list(updates.values())),
            )
            return [number for (number,) in await cursor.fetchall()]

    async def finish_update(self, bot_id: int, update_id: int) -> None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        await self._fetch(
            "UPDATE spamdetect_bot_updates SET content = NULL WHERE bot_id = %s AND update_id = %s",
            bot_id,
            update_id,
        )

    async def unfinished_updates(self, bot_id: int) -> dict[int, tuple[bytes, int]]:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = await self._fetch(
            "UPDATE spamdetect_bot_updates SET starts = starts + 1"
            " WHERE bot_id = %s AND content IS NOT NULL"
            " RETURNING update_id, content, starts - 1",
            bot_id,
        )
        return {number: (bytes(content), starts) for number, content, starts in rows}

    async def ping(self) -> None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        await self._fetch("SELECT 1 FROM spamdetect_api_keys LIMIT 1")

    async def close(self) -> None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        await self._pool.close()

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        try:
            async with self._pool.connection() as db, db.transaction():
                yield db
        except _FAILURES as error:
            raise _store_error(error) from None

    async def _fetch(self, sql: LiteralString, *parameters: Any) -> list[Any]:
        try:
            async with self._pool.connection() as connection:
                cursor = await connection.execute(sql, parameters)
                return await cursor.fetchall() if cursor.description else []
        except _FAILURES as error:
            raise _store_error(error) from None


async def _create(db: psycopg.AsyncConnection[Any], spec: KeySpec) -> NewKey:
    new, secret_hash = make_key()
    now_s = time.time()
    earlier = None
    if spec.owner:
        # Two concurrent requests of one owner take turns, instead of one failing.
        await db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (spec.owner,))
        cursor = await db.execute(
            "UPDATE spamdetect_api_keys SET revoked_s = %s"
            " WHERE owner = %s AND revoked_s IS NULL RETURNING key_id, rules_version",
            (now_s, spec.owner),
        )
        earlier = await cursor.fetchone()
    old_id, version = earlier or ("", 0)
    if version:
        await db.execute(
            "UPDATE spamdetect_key_rules SET key_id = %s WHERE key_id = %s", (new.key_id, old_id)
        )
    await db.execute(
        f"INSERT INTO spamdetect_api_keys ({_COLUMNS})"  # noqa: S608 - constant
        " VALUES (%s, %s, %s, %s, %s, NULL, %s, %s, %s)",
        (new.key_id, secret_hash, spec.label, spec.owner, now_s, spec.rate_per_minute,
         spec.quota_per_day, version),
    )  # fmt: skip
    return new


def _store_error(error: Exception) -> StoreError:
    # Only the type: the message could contain the statement's values.
    return StoreError(f"The PostgreSQL key store failed: {type(error).__name__}.")
