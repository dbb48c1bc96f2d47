"""Look-ups that requests, control channels and sign-ins wait for: short and indexed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from guard.core import wire
from guard.gateway.domain import alerts, logins, records, usage
from guard.gateway.domain.control import end_of, is_timed
from guard.gateway.domain.facts import OwnFact
from guard.gateway.domain.operators import Operator, OperatorSession, SessionView
from guard.gateway.domain.usage import DAY_MS
from guard.gateway.domain.waiting import LAPSE_MS
from guard.gateway.unit import login_tables
from guard.gateway.unit.connection import Connection, ReadingStore, equals
from guard.gateway.unit.rows import (
    ALIASED,
    APPROVALS,
    BUDGETS,
    IS_NAMED,
    KEYS,
    OPERATORS,
    ORGANISATIONS,
    RAISES,
    WEBHOOKS,
    approval_from_row,
    channel_from_row,
    key_from_row,
    operator_from_row,
    session_from_row,
    session_view_from_row,
)

T = TypeVar("T")
CALL_BUDGETS_MAX: Final = 1000
SNAPSHOT_BUDGETS_MAX: Final = 1000
"""Exhausted budgets in a snapshot, the newest ones; the gate knows of all."""


_ASKS_MAX: Final = 1000
"""Calls that wait for a raise, as many as are counted to see whether there is a new one."""


_SELECT_WEBHOOKS: Final = WEBHOOKS.select()


class SqlQueries(ReadingStore):
    """Keys, control messages, the catalogue, operators and sessions."""

    # -- control -------------------------------------------------------------------------------

    async def control_after(
        self, organisation_id: str, after: int, limit: int
    ) -> list[records.StoredControl]:
        """Return messages newer than ``after``, oldest first."""
        rows = await self._rows(
            "SELECT message, key_id FROM control WHERE organisation_id = ? AND seq > ?"
            " ORDER BY seq LIMIT ?",
            organisation_id, after, limit,
        )  # fmt: skip
        return [
            records.StoredControl(wire.decode(message, wire.ControlMessage), key_id)
            for message, key_id in rows
        ]

    async def control_snapshot(
        self, organisation_id: str, key_id: str
    ) -> list[wire.ControlMessage]:
        """Return the messages that a new listener needs, oldest first.

        Directives for workflows, those for runs of the last day, and exhausted budgets; and the
        newest message of any kind, from which the listener continues.
        """
        now_ms = self.clock_ms()
        return await self.look_up(lambda r: _snapshot(r, organisation_id, key_id, now_ms))

    async def control_seq(self, organisation_id: str) -> int:
        """Return the newest number."""
        rows = await self._rows(
            "SELECT control_seq FROM organisations WHERE organisation_id = ?", organisation_id
        )
        return int(rows[0][0]) if rows else 0

    # -- directory -----------------------------------------------------------------------------

    async def organisations(self) -> list[records.Organisation]:
        """Return all tenants, oldest first, but for those that were removed."""
        rows = await self._rows(
            f"{ORGANISATIONS.select()} WHERE removed_ms IS NULL ORDER BY organisation_id"
        )
        return [*map(ORGANISATIONS.read, rows)]

    async def find_key(self, key_hash: bytes) -> records.KeySecret | None:
        """Return the key with this hash, in any state."""
        rows = await self._rows(
            f"SELECT {KEYS.names('k')}, s.prefix, s.hmac_secret, s.ends_ms, s.works_until_ms"
            " FROM secrets s JOIN keys k ON k.key_id = s.key_id WHERE s.key_hash = ?",
            key_hash,
        )
        return key_from_row(rows[0]) if rows else None

    async def keys(self, organisation_id: str | None) -> list[records.Key]:
        """Return keys, of one organisation or of all."""
        where, arguments = equals(organisation_id=organisation_id)
        return await self._keys(where or "true", *arguments)

    async def key_names(self, own: str) -> dict[str, str]:
        """Return the names of an organisation's keys by their ids: people know no ids."""
        rows = await self._rows("SELECT key_id, name FROM keys WHERE organisation_id = ?", own)
        return {str(key_id): str(name) for key_id, name in rows}

    async def current_key_id(self, key_id: str) -> str:
        """Return the id of the key that had another one in release 0.7; any other as it is."""
        rows = await self._rows(ALIASED, key_id)
        return str(rows[0][0]) if rows else key_id

    async def keys_named(self, organisation_id: str, name: str, prefix: str) -> list[records.Key]:
        """Return the key with an id; or those in use of an organisation with a name or a prefix."""
        return await self._keys(
            "organisation_id = ? AND role <> 'admin'"
            " AND (key_id = ? OR (revoked_at_ms IS NULL AND (name = ?"
            " OR key_id IN (SELECT s.key_id FROM secrets s WHERE s.prefix = ?))))",
            organisation_id, name, name, prefix,
        )  # fmt: skip

    async def proxies(self) -> list[records.Key]:
        """Return the keys of proxies for all organisations."""
        return await self._keys("organisation_id IS NULL AND role = 'proxy'")

    async def keys_of(self, organisation_id: str, operator: Operator) -> list[records.Key]:
        """Return the keys of who signs in to the dashboard: their accounts, and keys in their name.

        A key that is somebody's account is nobody else's, whatever they are called.
        """
        return await self._keys(
            "organisation_id = ? AND role = 'sdk' AND (key_id IN (SELECT a.key_id FROM"
            " login_accounts a JOIN sign_ons s ON s.issuer = a.issuer AND s.subject = a.subject"
            " WHERE s.operator_id = ?) OR (person = ? AND key_id NOT IN"
            " (SELECT key_id FROM login_accounts)))",
            organisation_id, operator.operator_id, operator.name,
        )  # fmt: skip

    async def _keys(self, where: str, *arguments: Any) -> list[records.Key]:
        rows = await self._rows(f"{KEYS.select()} WHERE {where} ORDER BY key_id", *arguments)
        keys = {key.key_id: key for key in map(KEYS.read, rows)}
        secrets = await self._rows(
            "SELECT key_id, prefix, hmac_secret, made_ms,"
            " coalesce(works_until_ms, ends_ms), used_ms FROM secrets"
            f" WHERE key_id IN (SELECT key_id FROM keys WHERE {where})"
            " ORDER BY made_ms DESC, ends_ms IS NOT NULL, ends_ms DESC",
            *arguments,
        )
        accounts = await self._rows(
            "SELECT key_id FROM login_accounts WHERE key_id IN"
            f" (SELECT key_id FROM keys WHERE {where})",
            *arguments,
        )
        for (key_id,) in accounts:
            if key_id in keys:
                keys[key_id].signs_in = True
        now_ms = self.clock_ms()
        for key_id, prefix, hmac_secret, made_ms, ends_ms, used_ms in secrets:
            key = keys.get(key_id)
            if key is None:  # made between the two reads
                continue
            if used_ms is not None:
                key.used_at_ms = max(used_ms, key.used_at_ms or 0)
            is_valid = key.revoked_at_ms is None and (ends_ms is None or ends_ms > now_ms)
            if not key.prefix or (is_valid and not key.secrets):
                key.prefix, key.signed = prefix, hmac_secret is not None
            if is_valid:
                key.secrets.append(
                    records.Secret(
                        prefix=prefix,
                        signed=hmac_secret is not None,
                        created_at_ms=made_ms,
                        ends_at_ms=ends_ms,
                        used_at_ms=used_ms,
                    )
                )
        return [*keys.values()]

    async def find_operator(self, name: str) -> tuple[Operator, str] | None:
        """Return an operator and the hash of the password."""
        rows = await self._rows(f"{OPERATORS.select()} WHERE name = ?", name)
        return operator_from_row(rows[0]) if rows else None

    async def operators(self, organisation_id: str | None) -> list[Operator]:
        """Return the operators of one organisation, or of all and of each, by name."""
        where, arguments = equals(organisation_id=organisation_id)
        rows = await self._rows(
            f"{OPERATORS.select()} WHERE {where or 'true'} ORDER BY name", *arguments
        )
        return [operator_from_row(row)[0] for row in rows]

    async def sessions(self, organisation_id: str | None) -> list[tuple[bytes, SessionView]]:
        """Return sessions and the hashes of their tokens, of one organisation's operators or all.

        The newest are first; some may have ended.
        """
        where, arguments = equals(organisation_id=organisation_id)
        rows = await self._rows(
            "SELECT s.token_hash, o.name, o.organisation_id, s.created_at_ms, s.seen_at_ms,"
            " s.expires_at_ms, s.signed_in_by, s.signed_in_from"
            " FROM sessions s JOIN operators o USING (operator_id)"
            f" WHERE {where or 'true'} ORDER BY s.created_at_ms DESC, s.token_hash",
            *arguments,
        )
        return [session_view_from_row(row) for row in rows]

    async def has_operators(self) -> bool:
        """Return whether there is an operator who can sign in."""
        return bool(await self._rows("SELECT 1 FROM operators LIMIT 1"))

    async def find_session(self, token_hash: bytes) -> OperatorSession | None:
        """Return a session in any state, or ``None``."""
        rows = await self._rows(
            f"SELECT {OPERATORS.names('o')}, s.created_at_ms, s.seen_at_ms,"
            " s.expires_at_ms FROM sessions s JOIN operators o USING (operator_id)"
            " WHERE token_hash = ?",
            token_hash,
        )
        return session_from_row(rows[0]) if rows else None

    # -- guard login ---------------------------------------------------------------------------

    async def sign_on_rules(self) -> list[logins.GroupRule]:
        """Return the table of groups."""
        rows = await self._rows("SELECT value FROM facts WHERE name = ?", login_tables.GROUPS)
        return wire.decode(rows[0][0], list[logins.GroupRule]) if rows else []

    async def login_code(self, user_code: str) -> logins.LoginCode | None:
        """Return a code by what its person enters, in any state."""
        rows = await self._rows("SELECT record FROM login_codes WHERE user_code = ?", user_code)
        return _decoded(rows, logins.LoginCode)[0] if rows else None

    async def login_codes_since(self, ends_ms: int, asked_from: str) -> tuple[int, int]:
        """Return how many codes end later, of all and of those asked for from a network."""
        [(of_all, own)] = await self._rows(
            "SELECT count(*), coalesce(sum(CASE WHEN asked_from = ? THEN 1 ELSE 0 END), 0)"
            " FROM login_codes WHERE code_ends_ms > ?", asked_from, ends_ms,
        )  # fmt: skip
        return int(of_all), int(own)

    async def login(self, login_id: str) -> logins.Login | None:
        """Return a login, in any state."""
        rows = await self._rows("SELECT record FROM logins WHERE login_id = ?", login_id)
        return _decoded(rows, logins.Login)[0] if rows else None

    async def login_of(self, key_hash: bytes) -> str | None:
        """Return the login that an access token belongs to, by the token's hash."""
        rows = await self._rows("SELECT login_id FROM secrets WHERE key_hash = ?", key_hash)
        return rows[0][0] if rows else None

    # -- catalogue -----------------------------------------------------------------------------

    async def budgets(self, organisation_id: str) -> list[records.BudgetRule]:
        """Return the budgets of an organisation."""
        rows = await self._rows(f"{BUDGETS.select()} WHERE organisation_id = ?", organisation_id)
        return [*map(BUDGETS.read, rows)]

    async def budget_count(self, organisation_id: str) -> int:
        """Return how many budgets an organisation has."""
        [(count,)] = await self._rows(
            "SELECT count(*) FROM budgets WHERE organisation_id = ?", organisation_id
        )
        return int(count)

    async def call_budgets(self, organisation_id: str) -> list[records.BudgetRule]:
        """Return the limits of calls of an organisation, the first thousand."""
        rows = await self._rows(
            f"{BUDGETS.select()} WHERE organisation_id = ? AND unit <> 'usd' AND unit = 'calls'"
            f" ORDER BY scope_kind, scope_id LIMIT {CALL_BUDGETS_MAX}",
            organisation_id,
        )
        return [*map(BUDGETS.read, rows)]

    async def budget_raises(
        self, organisation_id: str, budget_id: str | None, limit: int
    ) -> list[records.BudgetRaise]:
        """Return raises of one budget, or of all, newest first."""
        where, arguments = equals(organisation_id=organisation_id, budget_id=budget_id)
        rows = await self._rows(
            f"{RAISES.select()} WHERE {where}"
            " ORDER BY raised_at_ms DESC, raise_key DESC LIMIT ?",
            *arguments, limit,
        )  # fmt: skip
        return [*map(RAISES.read, rows)]

    async def budget_asks(self, organisation_id: str, limit: int) -> list[records.BudgetAsk]:
        """Return the calls that wait for a raise, in the order of asking."""
        rows = await self._rows(
            "SELECT ask FROM budget_asks WHERE organisation_id = ? AND ask_seen_ms >= ?"
            " ORDER BY asking_call LIMIT ?",
            organisation_id, self.clock_ms() - LAPSE_MS, limit,
        )  # fmt: skip
        found = [ask for ask in _decoded(rows, records.BudgetAsk) if not ask.refused_by]
        return sorted(found, key=lambda ask: (ask.asked_at_ms, ask.call_id))

    async def find_budget_ask(self, balance_id: int, call_id: str) -> records.BudgetAsk | None:
        """Return a call's question to a balance."""
        rows = await self._rows(
            "SELECT ask FROM budget_asks WHERE balance_id = ? AND asking_call = ?",
            balance_id, call_id,
        )  # fmt: skip
        return _decoded(rows, records.BudgetAsk)[0] if rows else None

    async def find_approval(self, approval_id: str) -> records.Approval | None:
        """Return an approval."""
        rows = await self._rows(f"{APPROVALS.select()} WHERE approval_id = ?", approval_id)
        return approval_from_row(rows[0]) if rows else None

    async def policies(self, organisation_id: str) -> list[records.Policy]:
        """Return the current policies, by name."""
        rows = await self._rows(
            "SELECT record FROM policies WHERE organisation_id = ? AND current = 1 ORDER BY name",
            organisation_id,
        )
        return _decoded(rows, records.Policy)

    async def policy_versions(self, organisation_id: str, name: str) -> list[records.Policy]:
        """Return every version of a policy, newest first."""
        rows = await self._rows(
            "SELECT record FROM policies WHERE organisation_id = ? AND name = ?"
            " ORDER BY policy_id DESC, version DESC",
            organisation_id, name,
        )  # fmt: skip
        return _decoded(rows, records.Policy)

    async def prices(self, organisation_id: str) -> list[records.Price]:
        """Return the operator's prices."""
        rows = await self._rows(
            "SELECT record FROM prices WHERE organisation_id = ? ORDER BY provider, model",
            organisation_id,
        )
        return _decoded(rows, records.Price)

    async def facts(self, organisation_id: str) -> list[OwnFact]:
        """Return what the operators of an organisation have judged."""
        rows = await self._rows(
            "SELECT record FROM own_facts WHERE organisation_id = ?", organisation_id
        )
        return wire.decode(rows[0][0], list[OwnFact]) if rows else []

    async def webhooks(self, organisation_id: str) -> list[records.Webhook]:
        """Return the webhooks, without their secrets."""
        rows = await self._rows(
            f"{_SELECT_WEBHOOKS} WHERE organisation_id = ? AND NOT ({IS_NAMED})"
            " ORDER BY webhook_id",
            organisation_id,
        )
        return [*map(WEBHOOKS.read, rows)]

    async def channels(self, organisation_id: str) -> list[alerts.Channel]:
        """Return the channels that have a name, without their secrets."""
        rows = await self._rows(
            f"{_SELECT_WEBHOOKS} WHERE organisation_id = ? AND {IS_NAMED} ORDER BY url",
            organisation_id,
        )
        return [channel_from_row(row) for row in rows]

    async def find_channel(
        self, channel_id: str
    ) -> tuple[alerts.Channel, alerts.ChannelSecrets] | None:
        """Return a channel that has a name, and its secrets."""
        rows = await self._rows(
            f"{_SELECT_WEBHOOKS} WHERE webhook_id = ? AND {IS_NAMED}", channel_id
        )
        if not rows:
            return None
        return channel_from_row(rows[0]), wire.decode(
            rows[0][WEBHOOKS.width], alerts.ChannelSecrets
        )

    async def alert_rules(self, organisation_id: str) -> list[alerts.AlertRule]:
        """Return the rules of alerts, by name."""
        rows = await self._rows(
            "SELECT alert_rule FROM alert_rules WHERE organisation_id = ? ORDER BY alert_name",
            organisation_id,
        )
        return _decoded(rows, alerts.AlertRule)

    async def all_alert_rules(self) -> list[tuple[str, alerts.AlertRule]]:
        """Return the rules of all organisations, with whose they are."""
        rows = await self._rows("SELECT organisation_id, alert_rule FROM alert_rules")
        return [(own, wire.decode(text, alerts.AlertRule)) for own, text in rows]

    async def acceleration_policies(self) -> dict[str, list[records.Policy]]:
        """Return the policies about accelerating spend, by organisation."""
        rows = await self._rows(
            "SELECT organisation_id, record FROM policies WHERE current = 1 AND record LIKE ?",
            '%"on_accelerating_spend":"%',
        )
        found: dict[str, list[records.Policy]] = {}
        for own, text in rows:
            policy = wire.decode(text, records.Policy)
            if policy.enabled and policy.document.on_accelerating_spend is not None:
                found.setdefault(own, []).append(policy)
        return found

    # -- changes -------------------------------------------------------------------------------

    async def watermarks(
        self, seen: Mapping[str, usage.Watermark | None]
    ) -> dict[str, usage.Watermark]:
        """Return each organisation's watermark, given its last one (``None``: none yet)."""

        def work(connection: Connection) -> dict[str, usage.Watermark]:
            found = {}
            for organisation_id, known in seen.items():
                start = known if known is not None else _first_watermark(connection)
                found[organisation_id] = _newer(connection, organisation_id, start)
            return found

        return await self.look_up(work)

    async def _rows(self, sql: str, *arguments: Any) -> list[Any]:
        return await self.look_up(lambda connection: connection.rows(sql, *arguments))


def _snapshot(
    connection: Connection, organisation_id: str, key_id: str, now_ms: int
) -> list[wire.ControlMessage]:
    own = "organisation_id = ? AND (key_id IS NULL OR key_id = ?)"
    rows = connection.rows(
        f"SELECT message FROM directives WHERE {own} AND target > '' AND slot <> 'budget'"
        " UNION ALL SELECT message FROM directives INDEXED BY directives_runs"
        f" WHERE {own} AND run_id <> '' AND at_ms >= ? UNION ALL"
        f" SELECT * FROM (SELECT message FROM directives WHERE {own} AND slot = 'budget'"
        " ORDER BY at_ms DESC LIMIT ?) budgets UNION ALL"
        f" SELECT * FROM (SELECT message FROM control WHERE {own}"
        " ORDER BY seq DESC LIMIT 1) newest",
        organisation_id, key_id, organisation_id, key_id, now_ms - DAY_MS,
        organisation_id, key_id, SNAPSHOT_BUDGETS_MAX, organisation_id, key_id,
    )  # fmt: skip
    found = {message.seq: message for message in _decoded(rows, wire.ControlMessage)}
    newest = max(found, default=0)
    return [
        message
        for seq, message in sorted(found.items())
        if seq == newest or not is_timed(message) or now_ms < end_of(message)
    ]


def _decoded(rows: list[Any], kind: type[T]) -> list[T]:
    return [wire.decode(row[0], kind) for row in rows]


def _newer(connection: Connection, organisation_id: str, seen: usage.Watermark) -> usage.Watermark:
    """Return the organisation's watermark. Reads only rows newer than ``seen``."""

    def newest(table: str, column: str, known: Any) -> Any:
        sql = f"SELECT max({column}) FROM {table} WHERE organisation_id = ? AND {column} > ?"
        value = connection.rows(sql, organisation_id, known)[0][0]
        return known if value is None else value

    control = connection.rows(
        "SELECT control_seq FROM organisations WHERE organisation_id = ?", organisation_id
    )
    asks = connection.rows(
        "SELECT count(*), max(asking_call) FROM (SELECT asking_call FROM budget_asks"
        " WHERE organisation_id = ? ORDER BY asking_call DESC LIMIT ?) newest",
        organisation_id, _ASKS_MAX,
    )[0]  # fmt: skip
    return usage.Watermark(
        event_seq=newest("events", "event_seq", seen.event_seq),
        reservation_id=newest("reservations", "reservation_id", seen.reservation_id),
        refusal_seq=newest("refusals", "refusal_seq", seen.refusal_seq),
        approval_id=newest("approvals", "approval_id", seen.approval_id),
        control_seq=control[0][0] if control else 0,
        audit_seq=newest("audit", "seq", seen.audit_seq),
        asks=f"{asks[0]} {asks[1] or ''}",
    )


def _first_watermark(connection: Connection) -> usage.Watermark:
    """Return a watermark at the newest rows of all organisations."""

    def newest(table: str, column: str, nothing: Any) -> Any:
        sql = f"SELECT max({column}) FROM {table}"
        return connection.rows(sql)[0][0] or nothing

    return usage.Watermark(
        event_seq=newest("events", "event_seq", 0),
        reservation_id=newest("reservations", "reservation_id", ""),
        refusal_seq=newest("refusals", "refusal_seq", 0),
        approval_id=newest("approvals", "approval_id", ""),
        control_seq=-1,
        audit_seq=newest("audit", "seq", 0),
    )
