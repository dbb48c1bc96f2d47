"""The audit log: append-only, each entry's hash covering the one before it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from typing import Any, Final

from guard.gateway.domain.records import AuditEntry
from guard.gateway.storage.base import Actor
from guard.gateway.storage.sqlite_books import Books

GENESIS: Final = "0" * 64


def record(
    books: Books,
    actor: Actor,
    action: str,
    target: str,
    details: dict[str, Any],
    organisation_id: str | None = None,
) -> None:
    """Append one act, in the transaction of the act itself."""
    row = books.connection.execute(
        "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    seq, prev_hash = (row[0] + 1, row[1]) if row else (1, GENESIS)
    text = json.dumps(details, sort_keys=True, separators=(",", ":"))
    digest = entry_hash(
        prev_hash, seq, books.now, organisation_id, actor.name, action, target, text
    )
    books.connection.execute(
        "INSERT INTO audit VALUES (?,?,?,?,?,?,?,?,?)",
        (seq, books.now, organisation_id, actor.name, action, target, text, prev_hash, digest),
    )


def entry_hash(
    prev_hash: str,
    seq: int,
    at_ms: int,
    organisation_id: str | None,
    actor: str,
    action: str,
    target: str,
    details: str,
) -> str:
    """Return the hash of an entry over all its fields, unambiguously joined."""
    fields = [prev_hash, seq, at_ms, organisation_id, actor, action, target, details]
    joined = json.dumps(fields, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(joined.encode()).hexdigest()


def verify(connection: sqlite3.Connection) -> tuple[int, int | None]:
    """Check the whole chain.

    Returns:
        How many entries are right, and the ``seq`` of the first one that is not (``None``: all
        are). Removal of the newest entries can only be seen by whoever noted an earlier head.
    """
    expected_seq, prev_hash = 1, GENESIS
    for row in connection.execute("SELECT * FROM audit ORDER BY seq"):
        seq, at_ms, organisation_id, actor, action, target, details, claimed_prev, claimed = row
        digest = entry_hash(prev_hash, seq, at_ms, organisation_id, actor, action, target, details)
        if seq != expected_seq or claimed_prev != prev_hash or claimed != digest:
            return expected_seq - 1, seq
        expected_seq, prev_hash = seq + 1, digest
    return expected_seq - 1, None


def entries(
    connection: sqlite3.Connection, organisation_id: str | None, after: int, limit: int
) -> Iterator[AuditEntry]:
    """Return entries in order; those of one organisation, or all when it is ``None``."""
    where = "" if organisation_id is None else " AND organisation_id = ?"
    arguments: list[Any] = [after] if organisation_id is None else [after, organisation_id]
    for row in connection.execute(
        f"SELECT * FROM audit WHERE seq > ?{where} ORDER BY seq LIMIT ?",  # noqa: S608 (constant text)
        [*arguments, limit],
    ):
        yield entry_from_row(row)


def entry_from_row(row: tuple[Any, ...]) -> AuditEntry:
    """Build an entry from its row."""
    return AuditEntry(
        seq=row[0], at_ms=row[1], organisation_id=row[2], actor=row[3], action=row[4],
        target=row[5], details=json.loads(row[6]), prev_hash=row[7], hash=row[8],
    )  # fmt: skip
