"""What an exception of a database means to callers; the drivers are not imported for it."""

from __future__ import annotations

import sqlite3
from typing import Final

from guard.gateway.domain.errors import StoreError, StoreFullError, UnstorableError

_SQLITE_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
"""The second where a file in shared memory, which SQLite keeps beside its log, cannot grow."""

_POSTGRES_FULL: Final = "53100"
"""``disk_full`` of PostgreSQL."""

_POSTGRES_UNSTORABLE: Final = ("22", "54")
"""Classes of its states: ``data_exception``, and a row of an index that is too long."""


def summary(exc: Exception) -> str:
    """Return what a database says, for a log: without the lines that quote the data."""
    return str(exc).partition("\n")[0]


def store_error(exc: Exception, *, writes: bool = True) -> StoreError:
    """Return what callers get in place of a database's own exception.

    Args:
        exc: the exception.
        writes: whether the caller has given what the database would not take; what cannot be read
            is nobody's fault but the gateway's.
    """
    is_full = (
        getattr(exc, "sqlite_errorcode", None) in _SQLITE_FULL
        or getattr(exc, "sqlstate", None) == _POSTGRES_FULL
    )
    if is_full:
        return StoreFullError("the gateway's disk is full: free space for its database")
    state = getattr(exc, "sqlstate", None) or ""
    if writes and state[:2] in _POSTGRES_UNSTORABLE:
        return UnstorableError("the database does not take a text or number of this request")
    return StoreError(f"the store failed: {type(exc).__name__}")
