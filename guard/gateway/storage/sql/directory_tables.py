"""Organisations, keys, operators and the audit log of a unit of work over SQL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.control import Directives
from guard.gateway.domain.lineage import below
from guard.gateway.domain.operators import Operator, SignOn
from guard.gateway.ledger.state import AuditRow, OrganisationState
from guard.gateway.storage.sql.control_tables import ControlTables
from guard.gateway.storage.sql.record import Table
from guard.gateway.storage.sql.rows import (
    ALIASED,
    AUDIT,
    KEYS,
    OPERATORS,
    ORGANISATIONS,
    operator_from_row,
)

_SELECT_KEYS: Final = KEYS.select()
_SELECT_OPERATORS: Final = OPERATORS.select()
_SELECT_AUDIT: Final = AUDIT.select()
_SESSIONS: Final = Table("sessions")
_SIGN_ONS: Final = Table("sign_ons")
_SECRETS: Final = Table("secrets")
_SECRET_USED: Final = _SECRETS.update(("used_ms",))
_ADD_NONCE: Final = Table("nonces").insert(ignore=True)
_TOUCH_SESSION: Final = _SESSIONS.update(("seen_at_ms",))


class DirectoryTables(ControlTables):
    """Implements :class:`guard.gateway.ledger.unit_of_work.DirectoryStore`."""

    # -- organisations and keys ----------------------------------------------------------------

    def organisation_named(self, name: str) -> bool:
        """Return whether an organisation has this name."""
        return self.row("SELECT 1 FROM organisations WHERE name = ?", name) is not None

    def organisation_names(self) -> dict[str, str]:
        """Return the names of all organisations, by their ids."""
        sql = "SELECT organisation_id, name FROM organisations WHERE removed_ms IS NULL"
        return dict(self.rows(sql))

    def add_organisation(self, organisation: records.Organisation) -> None:
        """Insert an organisation."""
        own = organisation.organisation_id
        self.write(ORGANISATIONS.insert(), ORGANISATIONS.row(organisation))
        self.put(self.orgs, own, OrganisationState(own, organisation.settings, 0, Directives()))

    def remove_organisation(self, organisation_id: str) -> None:
        """Mark an organisation as removed, and free its name for another one."""
        self.write(
            "UPDATE organisations SET removed_ms = ?, name = organisation_id"
            " WHERE organisation_id = ?",
            (self.now_ms, organisation_id),
        )

    def save_settings(
        self, organisation_id: str, settings: records.OrganisationSettings
    ) -> records.Organisation | None:
        """Write an organisation's settings and return it; ``None`` when there is none."""
        org = self.orgs.get(organisation_id)
        if org is None:
            return None
        encoded = wire.encode(settings).decode()
        self.write(ORGANISATIONS.update(("settings",)), (encoded, organisation_id))
        self.on_undo(setattr, org, "settings", org.settings)
        org.settings = settings
        sql = f"{ORGANISATIONS.select()} WHERE organisation_id = ?"
        return ORGANISATIONS.read(self.row(sql, organisation_id))

    def key(self, key_id: str) -> records.Key | None:
        """Return a key, by its id or one that it had in release 0.7."""
        sql = f"{_SELECT_KEYS} WHERE key_id = coalesce(({ALIASED}), ?)"
        row = self.row(sql, key_id, key_id)
        return None if row is None else KEYS.read(row)

    def has_key(self, key_hash: bytes) -> bool:
        """Return whether a key has or had this hash, in any state."""
        return self.row("SELECT 1 FROM secrets WHERE key_hash = ?", key_hash) is not None

    def keys_below(self, key_id: str) -> list[records.Key]:
        """Return the keys that belong to a key, directly or not, and are not revoked."""
        sql = f"{_SELECT_KEYS} WHERE key_id LIKE ? AND revoked_at_ms IS NULL"
        return [*map(KEYS.read, self.rows(sql, below(key_id, "%")))]

    def keys_in_use(self, organisation_id: str) -> list[records.Key]:
        """Return the keys of an organisation that are not revoked."""
        sql = f"{_SELECT_KEYS} WHERE organisation_id = ? AND revoked_at_ms IS NULL"
        return [*map(KEYS.read, self.rows(sql, organisation_id))]

    def has_other_keys(self, organisation_id: str, root_id: str) -> bool:
        """Return whether an organisation's agents have a valid key outside of one key's lineage."""
        sql = (
            "SELECT 1 FROM keys WHERE organisation_id = ? AND role = 'sdk' AND key_id <> ?"
            " AND key_id NOT LIKE ? AND revoked_at_ms IS NULL"
            " AND coalesce(expires_at_ms, ?) > ? LIMIT 1"
        )
        found = self.row(sql, organisation_id, root_id, below(root_id, "%"), 2**62, self.now_ms)
        return found is not None

    def add_key(self, key: records.Key, key_hash: bytes, hmac_secret: str | None) -> None:
        """Insert a key with its first secret."""
        self.write(KEYS.insert(), KEYS.row(key))
        self.add_secret(key, key_hash, hmac_secret)

    def save_key(self, key: records.Key) -> None:
        """Write when a key ends."""
        self.write(
            KEYS.update(("expires_at_ms", "revoked_at_ms")),
            (key.expires_at_ms, key.revoked_at_ms, key.key_id),
        )

    def add_secret(self, key: records.Key, key_hash: bytes, hmac_secret: str | None) -> None:
        """Insert another secret of a key."""
        row = (key_hash, key.key_id, key.prefix, hmac_secret, self.now_ms, None, None)
        self.write(_SECRETS.insert(), row)

    def end_secrets(self, key_id: str, ends_ms: int) -> None:
        """End a key's secrets at a time at the latest."""
        # They are kept for good: a start of the gateway with one of them must not make a key anew.
        self.write(
            "UPDATE secrets SET ends_ms = min(coalesce(ends_ms, ?), ?) WHERE key_id = ?",
            (ends_ms, ends_ms, key_id),
        )

    def note_secrets_used(self, used_ms: Mapping[bytes, int]) -> None:
        """Write when secrets were last used, by their hashes."""
        # In one order: replicas that write the same rows never wait for each other.
        self.write_many(_SECRET_USED, [(at_ms, own) for own, at_ms in sorted(used_ms.items())])

    def use_nonce(self, key_id: str, nonce: str, expires_at_ms: int) -> bool:
        """Insert a nonce; return ``False`` if it was used before."""
        # Inserted and checked in one statement: of two requests with one nonce, one is refused,
        # also if they come to different replicas.
        return self.write(_ADD_NONCE, (key_id, nonce, expires_at_ms)).rowcount == 1

    # -- operators -----------------------------------------------------------------------------

    def operator(self, name: str) -> Operator | None:
        """Return an operator."""
        row = self.row(f"{_SELECT_OPERATORS} WHERE name = ?", name)
        return None if row is None else operator_from_row(row)[0]

    def operator_of(self, operator_id: str) -> Operator | None:
        """Return the operator with an id."""
        row = self.row(f"{_SELECT_OPERATORS} WHERE operator_id = ?", operator_id)
        return None if row is None else operator_from_row(row)[0]

    def sign_on(self, issuer: str, subject: str) -> SignOn | None:
        """Return who a person of a provider is here; with no issuer, a name that was removed."""
        sql = "SELECT operator_id, name FROM sign_ons WHERE issuer = ? AND subject = ?"
        row = self.row(sql, issuer, subject)
        return None if row is None else SignOn(*row)

    def has_signed_on(self, issuer: str, operator_id: str) -> bool:
        """Return whether a person of a provider is known as an operator."""
        sql = "SELECT 1 FROM sign_ons WHERE issuer = ? AND operator_id = ?"
        return self.row(sql, issuer, operator_id) is not None

    def note_sign_on(self, issuer: str, subject: str, operator: Operator) -> None:
        """Note that a person of a provider is an operator."""
        self.write(_SIGN_ONS.upsert(), (issuer, subject, operator.operator_id, operator.name))

    def forgive(self, name: str) -> None:
        """Forget that people were removed under a name, and who they were."""
        self.write(_SIGN_ONS.delete(("name",)), (name,))

    def operators(self, organisation_id: str) -> list[Operator]:
        """Return the operators of one organisation."""
        rows = self.rows(f"{_SELECT_OPERATORS} WHERE organisation_id = ?", organisation_id)
        return [operator_from_row(row)[0] for row in rows]

    def add_operator(self, operator: Operator, password_hash: str) -> None:
        """Insert an operator; with an empty hash, no password is accepted."""
        self.write(OPERATORS.insert(), OPERATORS.row(operator, password_hash))

    def save_password(self, operator: Operator, password_hash: str) -> None:
        """Write an operator's password."""
        self.write(
            OPERATORS.update(("password_hash", "changed_at_ms")),
            (password_hash, operator.changed_at_ms, operator.operator_id),
        )

    def save_role(self, operator: Operator) -> None:
        """Write an operator's role."""
        self.write(
            OPERATORS.update(("operator_role", "changed_at_ms")),
            (operator.role, operator.changed_at_ms, operator.operator_id),
        )

    def remove_operator(self, operator: Operator) -> None:
        """Remove an operator and their sessions; they stay known as removed."""
        self.end_sessions(operator.operator_id)
        self.write(OPERATORS.delete(), (operator.operator_id,))
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
        self.write(
            _SESSIONS.insert(),
            (token_hash, operator_id, self.now_ms, self.now_ms, expires_at_ms,
             signed_in_by, signed_in_from),
        )  # fmt: skip

    def touch_session(self, token_hash: bytes) -> None:
        """Note that a session is in use."""
        self.write(_TOUCH_SESSION, (self.now_ms, token_hash))

    def end_session(self, token_hash: bytes) -> None:
        """Remove a session."""
        self.write(_SESSIONS.delete(), (token_hash,))

    def end_sessions(self, operator_id: str) -> None:
        """Remove every session of an operator."""
        self.write(_SESSIONS.delete(("operator_id",)), (operator_id,))

    # -- audit log -----------------------------------------------------------------------------

    def audit_head(self) -> tuple[int, str] | None:
        """Return the number and the hash of the newest audit entry."""
        row = self.row("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1")
        return None if row is None else (row[0], row[1])

    def add_audit(self, row: AuditRow) -> None:
        """Append an audit entry."""
        self.write(AUDIT.insert(), row)

    def oldest_audit(self, limit: int) -> list[AuditRow]:
        """Return the oldest audit entries, never the newest one."""
        rows = self.rows(f"{_SELECT_AUDIT} ORDER BY seq LIMIT ?", limit + 1)
        return [AuditRow(*row) for row in rows[:-1]]

    def drop_audit(self, through: AuditRow) -> None:
        """Delete the entries up to one, which becomes the anchor of the chain."""
        self.write("DELETE FROM audit WHERE seq <= ?", (through.seq,))
        anchor = json.dumps([through.seq, through.hash])
        self.save_fact("audit_anchor", anchor)
