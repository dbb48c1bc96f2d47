"""The embedded key store: one SQLite file.

Reads run on the event loop's thread: a lookup by primary key from the page cache takes a few
microseconds, less than handing it to another thread, and in WAL mode no writer blocks it.
Each request checks whether the file has changed, so that a key revoked by another process is
refused at once; only then is a cached key read again.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from spamdetect.service.keys import (
    UPDATE_AGE_S,
    KeyRecord,
    KeySpec,
    NewKey,
    StoredRule,
    StoreError,
    make_key,
)
from spamdetect.service.shares import Share, Wanted, take

R = TypeVar("R")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS api_keys (
  key_id TEXT PRIMARY KEY,
  secret_hash BLOB NOT NULL,
  label TEXT NOT NULL,
  owner TEXT NOT NULL,
  created_s REAL NOT NULL,
  revoked_s REAL,
  rate_per_minute INTEGER,
  quota_per_day INTEGER
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS one_active_key_per_owner
  ON api_keys (owner) WHERE revoked_s IS NULL AND owner <> '';
CREATE INDEX IF NOT EXISTS keys_by_owner ON api_keys (owner, created_s) WHERE owner <> '';
CREATE TABLE IF NOT EXISTS key_usage (
  key_id TEXT NOT NULL, day TEXT NOT NULL, requests INTEGER NOT NULL,
  PRIMARY KEY (key_id, day)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS key_cells (
  key_id TEXT PRIMARY KEY, cell_s REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS feedback (
  feedback_id TEXT PRIMARY KEY, key_id TEXT NOT NULL, received_s REAL NOT NULL,
  is_spam INTEGER NOT NULL, text TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS key_rules (
  key_id TEXT NOT NULL, kind TEXT NOT NULL, rule_id TEXT NOT NULL, created_s REAL NOT NULL,
  content BLOB NOT NULL, PRIMARY KEY (key_id, kind, rule_id)
) WITHOUT ROWID;
-- The content of one that is done is NULL.
CREATE TABLE IF NOT EXISTS bot_updates (
  bot_id INTEGER NOT NULL, update_id INTEGER NOT NULL, received_s REAL NOT NULL, content BLOB,
  starts INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (bot_id, update_id)
) WITHOUT ROWID;
"""
# For a store of an earlier version.
_ADD_RULES_VERSION = "ALTER TABLE api_keys ADD COLUMN rules_version INTEGER NOT NULL DEFAULT 0"
_COLUMNS = (
    "key_id, secret_hash, label, owner, created_s, revoked_s, rate_per_minute, quota_per_day,"
    " rules_version"
)
_BUSY_TIMEOUT_S = 5.0
_MAX_FOUND = 10_000


class SqliteKeyStore:
    """Keys in a SQLite file, readable by its owner only.

    Args:
        path: The file; folders and file are created with modes 0700 and 0600.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = _connect(path)
        self._writer = _connect(path)
        self._writer_lock = threading.Lock()
        self._found: dict[str, KeyRecord] = {}
        self._found_version = -1
        self._checked = False

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open or create the store.

        Raises:
            StoreError: The file cannot be created or opened, or is not a database.
        """
        return await asyncio.to_thread(cls._open, path)

    @classmethod
    def _open(cls, path: Path) -> Self:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Created before SQLite does, so that neither it nor its WAL is ever readable by others.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
            store = cls(path)
            with store._writer_lock:
                store._writer.executescript(_SCHEMA)
                try:
                    store._writer.execute(_ADD_RULES_VERSION)
                except sqlite3.OperationalError as error:
                    if "duplicate column" not in str(error):
                        raise
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"Cannot open the key store {path}: {error}.") from error
        return store

    async def find(self, key_id: str) -> KeyRecord | None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        return self.find_now(key_id)

    def find_now(self, key_id: str) -> KeyRecord | None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        if not self._checked:
            self._forget_changed()
            # Requests of the same turn of the loop share the check.
            self._checked = True
            asyncio.get_running_loop().call_soon(self._check_again)
        record = self._found.get(key_id)
        if record is None:
            rows = self._read(f"SELECT {_COLUMNS} FROM api_keys WHERE key_id = ?", (key_id,))  # noqa: S608 - constant
            if rows:
                record = self._found[key_id] = KeyRecord(*rows[0])
        return record

    def _forget_changed(self) -> None:
        # The version counts other connections' changes; this connection only reads.
        ((version,),) = self._read("PRAGMA data_version", ())
        if version != self._found_version or len(self._found) >= _MAX_FOUND:
            self._found.clear()
            self._found_version = version

    def _check_again(self) -> None:
        self._checked = False

    async def create(self, spec: KeySpec) -> NewKey:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        return await self._write(lambda db: _create(db, spec))

    async def create_first(self, spec: KeySpec) -> NewKey | None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""

        def write(db: sqlite3.Connection) -> NewKey | None:
            any_key = db.execute("SELECT 1 FROM api_keys LIMIT 1").fetchone()
            return None if any_key else _create(db, spec)

        return await self._write(write)

    async def revoke(self, key_id: str) -> bool:
        """See :class:`~spamdetect.service.keys.KeyStore`."""

        def write(db: sqlite3.Connection) -> bool:
            cursor = db.execute(
                "UPDATE api_keys SET revoked_s = ? WHERE key_id = ? AND revoked_s IS NULL",
                (time.time(), key_id),
            )
            db.execute("DELETE FROM key_rules WHERE key_id = ?", (key_id,))
            return cursor.rowcount == 1

        return await self._write(write)

    async def list_keys(self) -> list[KeyRecord]:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = self._read(f"SELECT {_COLUMNS} FROM api_keys ORDER BY created_s, key_id", ())  # noqa: S608 - constant
        return [KeyRecord(*row) for row in rows]

    async def active_key_of(self, owner: str) -> KeyRecord | None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = self._read(
            f"SELECT {_COLUMNS} FROM api_keys WHERE owner = ? AND revoked_s IS NULL",  # noqa: S608 - constant
            (owner,),
        )
        return KeyRecord(*rows[0]) if rows else None

    async def change_owner(self, key_id: str, owner: str) -> None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        await self._write(
            lambda db: db.execute("UPDATE api_keys SET owner = ? WHERE key_id = ?", (owner, key_id))
        )

    async def issued_since(self, owner: str, since_s: float) -> int:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = self._read(
            "SELECT count(*) FROM api_keys WHERE owner = ? AND created_s >= ?", (owner, since_s)
        )
        return int(rows[0][0])

    async def take_share(self, key_id: str, wanted: Wanted) -> Share:
        """See :class:`~spamdetect.service.keys.KeyStore`."""

        def write(db: sqlite3.Connection) -> Share:
            cell = db.execute("SELECT cell_s FROM key_cells WHERE key_id = ?", (key_id,)).fetchone()
            slot = key_id, wanted.day
            used = db.execute(
                "SELECT requests FROM key_usage WHERE key_id = ? AND day = ?", slot
            ).fetchone()
            cell_s, now_used, share = take(
                cell[0] if cell else 0.0, used[0] if used else 0, time.time(), wanted
            )
            db.execute("INSERT OR REPLACE INTO key_cells VALUES (?, ?)", (key_id, cell_s))
            db.execute("INSERT OR REPLACE INTO key_usage VALUES (?, ?, ?)", (*slot, now_used))
            return share

        return await self._write(write)

    async def add_usage(self, counts: dict[tuple[str, str], int]) -> None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""

        def write(db: sqlite3.Connection) -> None:
            db.executemany(
                "INSERT INTO key_usage (key_id, day, requests) VALUES (?, ?, ?)"
                " ON CONFLICT (key_id, day) DO UPDATE SET requests = requests + excluded.requests",
                [(key_id, day, requests) for (key_id, day), requests in counts.items()],
            )

        await self._write(write)

    async def usage(self, key_id: str, day: str) -> int:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = self._read(
            "SELECT requests FROM key_usage WHERE key_id = ? AND day = ?", (key_id, day)
        )
        return int(rows[0][0]) if rows else 0

    async def add_feedback(self, feedback_id: str, key_id: str, text: str, is_spam: bool) -> None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""

        def write(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO feedback (feedback_id, key_id, received_s, is_spam, text)"
                " VALUES (?, ?, ?, ?, ?) ON CONFLICT (feedback_id) DO NOTHING",
                (feedback_id, key_id, time.time(), is_spam, text),
            )

        await self._write(write)

    async def feedback(self) -> list[tuple[str, bool]]:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = self._read("SELECT text, is_spam FROM feedback ORDER BY received_s, feedback_id", ())
        return [(text, bool(is_spam)) for text, is_spam in rows]

    async def rules(self, key_id: str) -> list[StoredRule]:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        rows = self._read(
            "SELECT kind, rule_id, content FROM key_rules WHERE key_id = ?"
            " ORDER BY created_s, kind, rule_id",
            (key_id,),
        )
        return [StoredRule(*row) for row in rows]

    async def put_rules(
        self, key_id: str, rules: Sequence[StoredRule], most: int, *, drop_oldest: bool = False
    ) -> bool:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        one = key_id, rules[0].kind
        ids = {rule.rule_id for rule in rules}

        def write(db: sqlite3.Connection) -> bool:
            if not _touch(db, key_id):
                return False
            known = db.execute("SELECT rule_id FROM key_rules WHERE key_id = ? AND kind = ?", one)
            if len(ids.union(row[0] for row in known)) > most and not drop_oldest:
                return False
            now_s = time.time()
            db.executemany(
                "INSERT OR REPLACE INTO key_rules (key_id, kind, rule_id, created_s, content)"
                " VALUES (?, ?, ?, ?, ?)",
                [(*one, rule.rule_id, now_s, rule.content) for rule in rules],
            )
            db.execute(
                "DELETE FROM key_rules WHERE key_id = ? AND kind = ? AND rule_id IN ("
                " SELECT rule_id FROM key_rules WHERE key_id = ? AND kind = ?"
                " ORDER BY created_s DESC, rule_id LIMIT -1 OFFSET ?)",
                (*one, *one, most),
            )
            return True

        return await self._write(write)

    async def delete_rule(self, key_id: str, kind: str, rule_id: str) -> bool:
        """See :class:`~spamdetect.service.keys.KeyStore`."""

        def write(db: sqlite3.Connection) -> bool:
            _touch(db, key_id)
            cursor = db.execute(
                "DELETE FROM key_rules WHERE key_id = ? AND kind = ? AND rule_id = ?",
                (key_id, kind, rule_id),
            )
            return cursor.rowcount == 1

        return await self._write(write)

    async def take_updates(self, bot_id: int, updates: dict[int, bytes]) -> list[int]:
        """See :class:`~spamdetect.service.keys.KeyStore`."""

        def write(db: sqlite3.Connection) -> list[int]:
            now_s = time.time()
            db.execute(
                "DELETE FROM bot_updates WHERE bot_id = ? AND content IS NULL AND received_s < ?",
                (bot_id, now_s - UPDATE_AGE_S),
            )
            taken = (
                db.execute(
                    "INSERT INTO bot_updates (bot_id, update_id, received_s, content)"
                    " VALUES (?, ?, ?, ?) ON CONFLICT (bot_id, update_id) DO NOTHING"
                    " RETURNING update_id",
                    (bot_id, number, now_s, content),
                ).fetchone()
                for number, content in updates.items()
            )
            return [row[0] for row in taken if row]

        return await self._write(write)

    async def finish_update(self, bot_id: int, update_id: int) -> None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        await self._write(
            lambda db: db.execute(
                "UPDATE bot_updates SET content = NULL WHERE bot_id = ? AND update_id = ?",
                (bot_id, update_id),
            )
        )

    async def unfinished_updates(self, bot_id: int) -> dict[int, tuple[bytes, int]]:
        """See :class:`~spamdetect.service.keys.KeyStore`."""

        def write(db: sqlite3.Connection) -> list[tuple[int, bytes, int]]:
            return db.execute(
                "UPDATE bot_updates SET starts = starts + 1"
                " WHERE bot_id = ? AND content IS NOT NULL"
                " RETURNING update_id, content, starts - 1",
                (bot_id,),
            ).fetchall()

        return {number: (content, starts) for number, content, starts in await self._write(write)}

    async def ping(self) -> None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        self._read("SELECT count(*) FROM api_keys WHERE key_id = ''", ())

    async def close(self) -> None:
        """See :class:`~spamdetect.service.keys.KeyStore`."""
        with self._writer_lock:
            self._writer.close()
        self._reader.close()

    def _read(self, sql: str, parameters: tuple[Any, ...]) -> list[Any]:
        try:
            return self._reader.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"The key store {self._path} cannot be read: {error}.") from error

    async def _write(self, write: Callable[[sqlite3.Connection], R]) -> R:
        def transaction() -> R:
            with self._writer_lock:
                try:
                    self._writer.execute("BEGIN IMMEDIATE")
                    try:
                        result = write(self._writer)
                    except BaseException:
                        self._writer.execute("ROLLBACK")
                        raise
                    self._writer.execute("COMMIT")
                except sqlite3.Error as error:
                    raise StoreError(
                        f"The key store {self._path} cannot be written: {error}."
                    ) from error
                return result

        return await asyncio.to_thread(transaction)


def _create(db: sqlite3.Connection, spec: KeySpec) -> NewKey:
    new, secret_hash = make_key()
    now_s = time.time()
    earlier = None
    if spec.owner:
        earlier = db.execute(
            "UPDATE api_keys SET revoked_s = ? WHERE owner = ? AND revoked_s IS NULL"
            " RETURNING key_id, rules_version",
            (now_s, spec.owner),
        ).fetchone()
    old_id, version = earlier or ("", 0)
    if version:
        db.execute("UPDATE key_rules SET key_id = ? WHERE key_id = ?", (new.key_id, old_id))
    db.execute(
        f"INSERT INTO api_keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, NULL, ?, ?, ?)",  # noqa: S608 - constant
        (
            new.key_id,
            secret_hash,
            spec.label,
            spec.owner,
            now_s,
            spec.rate_per_minute,
            spec.quota_per_day,
            version,
        ),
    )
    return new


def _touch(db: sqlite3.Connection, key_id: str) -> bool:
    """Count a change of an active key's rules; false when there is no such key."""
    cursor = db.execute(
        "UPDATE api_keys SET rules_version = rules_version + 1"
        " WHERE key_id = ? AND revoked_s IS NULL",
        (key_id,),
    )
    return cursor.rowcount == 1


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # What is deleted is overwritten: the texts of updates, reports and appeals.
    connection.execute("PRAGMA secure_delete = ON")
    return connection
