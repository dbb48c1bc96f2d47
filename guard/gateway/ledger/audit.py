"""The audit log: append-only, with the hash of each entry covering the entry before it.

When old entries are deleted, the last of them is kept as the anchor of the chain, and an entry of
the chain records the deletion. The log cannot be shortened from its old end without both.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from typing import Any, Final

from guard.gateway.domain.commands import Actor
from guard.gateway.unit.state import AuditRow
from guard.gateway.unit.unit_of_work import UnitOfWork

GENESIS: Final = "0" * 64
"""The hash before the first entry."""
PRUNE: Final = "audit.prune"


def record(
    unit: UnitOfWork,
    actor: Actor,
    action: str,
    target: str,
    details: dict[str, Any],
    organisation_id: str | None = None,
) -> None:
    """Append one action, in the transaction of the action itself: neither exists alone."""
    head = unit.directory.audit_head()
    seq, prev_hash = (1, GENESIS) if head is None else (head[0] + 1, head[1])
    text = json.dumps(details, sort_keys=True, separators=(",", ":"))
    row = AuditRow(
        seq, unit.now_ms, organisation_id, actor.name, action, target, text, prev_hash, ""
    )
    unit.directory.add_audit(row._replace(hash=_hash(prev_hash, row)))


def _hash(prev_hash: str, row: AuditRow) -> str:
    """Return the hash of an entry over all its fields, unambiguously joined."""
    fields = [prev_hash, row.seq, row.at_ms, row.organisation_id, row.actor, row.action,
              row.target, row.details]  # fmt: skip
    joined = json.dumps(fields, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(joined.encode()).hexdigest()


def verify(
    rows: Iterable[AuditRow],
    anchor: tuple[int, str] | None,
    noted: tuple[int, str] | None = None,
) -> tuple[int, int | None]:
    """Check the whole chain, from its anchor on.

    Write access to the database is enough for a whole new chain, or to remove the newest entries.
    Both show only against an earlier head that was noted elsewhere.

    Args:
        rows: every entry, in order.
        anchor: the number and the hash of the last deleted entry; ``None``: none was deleted.
        noted: the number and the hash of an entry that the chain has to contain, or has to record
            as the last one of a deletion.

    Returns:
        How many entries are correct, and the ``seq`` of the first one that is not (``None``: all
        are), or of the noted one when it is not in the chain.
    """
    anchor_seq, prev_hash = anchor or (0, GENESIS)
    known = {anchor or (0, GENESIS)}
    expected_seq, stated = anchor_seq + 1, (0, GENESIS)
    for row in rows:
        digest = _hash(prev_hash, row)
        if row.seq != expected_seq or row.prev_hash != prev_hash or row.hash != digest:
            return expected_seq - 1 - anchor_seq, row.seq
        if row.action == PRUNE:
            pruned = json.loads(row.details)
            stated = pruned["through"], pruned["hash"]
            known.add(stated)
        if noted is not None and row.seq == noted[0]:
            known.add((row.seq, digest))
        expected_seq, prev_hash = row.seq + 1, digest
    # The anchor stands outside of the chain, so it is trusted only as far as the newest recorded
    # deletion confirms it.
    if stated != (anchor or (0, GENESIS)):
        return 0, anchor_seq
    if noted is not None and noted not in known:
        return expected_seq - 1 - anchor_seq, noted[0]
    return expected_seq - 1 - anchor_seq, None


def prune(unit: UnitOfWork, cutoff_ms: int, limit: int) -> int:
    """Delete the oldest entries, never the newest one, and record that; return how many.

    Args:
        unit: the unit of work.
        cutoff_ms: entries from this moment on stay.
        limit: how many to delete at most.
    """
    old = list(
        itertools.takewhile(lambda row: row.at_ms < cutoff_ms, unit.directory.oldest_audit(limit))
    )
    if not old:
        return 0
    last = old[-1]
    unit.directory.drop_audit(last)
    details = {"through": last.seq, "hash": last.hash, "entries": len(old)}
    record(unit, Actor("retention"), PRUNE, str(last.seq), details)
    return len(old)
