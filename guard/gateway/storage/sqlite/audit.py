"""The audit log: append-only, each entry's hash covering the one before it.

When old entries leave, the last of them is kept as the anchor that the chain begins at, and an
entry of the chain itself says so. Nobody can shorten the log from its old end without both.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sqlite3
from collections.abc import Iterator
from typing import Any, Final

from guard.gateway.domain.records import AuditEntry
from guard.gateway.storage.port import Actor
from guard.gateway.storage.sqlite.books import Books

GENESIS: Final = "0" * 64
PRUNE: Final = "audit.prune"


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
    """Check the whole chain, from its anchor on.

    Returns:
        How many entries are right, and the ``seq`` of the first one that is not (``None``: all
        are). Removal of the newest entries can only be seen by whoever noted an earlier head.
    """
    connection.execute("BEGIN")  # the anchor and the entries of one moment
    try:
        return _verify(connection, _anchor(connection))
    finally:
        connection.execute("ROLLBACK")


def _verify(connection: sqlite3.Connection, anchor: tuple[int, str]) -> tuple[int, int | None]:
    anchor_seq, prev_hash = anchor
    expected_seq, said = anchor_seq + 1, (0, GENESIS)
    for row in connection.execute("SELECT * FROM audit ORDER BY seq"):
        seq, at_ms, organisation_id, actor, action, target, details, claimed_prev, claimed = row
        digest = entry_hash(prev_hash, seq, at_ms, organisation_id, actor, action, target, details)
        if seq != expected_seq or claimed_prev != prev_hash or claimed != digest:
            return expected_seq - 1 - anchor_seq, seq
        if action == PRUNE:
            pruned = json.loads(details)
            said = pruned["through"], pruned["hash"]
        expected_seq, prev_hash = seq + 1, digest
    if said != anchor:
        return 0, anchor_seq
    return expected_seq - 1 - anchor_seq, None


def _anchor(connection: sqlite3.Connection) -> tuple[int, str]:
    row = connection.execute("SELECT value FROM facts WHERE name = 'audit_anchor'").fetchone()
    if row is None:
        return 0, GENESIS
    try:
        seq, digest = json.loads(row[0])
        return int(seq), str(digest)
    except (TypeError, ValueError):
        return 0, "unreadable"  # the hash of nothing, so the check fails


def prune(books: Books, cutoff_ms: int, limit: int) -> int:
    """Take out the oldest entries, never the newest one, and record that; return how many.

    Args:
        cutoff_ms: entries from this moment on stay.
        limit: how many may leave at once.
    """
    execute = books.connection.execute
    rows = execute(
        "SELECT seq, at_ms, hash FROM audit ORDER BY seq LIMIT ?", (limit + 1,)
    ).fetchall()[:-1]
    old = list(itertools.takewhile(lambda row: row[1] < cutoff_ms, rows))
    if not old:
        return 0
    through, _, digest = old[-1]
    execute("DELETE FROM audit WHERE seq <= ?", (through,))
    execute(
        "INSERT OR REPLACE INTO facts VALUES ('audit_anchor', ?)", (json.dumps([through, digest]),)
    )
    details = {"through": through, "hash": digest, "entries": len(old)}
    record(books, Actor("retention"), PRUNE, str(through), details)
    return len(old)


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
