"""Translates exceptions of the databases for callers, without importing the drivers."""

from __future__ import annotations

import sqlite3
from typing import Final

from guard.gateway.domain.errors import StoreError, StoreFullError, UnstorableError

_SQLITE_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
"""The second is for the shared-memory file that SQLite keeps beside its log, if it cannot grow."""

_POSTGRES_FULL: Final = "53100"
"""``disk_full`` of PostgreSQL."""

_POSTGRES_UNSTORABLE: Final = ("22", "54")
"""Classes of its states: ``data_exception``, and a row of an index that is too long."""


def summary(exc: Exception) -> str:
    """Return the first line of an error, for a log: the lines after it quote the data."""
    return str(exc).partition("\n")[0]


def store_error(exc: Exception, *, writes: bool = True) -> StoreError:
    """Return the exception that callers get in place of a database's own.

    Args:
        exc: the exception.
        writes: whether the statement writes the caller's data. Only then may the data be at fault;
            if a query fails, the gateway is.
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
