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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, LiteralString, Self, TypeVar

from spamdetect.service.keys import KeyRecord, StoreError
from spamdetect.service.store import SELECT_KEYS, KeyStore, Rows, Spelling, Transaction

R = TypeVar("R")

_ADD_RULES_VERSION = "ALTER TABLE api_keys ADD COLUMN rules_version INTEGER NOT NULL DEFAULT 0"
_BUSY_TIMEOUT_S = 5.0
_MAX_FOUND = 10_000


class SqliteKeyStore(KeyStore):
    """Keys in a SQLite file, readable by its owner only.

    Args:
        path: The file; folders and file are created with modes 0700 and 0600.
    """

    spelling = Spelling(
        prefix="",
        parameter="?",
        lock="",
        now_s="now_s()",
        integer="INTEGER",
        real="REAL",
        blob="BLOB",
        boolean="INTEGER",
        any_text="TEXT",
        encoded="CAST(? AS TEXT)",
        by_key="WITHOUT ROWID",
    )

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
                store._writer.executescript(cls.spelling.schema)
                try:
                    store._writer.execute(_ADD_RULES_VERSION)
                except sqlite3.OperationalError as error:
                    if "duplicate column" not in str(error):
                        raise
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"Cannot open the key store {path}: {error}.") from error
        return store

    async def find(self, key_id: str) -> KeyRecord | None:
        """See :class:`~spamdetect.service.store.KeyStore`."""
        return self.find_now(key_id)

    def find_now(self, key_id: str) -> KeyRecord | None:
        """See :class:`~spamdetect.service.store.KeyStore`."""
        if not self._checked:
            self._forget_changed()
            # Requests of the same turn of the loop share the check.
            self._checked = True
            asyncio.get_running_loop().call_soon(self._check_again)
        record = self._found.get(key_id)
        if record is None:
            rows = self._rows(f"{SELECT_KEYS} WHERE key_id = ?", (key_id,))
            if rows:
                record = self._found[key_id] = KeyRecord(*rows[0])
        return record

    def _forget_changed(self) -> None:
        # The version counts other connections' changes; this connection only reads.
        ((version,),) = self._rows("PRAGMA data_version", ())
        if version != self._found_version or len(self._found) >= _MAX_FOUND:
            self._found.clear()
            self._found_version = version

    def _check_again(self) -> None:
        self._checked = False

    async def close(self) -> None:
        """See :class:`~spamdetect.service.store.KeyStore`."""
        with self._writer_lock:
            self._writer.close()
        self._reader.close()

    async def _read(self, sql: LiteralString, *parameters: Any) -> Rows:
        return self._rows(sql, parameters)

    def _rows(self, sql: LiteralString, parameters: Sequence[Any]) -> Rows:
        try:
            return self._execute(self._reader, sql, parameters)
        except sqlite3.Error as error:
            raise StoreError(f"The key store {self._path} cannot be read: {error}.") from error

    async def _change(self, sql: LiteralString, *parameters: Any) -> Rows:
        def steps() -> Transaction[Rows]:
            return (yield sql, parameters)

        return await self._transact(steps())

    async def _transact(self, steps: Transaction[R]) -> R:
        return await asyncio.to_thread(self._write, steps)

    def _write(self, steps: Transaction[R]) -> R:
        with self._writer_lock:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    result = self._run(steps)
                except BaseException:
                    self._writer.execute("ROLLBACK")
                    raise
                self._writer.execute("COMMIT")
            except sqlite3.Error as error:
                raise StoreError(
                    f"The key store {self._path} cannot be written: {error}."
                ) from error
            return result

    def _run(self, steps: Transaction[R]) -> R:
        try:
            sql, parameters = next(steps)
            while True:
                rows = self._execute(self._writer, sql, parameters)
                sql, parameters = steps.send(rows)
        except StopIteration as end:
            result: R = end.value
            return result

    def _execute(
        self, connection: sqlite3.Connection, sql: LiteralString, parameters: Sequence[Any]
    ) -> Rows:
        return connection.execute(self.spelling.spelled(sql), parameters).fetchall()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # What is deleted is overwritten: the texts of updates, reports and appeals.
    connection.execute("PRAGMA secure_delete = ON")
    connection.create_function("now_s", 0, time.time)
    return connection
