"""Tables of the embedded store, and how a connection is opened to write them."""

from __future__ import annotations

import sqlite3
from typing import Final

from guard.gateway.storage.sqlite.connection import SqliteWriteConnection
from guard.gateway.unit import baseline

BASELINE: Final = 37
"""The version of the first schema below; those before it were never released, but for 0.7's."""

RELEASE_0_7: Final = 2
"""The version that release 0.7 wrote, which :mod:`.release_0_7` converts."""

_TABLES: Final = {"organisations", "balances", "reservations", "events", "audit", "facts"}
"""Some that every version has had."""

_OWN: Final = "CREATE INDEX directives_message ON directives (organisation_id, message);"

MIGRATIONS: tuple[str, ...] = ()
"""Steps after the baseline, in order; one that was released is never changed."""


def newest() -> int:
    """Return the version that this gateway writes."""
    return BASELINE + len(MIGRATIONS)


def connect(path: str, *, durable: bool) -> SqliteWriteConnection:
    """Open the database for writing: WAL, foreign keys, explicit transactions.

    Args:
        path: file name.
        durable: sync every commit to the disk (survives power loss). Without it a commit
            survives the death of the process, and power loss may take the newest ones away
            without harming the rest.
    """
    connection = sqlite3.connect(
        path,
        isolation_level=None,
        check_same_thread=False,
        timeout=5.0,
        uri=True,
        factory=SqliteWriteConnection,
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -65536")
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # checkpoints run beside the writer
    connection.execute("PRAGMA journal_size_limit = 8388608")  # a log that starts afresh is cut
    return connection


def read_version(connection: sqlite3.Connection) -> int:
    """Return the version of a file that this gateway can use: 0 if it is empty.

    Raises:
        RuntimeError: the file is of an unknown version, or no gateway's.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (program,) = connection.execute("PRAGMA application_id").fetchone()
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    # Other programs count their versions as well.
    if program or (names if not version else not names >= _TABLES):
        raise RuntimeError(
            "this is not a gateway's database, and nothing was changed: name another file"
        )
    if version > newest():
        raise RuntimeError(f"the database has schema {version}, newer than this gateway knows")
    if 0 < version < BASELINE and version != RELEASE_0_7:
        raise RuntimeError(
            f"the database has schema {version}, which no release has written: files of release "
            f"0.7 (schema {RELEASE_0_7}) and of schema {BASELINE} and later can be opened. Nothing "
            "was changed: go on with the version of guard that wrote it, or name another file"
        )
    return int(version)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema to the newest version, each step whole or not at all.

    Raises:
        RuntimeError: see :func:`read_version`.
    """
    version = read_version(connection)
    steps = enumerate((baseline.TABLES + _OWN, *MIGRATIONS), start=BASELINE)
    for number, script in steps:
        if number > version:
            connection.executescript(
                f"BEGIN IMMEDIATE;{script}PRAGMA user_version = {number};COMMIT;"
            )
