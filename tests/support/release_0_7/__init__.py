"""Files of release 0.7: its own SQL, and the rows that its gateway wrote.

They hold three days of calls and charges, an exhausted workflow, a kill, a pause, an open
reservation, a policy, a price, an operator and an audit log.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

SCHEMA: Final = 2
WRITTEN_AT_MS: Final = 1_795_270_000_000
API_KEY: Final = "gdk_F4bJ56-irDDRT1PlmluhEjGL3lvi9q0fin7QgzmpMKA"

_FOLDER: Final = Path(__file__).parent


def empty(path: Path) -> sqlite3.Connection:
    """Make a file with 0.7's tables and nothing in them."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript((_FOLDER / "schema.sql").read_text())
    connection.execute(f"PRAGMA user_version = {SCHEMA}")
    return connection


def filled(path: Path) -> None:
    """Make a file as the gateway of 0.7 left it."""
    connection = empty(path)
    connection.executescript(f"BEGIN;{(_FOLDER / 'rows.sql').read_text()}COMMIT;")
    connection.close()
