"""Organisations, keys and nonces on the writer's working set."""

from __future__ import annotations

from typing import Any

import msgspec

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.storage.port import (
    Actor,
    Announcement,
    ConflictError,
    KeySecret,
    NotFoundError,
)
from guard.gateway.storage.sqlite import audit as sqlite_audit
from guard.gateway.storage.sqlite.books import Books


def create_organisation(books: Books, actor: Actor, name: str) -> records.Organisation:
    """Add a tenant.

    Raises:
        ConflictError: the name is taken.
    """
    execute = books.connection.execute
    if execute("SELECT 1 FROM organisations WHERE name = ?", (name,)).fetchone():
        raise ConflictError("an organisation of this name exists")
    created = records.Organisation(
        organisation_id=books.ids.uuid7(books.now),
        name=name,
        created_at_ms=books.now,
        settings=records.OrganisationSettings(),
    )
    execute(
        "INSERT INTO organisations VALUES (?,?,?,?,0)",
        (created.organisation_id, name, books.now, wire.encode(created.settings).decode()),
    )
    books.reload_org(created.organisation_id)
    sqlite_audit.record(
        books, actor, "organisation.create", name, {}, organisation_id=created.organisation_id
    )
    return created


def update_organisation(
    books: Books, actor: Actor, organisation_id: str, settings: records.OrganisationSettings
) -> records.Organisation:
    """Change a tenant's settings."""
    changed = books.connection.execute(
        "UPDATE organisations SET settings = ? WHERE organisation_id = ?",
        (wire.encode(settings).decode(), organisation_id),
    )
    if changed.rowcount == 0:
        raise NotFoundError("no such organisation")
    books.reload_org(organisation_id)
    details = msgspec.to_builtins(settings)
    sqlite_audit.record(
        books, actor, "organisation.update", organisation_id, details, organisation_id
    )
    books.announcements.append(Announcement("catalogue", organisation_id))
    row = books.connection.execute(
        "SELECT * FROM organisations WHERE organisation_id = ?", (organisation_id,)
    ).fetchone()
    return organisation_from_row(row)


def organisation_from_row(row: tuple[Any, ...]) -> records.Organisation:
    """Build an organisation from its row."""
    return records.Organisation(
        organisation_id=row[0],
        name=row[1],
        created_at_ms=row[2],
        settings=msgspec.json.decode(row[3], type=records.OrganisationSettings),
    )


def create_key(
    books: Books, actor: Actor, key: records.Key, key_hash: bytes, hmac_secret: str | None
) -> records.Key:
    """Store a new key by its hash.

    Raises:
        NotFoundError: no such organisation.
    """
    if key.organisation_id is not None and key.organisation_id not in books.orgs:
        raise NotFoundError("no such organisation")
    key.created_at_ms = books.now
    books.connection.execute(
        "INSERT INTO keys VALUES (?,?,?,?,?,?,?,?,?,?,NULL)",
        (key.key_id, key.organisation_id, key.role, key.name, key.prefix, key_hash,
         key.workflow_id, hmac_secret, key.created_at_ms, key.expires_at_ms),
    )  # fmt: skip
    details = {"name": key.name, "role": key.role, "prefix": key.prefix,
               "workflow_id": key.workflow_id, "signed": key.signed}  # fmt: skip
    sqlite_audit.record(books, actor, "key.create", key.key_id, details, key.organisation_id)
    return key


def rotate_key(
    books: Books,
    actor: Actor,
    organisation_id: str | None,
    key_id: str,
    successor: records.Key,
    key_hash: bytes,
    hmac_secret: str | None,
    overlap_ms: int,
) -> records.Key:
    """Make a successor with the old key's scope; the old one ends after ``overlap_ms``.

    Raises:
        NotFoundError: no such key.
        ConflictError: the key is revoked.
    """
    old = _own_key(books, organisation_id, key_id)
    if old.revoked_at_ms is not None:
        raise ConflictError("the key is revoked")
    successor.organisation_id, successor.role = old.organisation_id, old.role
    successor.workflow_id, successor.name = old.workflow_id, old.name
    created = create_key(books, actor, successor, key_hash, hmac_secret)
    ends = books.now + overlap_ms
    if old.expires_at_ms is not None:
        ends = min(ends, old.expires_at_ms)
    books.connection.execute("UPDATE keys SET expires_at_ms = ? WHERE key_id = ?", (ends, key_id))
    details = {"successor": created.key_id, "overlap_ms": overlap_ms}
    sqlite_audit.record(books, actor, "key.rotate", key_id, details, old.organisation_id)
    books.announcements.append(Announcement("catalogue", old.organisation_id))
    return created


def revoke_key(books: Books, actor: Actor, organisation_id: str | None, key_id: str) -> records.Key:
    """End a key now. Revoking it again changes nothing."""
    key = _own_key(books, organisation_id, key_id)
    if key.revoked_at_ms is None:
        key.revoked_at_ms = books.now
        books.connection.execute(
            "UPDATE keys SET revoked_at_ms = ? WHERE key_id = ?", (books.now, key_id)
        )
        sqlite_audit.record(books, actor, "key.revoke", key_id, {}, key.organisation_id)
        books.announcements.append(Announcement("catalogue", key.organisation_id))
    return key


def _own_key(books: Books, organisation_id: str | None, key_id: str) -> records.Key:
    row = books.connection.execute("SELECT * FROM keys WHERE key_id = ?", (key_id,)).fetchone()
    if row is None or (organisation_id is not None and row[1] != organisation_id):
        raise NotFoundError("no such key")
    return key_from_row(row).key


def key_from_row(row: tuple[Any, ...]) -> KeySecret:
    """Build a key from its row."""
    key = records.Key(
        key_id=row[0], organisation_id=row[1], role=row[2], name=row[3], prefix=row[4],
        workflow_id=row[6], signed=row[7] is not None, created_at_ms=row[8],
        expires_at_ms=row[9], revoked_at_ms=row[10],
    )  # fmt: skip
    return KeySecret(key, row[7])


def use_nonce(books: Books, key_id: str, nonce: str, keep_ms: int) -> bool:
    """Remember a nonce; ``False`` when it was used before."""
    cursor = books.connection.execute(
        "INSERT OR IGNORE INTO nonces VALUES (?,?,?)", (key_id, nonce, books.now + keep_ms)
    )
    return cursor.rowcount == 1
