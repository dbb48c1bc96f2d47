"""Restores a backup as a gateway's database, once it has been checked."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from msgspec import Struct

from guard.gateway.domain.errors import StoreError
from guard.gateway.domain.records import LedgerReport
from guard.gateway.ledger.audit import GENESIS
from guard.gateway.storage.sql import verify
from guard.gateway.storage.sqlite import file_lock
from guard.gateway.storage.sqlite.connection import SqliteReadConnection
from guard.gateway.storage.sqlite.migrations import (
    SqliteMigrator,
    copy_up_to_date,
    partial,
    put_in_place,
)


class Restored(Struct, frozen=True):
    """The result of a restore.

    Attributes:
        version: of the backup's schema; it was migrated to this gateway's.
        ledger: balances, open reservations and events; no problems.
        audit_head: number and hash of the newest audit entry.
        kept: the new name of the database that was there before.
    """

    version: int
    ledger: LedgerReport
    audit_head: tuple[int, str]
    kept: Path | None


def restore(
    source: Path, target: Path, *, replace: bool = False, expect: tuple[int, str] | None = None
) -> Restored:
    """Copy a backup to the name that a gateway opens, if its checks succeed.

    The copy is checked before it gets that name, in one rename: pages and indexes, every balance
    against its entries, and the audit log's chain. A database that was there is kept beside it.

    Args:
        source: the backup.
        target: the database; no gateway may have it open.
        replace: whether there may be a database already.
        expect: number and hash of an audit entry that has to be in the backup.

    Raises:
        StoreError: what is wrong; the target is as it was.
    """
    try:
        version = SqliteMigrator(source).status().version
        if not version:
            raise RuntimeError("the backup is empty")
        if target.exists() and os.path.samefile(source, target):
            raise RuntimeError("the backup and the database are the same file")
        with file_lock.held(target):
            # Under the lock: until here another process could have made one.
            if target.exists() and not replace:
                raise FileExistsError(f"{target} is there already; --replace keeps it beside")
            with partial(target, "restoring") as copy:
                copy_up_to_date(source, copy)
                ledger, head = _checked(copy, expect)
                kept = put_in_place(copy, target, "replaced")
    except (OSError, RuntimeError, sqlite3.Error) as exc:
        raise StoreError(str(exc)) from exc
    return Restored(version, ledger, head, kept)


def _checked(copy: Path, expect: tuple[int, str] | None) -> tuple[LedgerReport, tuple[int, str]]:
    reading = SqliteReadConnection(copy)
    try:
        ledger = verify.verify_ledger(reading)
        if ledger.problems:
            raise RuntimeError("the backup's ledger does not add up: " + "; ".join(ledger.problems))
        _, wrong = verify.verify_audit(reading, expect)
        if wrong is not None:
            raise RuntimeError(f"the backup's audit log is wrong at entry {wrong}")
        rows = reading.rows("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1")
        return ledger, (rows[0][0], rows[0][1]) if rows else (0, GENESIS)
    finally:
        reading.sqlite.close()
