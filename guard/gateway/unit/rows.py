"""The tables whose rows are structs of the domain, and the machine's clocks."""

from __future__ import annotations

import functools
import json
import time
from typing import Any, Final

from guard.core import wire
from guard.gateway.domain import alerts, records, usage
from guard.gateway.domain.estimates import Estimate
from guard.gateway.domain.ledger import Balance, Reservation
from guard.gateway.domain.nesting import DEPTH_MAX, nested_deeper
from guard.gateway.domain.operators import Operator, OperatorSession, SessionView
from guard.gateway.domain.rate_window import RateWindow
from guard.gateway.domain.repeats import RepeatCount
from guard.gateway.unit.record import StructTable
from guard.gateway.unit.state import ChainState


def _event_data(text: str) -> dict[str, Any]:
    """Read an event's data; data nested too deeply to be shown does not fail the whole page."""
    if nested_deeper(text.encode(), DEPTH_MAX):
        return {"unreadable": "nested too deeply"}
    data: dict[str, Any] = json.loads(text)
    return data


ORGANISATIONS: Final = StructTable(records.Organisation, "organisations")
KEYS: Final = StructTable(records.Key, "keys")
ALIASED: Final = "SELECT a.key_id FROM key_aliases a WHERE a.alias_id = ?"
"""A query of the key that had another id in release 0.7."""

OPERATORS: Final = StructTable(
    Operator, "operators", columns={"role": "operator_role"}, apart=("password_hash",)
)
BUDGETS: Final = StructTable(records.BudgetRule, "budgets", columns={"limit": "limit_amount"})
RAISES: Final = StructTable(
    records.BudgetRaise,
    "budget_raises",
    columns={"by": "by_amount", "limit": "raised_to", "unit": "raised_unit"},
)
BALANCES: Final = StructTable(Balance, "balances")
RESERVATIONS: Final = StructTable(Reservation, "reservations", columns={"user": "user_id"})
CHAINS: Final = StructTable(ChainState, "chains", apart=("organisation_id", "chain_id"))
ESTIMATES: Final = StructTable(Estimate, "estimates", apart=("organisation_id", "subject"))
RATE_WINDOWS: Final = StructTable(RateWindow, "rate_windows", apart=("organisation_id", "bucket"))
REPEATS: Final = StructTable(
    RepeatCount,
    "repeats",
    columns={"kind": "loop_kind", "last_ms": "counted_ms", "action": "loop_action"},
    apart=("organisation_id", "digest"),
)
APPROVALS: Final = StructTable(
    records.Approval,
    "approvals",
    columns={"user": "user_id", "arguments": "arguments_digest"},
    apart=("key_id", "subject", "note"),
)
WEBHOOKS: Final = StructTable(
    records.Webhook, "webhooks", apart=("secret", "channel_kind", "channel_options")
)
EVENTS: Final = StructTable(
    records.StoredEvent,
    "events",
    columns={"user": "user_id"},
    codecs={"flags": (str.split, " ".join), "data": (_event_data, json.dumps)},
)
REFUSALS: Final = StructTable(
    usage.Refused, "refusals", columns={"user": "user_id"}, apart=("organisation_id",)
)
AUDIT: Final = StructTable(records.AuditEntry, "audit")


def approval_from_row(row: tuple[Any, ...]) -> records.Approval:
    """Build an approval from its row."""
    approval = APPROVALS.read(row)
    note = wire.decode(row[APPROVALS.width + 2], wire.ApprovalNote)
    approval.message, approval.details = note.message, note.details
    return approval


def key_from_row(row: tuple[Any, ...]) -> records.KeySecret:
    """Build a key from its row and one of its secrets: its beginning, HMAC secret and ends."""
    key = KEYS.read(row)
    key.prefix, secret, ends_ms, works_until_ms = row[KEYS.width :]
    key.signed = secret is not None
    ends = [each for each in (key.expires_at_ms, ends_ms) if each is not None]
    key.expires_at_ms = min(ends, default=None)
    return records.KeySecret(key, secret, works_until_ms)


NAMED: Final = "channel:"
"""Prefix of a channel's name, which is stored in the column of a webhook's address."""

IS_NAMED: Final = "url >= 'channel:' AND url < 'channel;'"
"""The condition of webhooks' rows that are channels with a name."""


def channel_from_row(row: tuple[Any, ...]) -> alerts.Channel:
    """Build a channel, without its secrets, from its row; a webhook without a name has none."""
    webhook = WEBHOOKS.read(row)
    _, kind, options = row[WEBHOOKS.width :]
    is_named = webhook.url.startswith(NAMED)
    return alerts.Channel(
        channel_id=webhook.webhook_id,
        organisation_id=webhook.organisation_id,
        name=webhook.url.removeprefix(NAMED) if is_named else "",
        kind=kind,
        options=(
            wire.decode(options, alerts.ChannelOptions)
            if is_named
            else alerts.ChannelOptions(url=webhook.url)
        ),
        enabled=webhook.enabled,
        created_at_ms=webhook.created_at_ms,
    )


def operator_from_row(row: tuple[Any, ...]) -> tuple[Operator, str]:
    """Build an operator, and the password's hash, from a row."""
    operator, password_hash = OPERATORS.read(row), row[OPERATORS.width]
    operator.has_password = bool(password_hash)
    return operator, password_hash


def session_from_row(row: tuple[Any, ...]) -> OperatorSession:
    """Build a session from a row of operators and the times of the session."""
    operator, _ = operator_from_row(row)
    created_at_ms, seen_at_ms, expires_at_ms = row[OPERATORS.width + 1 :]
    return OperatorSession(
        operator=operator,
        created_at_ms=created_at_ms,
        seen_at_ms=seen_at_ms,
        expires_at_ms=expires_at_ms,
    )


def session_view_from_row(row: tuple[Any, ...]) -> tuple[bytes, SessionView]:
    """Build the hash of a session's token, and what owners see of the session, from a row."""
    token_hash = bytes(row[0])
    return token_hash, SessionView(
        session_id=token_hash.hex()[:16], name=row[1], organisation_id=row[2],
        created_at_ms=row[3], seen_at_ms=row[4], expires_at_ms=row[5], signed_in_by=row[6],
        signed_in_from=row[7],
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def ids_text(balance_ids: tuple[int, ...]) -> str:
    """Return balance numbers as the JSON of their column."""
    return json.dumps(balance_ids)


def wall_clock_ms() -> int:
    """Return the time of the machine that holds the store, in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def monotonic_clock_ms() -> int:
    """Return monotonic time in milliseconds."""
    return time.monotonic_ns() // 1_000_000
