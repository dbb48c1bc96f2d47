"""What an exception of a database means to callers; the drivers are not imported for it."""

from __future__ import annotations

import sqlite3
from typing import Final

from guard.gateway.domain.errors import StoreError, StoreFullError

_SQLITE_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
"""The second where a file in shared memory, which SQLite keeps beside its log, cannot grow."""

_POSTGRES_FULL: Final = "53100"
"""``disk_full`` of PostgreSQL."""


def store_error(exc: Exception) -> StoreError:
    """Return what callers get in place of a database's own exception."""
    is_full = (
        getattr(exc, "sqlite_errorcode", None) in _SQLITE_FULL
        or getattr(exc, "sqlstate", None) == _POSTGRES_FULL
    )
    if is_full:
        return StoreFullError("the gateway's disk is full: free space for its database")
    return StoreError(f"the store failed: {type(exc).__name__}")
