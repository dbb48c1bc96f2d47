"""Organisations, keys, operators and the audit log of a unit of work over SQL."""

from __future__ import annotations

import json
from typing import Final

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.control import Directives
from guard.gateway.domain.lineage import below
from guard.gateway.domain.operators import Operator
from guard.gateway.ledger.state import AuditRow, OrganisationState
from guard.gateway.storage.sql.columns import (
    SELECT_KEYS,
    SELECT_OPERATORS,
    SELECT_ORGANISATIONS,
    columns,
)
from guard.gateway.storage.sql.control_tables import ControlTables
from guard.gateway.storage.sql.rows import (
    key_from_row,
    operator_from_row,
    organisation_from_row,
)

_AUDIT_COLUMNS: Final = (
    "seq, at_ms, organisation_id, actor, action, target, details, prev_hash, hash"
)


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
        self.write(
            "INSERT INTO organisations (organisation_id, name, created_at_ms, settings)"
            " VALUES (?,?,?,?)",
            (own, organisation.name, organisation.created_at_ms,
             wire.encode(organisation.settings).decode()),
        )  # fmt: skip
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
        self.write(
            "UPDATE organisations SET settings = ? WHERE organisation_id = ?",
            (wire.encode(settings).decode(), organisation_id),
        )
        self.on_undo(setattr, org, "settings", org.settings)
        org.settings = settings
        row = self.row(f"{SELECT_ORGANISATIONS} WHERE organisation_id = ?", organisation_id)
        return organisation_from_row(row)

    def key(self, key_id: str) -> records.Key | None:
        """Return a key."""
        row = self.row(f"{SELECT_KEYS} WHERE key_id = ?", key_id)
        return None if row is None else key_from_row(row).key

    def has_key(self, key_hash: bytes) -> bool:
        """Return whether there is a key with this hash, in any state."""
        return self.row("SELECT 1 FROM keys WHERE key_hash = ?", key_hash) is not None

    def keys_below(self, key_id: str) -> list[records.Key]:
        """Return the keys that belong to a key, directly or not, and are not revoked."""
        sql = f"{SELECT_KEYS} WHERE key_id LIKE ? AND revoked_at_ms IS NULL"
        rows = self.rows(sql, below(key_id, "%"))
        return [key_from_row(row).key for row in rows]

    def keys_in_use(self, organisation_id: str) -> list[records.Key]:
        """Return the keys of an organisation that are not revoked."""
        sql = f"{SELECT_KEYS} WHERE organisation_id = ? AND revoked_at_ms IS NULL"
        return [key_from_row(row).key for row in self.rows(sql, organisation_id)]

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
        """Insert a key."""
        self.write(
            "INSERT INTO keys VALUES (?,?,?,?,?,?,?,?,?,?,NULL)",
            (key.key_id, key.organisation_id, key.role, key.name, key.prefix, key_hash,
             key.workflow_id, hmac_secret, key.created_at_ms, key.expires_at_ms),
        )  # fmt: skip

    def save_key(self, key: records.Key) -> None:
        """Write when a key ends."""
        self.write(
            "UPDATE keys SET expires_at_ms = ?, revoked_at_ms = ? WHERE key_id = ?",
            (key.expires_at_ms, key.revoked_at_ms, key.key_id),
        )

    def use_nonce(self, key_id: str, nonce: str, expires_at_ms: int) -> bool:
        """Insert a nonce; return ``False`` if it was used before."""
        # Inserted and checked in one statement: of two requests with one nonce, one is refused,
        # also if they come to different replicas.
        cursor = self.write(
            "INSERT INTO nonces VALUES (?,?,?) ON CONFLICT DO NOTHING",
            (key_id, nonce, expires_at_ms),
        )
        return cursor.rowcount == 1

    # -- operators -----------------------------------------------------------------------------

    def operator(self, name: str) -> Operator | None:
        """Return an operator."""
        row = self.row(f"{SELECT_OPERATORS} WHERE name = ?", name)
        return None if row is None else operator_from_row(row)[0]

    def operators(self, organisation_id: str) -> list[Operator]:
        """Return the operators of one organisation."""
        rows = self.rows(f"{SELECT_OPERATORS} WHERE organisation_id = ?", organisation_id)
        return [operator_from_row(row)[0] for row in rows]

    def add_operator(self, operator: Operator, password_hash: str) -> None:
        """Insert an operator; with an empty hash, no password is accepted."""
        self.write(
            f"INSERT INTO operators ({columns('operators')}) VALUES (?,?,?,?,?,?,?)",  # noqa: S608 (constant text)
            (operator.operator_id, operator.name, operator.organisation_id, password_hash,
             operator.created_at_ms, operator.changed_at_ms, operator.role),
        )  # fmt: skip

    def save_password(self, operator: Operator, password_hash: str) -> None:
        """Write an operator's password."""
        self.write(
            "UPDATE operators SET password_hash = ?, changed_at_ms = ? WHERE operator_id = ?",
            (password_hash, operator.changed_at_ms, operator.operator_id),
        )

    def save_role(self, operator: Operator) -> None:
        """Write an operator's role."""
        self.write(
            "UPDATE operators SET operator_role = ?, changed_at_ms = ? WHERE operator_id = ?",
            (operator.role, operator.changed_at_ms, operator.operator_id),
        )

    def remove_operator(self, operator_id: str) -> None:
        """Remove an operator and their sessions."""
        self.end_sessions(operator_id)
        self.write("DELETE FROM operators WHERE operator_id = ?", (operator_id,))

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
            "INSERT INTO sessions (token_hash, operator_id, created_at_ms, seen_at_ms,"
            " expires_at_ms, signed_in_by, signed_in_from) VALUES (?,?,?,?,?,?,?)",
            (token_hash, operator_id, self.now_ms, self.now_ms, expires_at_ms,
             signed_in_by, signed_in_from),
        )  # fmt: skip

    def touch_session(self, token_hash: bytes) -> None:
        """Note that a session is in use."""
        self.write(
            "UPDATE sessions SET seen_at_ms = ? WHERE token_hash = ?", (self.now_ms, token_hash)
        )

    def end_session(self, token_hash: bytes) -> None:
        """Remove a session."""
        self.write("DELETE FROM sessions WHERE token_hash = ?", (token_hash,))

    def end_sessions(self, operator_id: str) -> None:
        """Remove every session of an operator."""
        self.write("DELETE FROM sessions WHERE operator_id = ?", (operator_id,))

    # -- audit log -----------------------------------------------------------------------------

    def audit_head(self) -> tuple[int, str] | None:
        """Return the number and the hash of the newest audit entry."""
        row = self.row("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1")
        return None if row is None else (row[0], row[1])

    def add_audit(self, row: AuditRow) -> None:
        """Append an audit entry."""
        self.write(f"INSERT INTO audit ({_AUDIT_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)", row)  # noqa: S608 (constant text)

    def oldest_audit(self, limit: int) -> list[AuditRow]:
        """Return the oldest audit entries, never the newest one."""
        rows = self.rows(f"SELECT {_AUDIT_COLUMNS} FROM audit ORDER BY seq LIMIT ?", limit + 1)  # noqa: S608 (constant text)
        return [AuditRow(*row) for row in rows[:-1]]

    def drop_audit(self, through: AuditRow) -> None:
        """Delete the entries up to one, which becomes the anchor of the chain."""
        self.write("DELETE FROM audit WHERE seq <= ?", (through.seq,))
        anchor = json.dumps([through.seq, through.hash])
        self.save_fact("audit_anchor", anchor)
