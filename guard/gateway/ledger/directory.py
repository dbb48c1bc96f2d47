"""Organisations, keys and nonces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from guard.core import wire
from guard.gateway.domain import records, setting_table
from guard.gateway.domain.commands import Actor, PostCommitEvent
from guard.gateway.domain.errors import ConflictError, NotFoundError
from guard.gateway.domain.key_hierarchy import LENGTH_MAX, lineage
from guard.gateway.domain.logins import ACCESS_MS
from guard.gateway.ledger import audit, control
from guard.gateway.ledger.accounts import organisation
from guard.gateway.unit.unit_of_work import UnitOfWork

_ATTRIBUTES: Final = records.KeyAttributes.__struct_fields__


def announce_workflow(unit: UnitOfWork, _: Actor, organisation_id: str, workflow_id: str) -> None:
    """Make a workflow known before its first call.

    Raises:
        NotFoundError: no such organisation.
        ValueError: no workflow can have a name like that.
    """
    wire.require_name("a workflow's name", workflow_id)
    own = organisation(unit, organisation_id).organisation_id
    unit.see_workflow(own, workflow_id)


def create_organisation(unit: UnitOfWork, actor: Actor, name: str) -> records.Organisation:
    """Add a tenant.

    Raises:
        ConflictError: the name is taken.
    """
    if unit.directory.organisation_named(name):
        raise ConflictError("an organisation of this name exists")
    created = records.Organisation(
        organisation_id=unit.ids.uuid7(unit.now_ms),
        name=name,
        created_at_ms=unit.now_ms,
        settings=records.OrganisationSettings(),
    )
    unit.directory.add_organisation(created)
    audit.record(unit, actor, "organisation.create", name, {}, created.organisation_id)
    return created


def remove_organisation(unit: UnitOfWork, actor: Actor, organisation_id: str) -> None:
    """Remove a tenant: its keys, its operators and their sessions; its name is free again.

    Its records stay until retention deletes them, like those of any other tenant.

    Raises:
        NotFoundError: no such organisation.
        ConflictError: it is the only one.
    """
    names = unit.directory.organisation_names()
    name = names.get(organisation_id)
    if name is None:
        raise NotFoundError("no such organisation")
    if len(names) == 1:
        raise ConflictError("the only organisation cannot be removed")
    # One transaction: there is no moment at which the organisation is gone and a key still valid.
    for key in unit.directory.keys_in_use(organisation_id):
        unit.directory.save_key(msgspec.structs.replace(key, revoked_at_ms=unit.now_ms))
    for operator in unit.directory.operators(organisation_id):
        unit.directory.remove_operator(operator)
    unit.directory.remove_organisation(organisation_id)
    audit.record(unit, actor, "organisation.remove", name, {}, organisation_id)
    unit.announce(PostCommitEvent("catalogue", organisation_id))


def update_organisation(
    unit: UnitOfWork, actor: Actor, organisation_id: str, settings: records.OrganisationSettings
) -> records.Organisation:
    """Replace a tenant's settings.

    Raises:
        NotFoundError: no such organisation.
    """
    changed = unit.directory.save_settings(organisation_id, settings)
    if changed is None:
        raise NotFoundError("no such organisation")
    details = msgspec.to_builtins(settings)
    audit.record(unit, actor, "organisation.update", organisation_id, details, organisation_id)
    control.announce_catalogue(unit, organisation_id, "settings changed")
    return changed


def change_settings(
    unit: UnitOfWork,
    actor: Actor,
    organisation_id: str,
    changes: Mapping[str, bool | int | str],
) -> records.Organisation:
    """Change some of a tenant's settings; the others stay as they are.

    Raises:
        NotFoundError: no such organisation.
        ValueError: no such setting, or a value that it does not take.
    """
    known = organisation(unit, organisation_id).settings
    return update_organisation(unit, actor, organisation_id, setting_table.changed(known, changes))


def create_key(
    unit: UnitOfWork,
    actor: Actor,
    key: records.Key,
    key_hash: bytes | None,
    hmac_secret: str | None,
) -> records.Key:
    """Store a new key by its hash; a person's account begins without one.

    Raises:
        NotFoundError: no such organisation, or no such key that it belongs to.
        ConflictError: that key is revoked, or the id would be too long.
    """
    if key.organisation_id is not None:
        organisation(unit, key.organisation_id)
    # In the same transaction as the insertion: a key that is revoked meanwhile takes those below it
    # along, or refuses this one.
    for owner_id in lineage(key.key_id)[1:]:
        owner = _own_key(unit, actor, key.organisation_id, owner_id)
        if owner.revoked_at_ms is not None:
            raise ConflictError("the key that it belongs to is revoked")
        lacking = {name: getattr(owner, name) for name in _ATTRIBUTES if not getattr(key, name)}
        key = msgspec.structs.replace(key, **lacking)
    if len(key.key_id) > LENGTH_MAX:
        raise ConflictError("keys that belong to one another are too many")
    key = msgspec.structs.replace(key, created_at_ms=unit.now_ms)
    unit.directory.add_key(key, key_hash, hmac_secret)
    named = ("name", "role", "prefix", "workflow_id", "signed", *_ATTRIBUTES)
    details = {name: getattr(key, name) for name in named}
    audit.record(unit, actor, "key.create", key.key_id, details, key.organisation_id)
    return key


def update_key(
    unit: UnitOfWork, actor: Actor, organisation_id: str, body: records.KeyChanges, key_id: str
) -> records.Key:
    """Change a key's name, its attributes or its end, 0 for none.

    Raises:
        NotFoundError: no such key.
        ConflictError: it has ended already.
    """
    key = _own_key(unit, actor, organisation_id, key_id)
    changes = {
        name: value for name, value in msgspec.structs.asdict(body).items() if value is not None
    }
    if "expires_at_ms" in changes:
        _refuse_ended(key, unit.now_ms)
        changes["expires_at_ms"] = changes["expires_at_ms"] or None
    changed = msgspec.structs.replace(key, **changes)
    if changed != key:
        unit.directory.save_key(changed)
        audit.record(unit, actor, "key.update", key.key_id, changes, key.organisation_id)
        unit.announce(PostCommitEvent("catalogue", key.organisation_id))
    return changed


def _refuse_ended(key: records.Key, now_ms: int) -> None:
    if key.revoked_at_ms is not None:
        raise ConflictError("the key is revoked")
    if key.expires_at_ms is not None and key.expires_at_ms <= now_ms:
        raise ConflictError("the key has ended: make another one")


def ensure_key(unit: UnitOfWork, actor: Actor, key: records.Key, key_hash: bytes) -> None:
    """Store a key by its hash, if there was never one with it."""
    if not unit.directory.has_key(key_hash):
        create_key(unit, actor, key, key_hash, None)


def rotate_key(
    unit: UnitOfWork,
    actor: Actor,
    organisation_id: str | None,
    key_id: str,
    prefix: str,
    key_hash: bytes,
    hmac_secret: str | None,
    overlap_ms: int,
) -> records.Key:
    """Give a key another secret; those before it end after ``overlap_ms`` at the latest.

    The new one of a person's account lasts an hour: they sign in for others. Whatever refers to the
    key holds for both: its id stays.

    Raises:
        NotFoundError: no such key.
        ConflictError: the key is revoked or has ended.
    """
    old = _own_key(unit, actor, organisation_id, key_id)
    _refuse_ended(old, unit.now_ms)
    # The old secret stays valid for a while, so that programs can switch without a failed call.
    ends_ms = unit.now_ms + overlap_ms
    if old.expires_at_ms is not None:
        ends_ms = min(ends_ms, old.expires_at_ms)
    key = msgspec.structs.replace(old, prefix=prefix, signed=hmac_secret is not None)
    unit.directory.end_secrets(old.key_id, ends_ms)
    unit.logins.drop_of(old.key_id)  # or who has stolen one would be given the next secret
    # One without an end would outlive the suspension of its person at the provider.
    own_ends_ms = unit.now_ms + ACCESS_MS if unit.logins.is_account(old.key_id) else None
    unit.directory.add_secret(key, key_hash, hmac_secret, own_ends_ms)
    if own_ends_ms is not None:
        key.expires_at_ms = min(own_ends_ms, old.expires_at_ms or own_ends_ms)
    details = {"prefix": prefix, "overlap_ms": overlap_ms}
    audit.record(unit, actor, "key.rotate", old.key_id, details, old.organisation_id)
    unit.announce(PostCommitEvent("catalogue", old.organisation_id))
    return key


def revoke_key(
    unit: UnitOfWork, actor: Actor, organisation_id: str | None, key_id: str
) -> records.Key:
    """End a key now, and those that belong to it. Revoking it again changes nothing.

    Raises:
        NotFoundError: no such key.
    """
    key = _own_key(unit, actor, organisation_id, key_id)
    if key.revoked_at_ms is None:
        key = msgspec.structs.replace(key, revoked_at_ms=unit.now_ms)
        unit.directory.save_key(key)
        audit.record(unit, actor, "key.revoke", key.key_id, {}, key.organisation_id)
        # A revoked key must not live on in the keys that were made under it.
        for below in unit.directory.keys_below(key.key_id):
            unit.directory.save_key(msgspec.structs.replace(below, revoked_at_ms=unit.now_ms))
            audit.record(unit, actor, "key.revoke", below.key_id, {}, key.organisation_id)
        unit.announce(PostCommitEvent("catalogue", key.organisation_id))
    return key


def revoke_secret(
    unit: UnitOfWork, actor: Actor, organisation_id: str | None, key_id: str, prefix: str
) -> records.Key:
    """End one secret of a key now; the key and its other secrets stay.

    A key without a secret that is valid lasts, and `rotate_key` gives it one. Revoking a secret
    again changes nothing.

    Raises:
        NotFoundError: no such key, or no secret of it begins so.
    """
    key = _own_key(unit, actor, organisation_id, key_id)
    if (is_valid := unit.directory.has_secret(key.key_id, prefix)) is None:
        raise NotFoundError("the key has no such secret")
    if is_valid:
        unit.directory.end_secrets(key.key_id, unit.now_ms, prefix)
        details = {"prefix": prefix}
        audit.record(unit, actor, "key.revoke_secret", key.key_id, details, key.organisation_id)
        unit.announce(PostCommitEvent("catalogue", key.organisation_id))
    return key


def note_secrets_used(unit: UnitOfWork, used_ms: Mapping[bytes, int]) -> None:
    """Write when secrets were last used, by their hashes."""
    unit.directory.note_secrets_used(used_ms)


def _own_key(
    unit: UnitOfWork, actor: Actor, organisation_id: str | None, key_id: str
) -> records.Key:
    key = unit.directory.key(key_id)
    if key is not None:
        if organisation_id in (None, key.organisation_id):
            return key
        # A proxy key for all organisations may be ended by an operator of the whole gateway.
        if key.role == "proxy" and key.organisation_id is actor.organisation_id is None:
            return key
    raise NotFoundError("no such key")


def use_nonce(unit: UnitOfWork, key_id: str, nonce: str, keep_ms: int) -> bool:
    """Remember a nonce; ``False`` when it was used before."""
    return unit.directory.use_nonce(key_id, nonce, unit.now_ms + keep_ms)
