"""Organisations, keys, operators and the audit log of a unit of work over SQL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.control import Directives
from guard.gateway.domain.key_hierarchy import child_id
from guard.gateway.domain.operators import Operator, SignOn
from guard.gateway.unit.control_tables import UnitPart
from guard.gateway.unit.record import Table
from guard.gateway.unit.rows import (
    ALIASED,
    AUDIT,
    KEYS,
    OPERATORS,
    ORGANISATIONS,
    operator_from_row,
)
from guard.gateway.unit.state import AuditRow, OrganisationState

_SELECT_KEYS: Final = KEYS.select()
_SELECT_OPERATORS: Final = OPERATORS.select()
_SELECT_AUDIT: Final = AUDIT.select()
_SAVED: Final = (
    "expires_at_ms", "revoked_at_ms", "name", "person", "purpose", "may_name", "shows_cost",
)  # fmt: skip
_SAVE_KEY: Final = KEYS.update(_SAVED)
_KEY_VALUES: Final = KEYS.values(*_SAVED, "key_id")
_SESSIONS: Final = Table("sessions")
_SIGN_ONS: Final = Table("sign_ons")
_SECRETS: Final = Table("secrets")
_SECRET_USED: Final = _SECRETS.update(("used_ms",))
_ADD_NONCE: Final = Table("nonces").insert(ignore=True)
_TOUCH_SESSION: Final = _SESSIONS.update(("seen_at_ms",))


class DirectoryTables(UnitPart):
    """Organisations, keys, nonces, operators, sessions and the audit log."""

    # The entry that this unit has appended last, so that the next one need not look for it.
    newest_audit: tuple[int, str] | None = None

    # -- organisations and keys ----------------------------------------------------------------

    def organisation_named(self, name: str) -> bool:
        """Return whether an organisation has this name."""
        return self._unit.row("SELECT 1 FROM organisations WHERE name = ?", name) is not None

    def organisation_names(self) -> dict[str, str]:
        """Return the names of all organisations, by their ids."""
        sql = "SELECT organisation_id, name FROM organisations WHERE removed_ms IS NULL"
        return dict(self._unit.rows(sql))

    def add_organisation(self, organisation: records.Organisation) -> None:
        """Insert an organisation."""
        self._unit.write(ORGANISATIONS.insert(), ORGANISATIONS.row(organisation))
        own = organisation.organisation_id
        self._unit.adopt(OrganisationState(own, organisation.settings, 0, Directives()))

    def remove_organisation(self, organisation_id: str) -> None:
        """Mark an organisation as removed, and free its name for another one."""
        self._unit.write(
            "UPDATE organisations SET removed_ms = ?, name = organisation_id"
            " WHERE organisation_id = ?",
            (self._unit.now_ms, organisation_id),
        )

    def save_settings(
        self, organisation_id: str, settings: records.OrganisationSettings
    ) -> records.Organisation | None:
        """Write an organisation's settings and return it; ``None`` when there is none."""
        org = self._unit.orgs.get(organisation_id)
        if org is None:
            return None
        encoded = wire.encode(settings).decode()
        self._unit.write(ORGANISATIONS.update(("settings",)), (encoded, organisation_id))
        self._unit.on_undo(setattr, org, "settings", org.settings)
        org.settings = settings
        sql = f"{ORGANISATIONS.select()} WHERE organisation_id = ?"
        return ORGANISATIONS.read(self._unit.row(sql, organisation_id))

    def key(self, key_id: str) -> records.Key | None:
        """Return a key, by its id or one that it had in release 0.7."""
        sql = f"{_SELECT_KEYS} WHERE key_id = coalesce(({ALIASED}), ?)"
        row = self._unit.row(sql, key_id, key_id)
        return None if row is None else KEYS.read(row)

    def has_key(self, key_hash: bytes) -> bool:
        """Return whether a key has or had this hash, in any state."""
        return self._unit.row("SELECT 1 FROM secrets WHERE key_hash = ?", key_hash) is not None

    def keys_below(self, key_id: str) -> list[records.Key]:
        """Return the keys that belong to a key, directly or not, and are not revoked."""
        sql = f"{_SELECT_KEYS} WHERE key_id LIKE ? AND revoked_at_ms IS NULL"
        return [*map(KEYS.read, self._unit.rows(sql, child_id(key_id, "%")))]

    def keys_in_use(self, organisation_id: str) -> list[records.Key]:
        """Return the keys of an organisation that are not revoked."""
        sql = f"{_SELECT_KEYS} WHERE organisation_id = ? AND revoked_at_ms IS NULL"
        return [*map(KEYS.read, self._unit.rows(sql, organisation_id))]

    def has_other_keys(self, organisation_id: str, root_id: str) -> bool:
        """Return whether an organisation's agents have a valid key outside of one key's lineage."""
        sql = (
            "SELECT 1 FROM keys WHERE organisation_id = ? AND role = 'sdk' AND key_id <> ?"
            " AND key_id NOT LIKE ? AND revoked_at_ms IS NULL"
            " AND coalesce(expires_at_ms, ?) > ? LIMIT 1"
        )
        found = self._unit.row(
            sql, organisation_id, root_id, child_id(root_id, "%"), 2**62, self._unit.now_ms
        )
        return found is not None

    def add_key(self, key: records.Key, key_hash: bytes | None, hmac_secret: str | None) -> None:
        """Insert a key with its first secret, if it has one."""
        self._unit.write(KEYS.insert(), KEYS.row(key))
        if key_hash is not None:
            self.add_secret(key, key_hash, hmac_secret)

    def save_key(self, key: records.Key) -> None:
        """Write what may change of a key."""
        self._unit.write(_SAVE_KEY, _KEY_VALUES(key))

    def add_secret(
        self,
        key: records.Key,
        key_hash: bytes,
        hmac_secret: str | None,
        ends_ms: int | None = None,
        login_id: str | None = None,
        works_until_ms: int | None = None,
    ) -> None:
        """Insert another secret of a key, or an access token or a work key of a login."""
        row = (
            key_hash, key.key_id, key.prefix, hmac_secret, self._unit.now_ms, ends_ms, None,
            login_id, works_until_ms,
        )  # fmt: skip
        self._unit.write(_SECRETS.insert(), row)

    def has_secret(self, key_id: str, prefix: str) -> bool | None:
        """Return whether a secret of a key that begins so is valid; ``None`` if there is none."""
        sql = "SELECT max(coalesce(ends_ms, ?)) FROM secrets WHERE key_id = ? AND prefix = ?"
        (ends_ms,) = self._unit.row(sql, 2**62, key_id, prefix)
        return None if ends_ms is None else ends_ms > self._unit.now_ms

    def end_secrets(self, key_id: str, ends_ms: int, prefix: str | None = None) -> None:
        """End a key's secrets, or the one that begins so, at a time at the latest."""
        # They are kept for good: a start of the gateway with one of them must not make a key anew.
        self._unit.write(
            "UPDATE secrets SET ends_ms = min(coalesce(ends_ms, ?), ?), works_until_ms = NULL"
            " WHERE key_id = ? AND prefix = coalesce(?, prefix)",
            (ends_ms, ends_ms, key_id, prefix),
        )

    def note_secrets_used(self, used_ms: Mapping[bytes, int]) -> None:
        """Write when secrets were last used, by their hashes."""
        # In one order: replicas that write the same rows never wait for each other.
        self._unit.write_many(
            _SECRET_USED, [(at_ms, own) for own, at_ms in sorted(used_ms.items())]
        )

    def use_nonce(self, key_id: str, nonce: str, expires_at_ms: int) -> bool:
        """Insert a nonce; return ``False`` if it was used before."""
        # Inserted and checked in one statement: of two requests with one nonce, one is refused,
        # also if they come to different replicas.
        return self._unit.write(_ADD_NONCE, (key_id, nonce, expires_at_ms)).rowcount == 1

    # -- operators -----------------------------------------------------------------------------

    def operator(self, name: str) -> Operator | None:
        """Return an operator."""
        row = self._unit.row(f"{_SELECT_OPERATORS} WHERE name = ?", name)
        return None if row is None else operator_from_row(row)[0]

    def operator_of(self, operator_id: str) -> Operator | None:
        """Return the operator with an id."""
        row = self._unit.row(f"{_SELECT_OPERATORS} WHERE operator_id = ?", operator_id)
        return None if row is None else operator_from_row(row)[0]

    def sign_on(self, issuer: str, subject: str) -> SignOn | None:
        """Return who a person of a provider is here; with no issuer, a name that was removed."""
        sql = "SELECT operator_id, name, by_groups FROM sign_ons WHERE issuer = ? AND subject = ?"
        row = self._unit.row(sql, issuer, subject)
        return None if row is None else SignOn(row[0], row[1], bool(row[2]))

    def has_signed_on(self, issuer: str, operator_id: str) -> bool:
        """Return whether a person of a provider is known as an operator."""
        sql = "SELECT 1 FROM sign_ons WHERE issuer = ? AND operator_id = ?"
        return self._unit.row(sql, issuer, operator_id) is not None

    def note_sign_on(
        self, issuer: str, subject: str, operator: Operator, *, by_groups: bool = False
    ) -> None:
        """Note that a person of a provider is an operator."""
        row = (issuer, subject, operator.operator_id, operator.name, int(by_groups))
        self._unit.write(_SIGN_ONS.upsert(), row)

    def forgive(self, name: str) -> None:
        """Forget that people were removed under a name, and who they were."""
        self._unit.write(_SIGN_ONS.delete(("name",)), (name,))

    def operators(self, organisation_id: str) -> list[Operator]:
        """Return the operators of one organisation."""
        rows = self._unit.rows(f"{_SELECT_OPERATORS} WHERE organisation_id = ?", organisation_id)
        return [operator_from_row(row)[0] for row in rows]

    def add_operator(self, operator: Operator, password_hash: str) -> None:
        """Insert an operator; with an empty hash, no password is accepted."""
        self._unit.write(OPERATORS.insert(), OPERATORS.row(operator, password_hash))

    def save_password(self, operator: Operator, password_hash: str) -> None:
        """Write an operator's password."""
        self._unit.write(
            OPERATORS.update(("password_hash", "changed_at_ms")),
            (password_hash, operator.changed_at_ms, operator.operator_id),
        )

    def save_role(self, operator: Operator) -> None:
        """Write an operator's role."""
        self._unit.write(
            OPERATORS.update(("operator_role", "changed_at_ms")),
            (operator.role, operator.changed_at_ms, operator.operator_id),
        )

    def remove_operator(self, operator: Operator) -> None:
        """Remove an operator and their sessions; they stay known as removed."""
        self.end_sessions(operator.operator_id)
        self._unit.write(OPERATORS.delete(), (operator.operator_id,))
        # By name: of one who has never signed on, nothing else is known.
        self.note_sign_on("", operator.name, operator)

    def add_session(
        self,
        token_hash: bytes,
        operator_id: str,
        expires_at_ms: int,
        signed_in_by: str,
        signed_in_from: str,
    ) -> None:
        """Insert a session."""
        self._unit.write(
            _SESSIONS.insert(),
            (token_hash, operator_id, self._unit.now_ms, self._unit.now_ms, expires_at_ms,
             signed_in_by, signed_in_from),
        )  # fmt: skip

    def touch_session(self, token_hash: bytes) -> None:
        """Note that a session is in use."""
        self._unit.write(_TOUCH_SESSION, (self._unit.now_ms, token_hash))

    def end_session(self, token_hash: bytes) -> None:
        """Remove a session."""
        self._unit.write(_SESSIONS.delete(), (token_hash,))

    def end_sessions(self, operator_id: str) -> None:
        """Remove every session of an operator."""
        self._unit.write(_SESSIONS.delete(("operator_id",)), (operator_id,))

    # -- audit log -----------------------------------------------------------------------------

    def audit_head(self) -> tuple[int, str] | None:
        """Return the number and the hash of the newest audit entry."""
        return self.newest_audit or self._unit.row(
            "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1"
        )

    def add_audit(self, row: AuditRow) -> None:
        """Append an audit entry."""
        self._unit.write(AUDIT.insert(), row)
        self._unit.on_undo(setattr, self, "newest_audit", self.newest_audit)
        self.newest_audit = row.seq, row.hash

    def oldest_audit(self, limit: int) -> list[AuditRow]:
        """Return the oldest audit entries, never the newest one."""
        rows = self._unit.rows(f"{_SELECT_AUDIT} ORDER BY seq LIMIT ?", limit + 1)
        return [AuditRow(*row) for row in rows[:-1]]

    def drop_audit(self, through: AuditRow) -> None:
        """Delete the entries up to one, which becomes the anchor of the chain."""
        self._unit.write("DELETE FROM audit WHERE seq <= ?", (through.seq,))
        anchor = json.dumps([through.seq, through.hash])
        self._unit.save_fact("audit_anchor", anchor)
