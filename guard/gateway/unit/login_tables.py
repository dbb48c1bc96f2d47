"""Codes and logins of people who sign in with ``guard login``, in a unit of work over SQL.

No organisation is locked for them: a row is changed only if it still is what was read, so that of
two requests for one of them, at any replicas, the second finds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from guard.core import wire
from guard.gateway.domain.errors import ConflictError
from guard.gateway.domain.logins import GroupRule, Login, LoginCode
from guard.gateway.unit.control_tables import UnitPart
from guard.gateway.unit.record import Table

T = TypeVar("T", LoginCode, Login)

GROUPS: Final = "sign_on_groups"
"""The fact that has the table of groups."""
_CODES: Final = Table("login_codes")
_LOGINS: Final = Table("logins")
_ACCOUNTS: Final = Table("login_accounts")
_KEPT_MS: Final = 3_600_000
"""How long codes and access tokens are known that have ended, so that their end can be told."""
_DROPPED_MAX: Final = 500


class LoginTables(UnitPart):
    """Codes, logins, accounts of people, and the table of groups."""

    def rules(self) -> list[GroupRule]:
        """Return the table of groups."""
        row = self._unit.row("SELECT value FROM facts WHERE name = ?", GROUPS)
        return [] if row is None else wire.decode(row[0], list[GroupRule])

    def save_rules(self, rules: Sequence[GroupRule]) -> None:
        """Write the table of groups."""
        self._unit.save_fact(GROUPS, wire.encode(rules).decode())

    # -- codes ---------------------------------------------------------------------------------

    def add_code(self, code: LoginCode, asked_from: str) -> None:
        """Insert a code, asked for from a network."""
        row = (code.device_hash, code.user_code, asked_from, code.ends_ms, _text(code))
        self._require(self._unit.write(_CODES.insert(ignore=True), row).rowcount)

    def code(self, device_hash: bytes) -> LoginCode | None:
        """Return a code by the hash of its program's secret."""
        row = self._unit.row("SELECT record FROM login_codes WHERE device_hash = ?", device_hash)
        return None if row is None else wire.decode(row[0], LoginCode)

    def change_code(self, before: LoginCode, after: LoginCode) -> None:
        """Write a code.

        Raises:
            ConflictError: another request has changed it meanwhile.
        """
        change = _CODES.update(("record",), by=("device_hash", "record"))
        row = (_text(after), before.device_hash, _text(before))
        self._require(self._unit.write(change, row).rowcount)

    def drop_code(self, code: LoginCode) -> None:
        """Delete a code.

        Raises:
            ConflictError: another request has changed it meanwhile.
        """
        change = _CODES.delete(("device_hash", "record"))
        self._require(self._unit.write(change, (code.device_hash, _text(code))).rowcount)

    # -- accounts and logins -------------------------------------------------------------------

    def account(self, issuer: str, subject: str, organisation_id: str, team: str) -> str | None:
        """Return the key that is a person's account in a team."""
        row = self._unit.row(
            "SELECT key_id FROM login_accounts WHERE issuer = ? AND subject = ?"
            " AND organisation_id = ? AND team = ?", issuer, subject, organisation_id, team,
        )  # fmt: skip
        return None if row is None else str(row[0])

    def is_account(self, key_id: str) -> bool:
        """Return whether a key is the account of somebody who signs in."""
        sql = "SELECT count(*) FROM login_accounts WHERE key_id = ?"
        return bool(self._unit.row(sql, key_id)[0])

    def add_account(
        self, issuer: str, subject: str, organisation_id: str, team: str, key_id: str
    ) -> None:
        """Note which key is a person's account in a team.

        Raises:
            ConflictError: another request has noted one meanwhile.
        """
        row = (issuer, subject, organisation_id, team, key_id)
        self._require(self._unit.write(_ACCOUNTS.insert(ignore=True), row).rowcount)

    def drop_account(self, organisation_id: str, key_id: str) -> bool:
        """Forget whose account a key is; return whether it was one."""
        change = _ACCOUNTS.delete(("organisation_id", "key_id"))
        return self._unit.write(change, (organisation_id, key_id)).rowcount > 0

    def add(self, login: Login) -> None:
        """Insert a login."""
        self._unit.write(_LOGINS.insert(), (login.login_id, login.ends_ms, _text(login)))

    def login(self, login_id: str) -> Login | None:
        """Return a login."""
        row = self._unit.row("SELECT record FROM logins WHERE login_id = ?", login_id)
        return None if row is None else wire.decode(row[0], Login)

    def of_account(self, operator_id: str, organisation_id: str, key_id: str) -> list[Login] | None:
        """Return the logins of an account; ``None`` if it is not the operator's own."""
        own = self._unit.row(
            "SELECT 1 FROM login_accounts a JOIN sign_ons s ON s.issuer = a.issuer"
            " AND s.subject = a.subject WHERE s.operator_id = ? AND a.organisation_id = ?"
            " AND a.key_id = ?", operator_id, organisation_id, key_id,
        )  # fmt: skip
        if own is None:
            return None
        rows = self._unit.rows(
            "SELECT record FROM logins WHERE json_extract(record, '$.key_id') = ?"
            " ORDER BY login_id", key_id,
        )  # fmt: skip
        return [wire.decode(record, Login) for (record,) in rows]

    def change(self, before: Login, after: Login) -> None:
        """Write a login.

        Raises:
            ConflictError: another request has changed it meanwhile.
        """
        change = _LOGINS.update(("login_ends_ms", "record"), by=("login_id", "record"))
        row = (after.ends_ms, _text(after), before.login_id, _text(before))
        self._require(self._unit.write(change, row).rowcount)

    def drop(self, login_id: str) -> None:
        """Delete a login and end its access tokens."""
        self._unit.write(_LOGINS.delete(), (login_id,))
        self._unit.write(
            "UPDATE secrets SET ends_ms = min(ends_ms, ?), works_until_ms = NULL"
            " WHERE login_id = ?",
            (self._unit.now_ms, login_id),
        )

    def has_lapsed(self, login_id: str) -> bool:
        """Return whether the end of a work key of a login may be put off now."""
        where = "login_id = ? AND works_until_ms > ? AND ends_ms <= ?"
        now_ms = self._unit.now_ms
        sql = f"SELECT count(*) FROM secrets WHERE {where}"
        return bool(self._unit.row(sql, login_id, now_ms, now_ms)[0])

    def put_off(self, login_id: str, ends_ms: int) -> None:
        """Let a login's work keys last until a time, or until they end for good."""
        self._unit.write(
            "UPDATE secrets SET ends_ms = min(works_until_ms, ?)"
            " WHERE login_id = ? AND works_until_ms > ?",
            (ends_ms, login_id, self._unit.now_ms),
        )

    def drop_of(self, key_id: str) -> None:
        """Delete the logins of an account; their access tokens are secrets of its key."""
        # Ids of keys have no character that means something in JSON or in a pattern.
        self._unit.write("DELETE FROM logins WHERE record LIKE ?", (f'%"key_id":"{key_id}"%',))

    def prune(self) -> None:
        """Delete some of what has ended."""
        now_ms = self._unit.now_ms
        for table, column, ended_ms in (
            (_CODES, "code_ends_ms", now_ms - _KEPT_MS), (_LOGINS, "login_ends_ms", now_ms),
        ):  # fmt: skip
            rows = self._unit.rows(
                f"SELECT {table.key[0]} FROM {table.name} WHERE {column} < ? LIMIT ?",
                ended_ms, _DROPPED_MAX,
            )  # fmt: skip
            if rows:
                self._unit.write_many(table.delete(), rows)
        # The one that was used last tells when its account was.
        self._unit.write(
            "DELETE FROM secrets WHERE login_id IS NOT NULL"
            " AND coalesce(works_until_ms, ends_ms) < ? AND (used_ms IS NULL OR EXISTS"
            " (SELECT 1 FROM secrets s WHERE s.key_id = secrets.key_id"
            " AND s.used_ms > secrets.used_ms))",
            (now_ms - _KEPT_MS,),
        )

    def _require(self, changed: int) -> None:
        if changed != 1:
            raise ConflictError("this was changed meanwhile")


def _text(record: LoginCode | Login) -> str:
    return wire.encode(record).decode()
