"""Rows of the SQL stores as the domain's types, and the machine's clocks."""

from __future__ import annotations

import functools
import json
import time
from typing import Any, Final, cast

import msgspec

from guard.core import wire
from guard.gateway.domain import alerts, records
from guard.gateway.domain.ledger import Balance, MeteredHold, Reservation
from guard.gateway.domain.operators import Operator, OperatorSession, SessionView


def stored_kind(unit: records.BudgetUnit, scope_kind: str) -> str:
    """Return a budget's kind of scope as it is stored: prefixed with its unit, except for money.

    Older gateways, which support money only, ignore kinds that they do not know.
    """
    return scope_kind if unit == "usd" else f"{unit}:{scope_kind}"


def budget_from_row(row: tuple[Any, ...]) -> records.BudgetRule:
    """Build a budget from its row."""
    unit, _, kind = row[2].rpartition(":")
    return records.BudgetRule(
        budget_id=row[0], organisation_id=row[1],
        scope_kind=cast("records.ScopeKind", kind), scope_id=row[3],
        window=row[4], limit_nanousd=row[5], mode=row[6], epsilon_nanousd=row[7],
        thresholds=json.loads(row[8]), version=row[9], created_at_ms=row[10],
        updated_at_ms=row[11], unit=cast("records.BudgetUnit", unit or "usd"),
        counts=json.loads(row[12]) if row[12] else [], on_exhausted=row[13], ask_ms=row[14],
        wind_down_percent=row[15],
    )  # fmt: skip


RAISE_COLUMNS: Final = (
    "organisation_id, raise_key, budget_id, by_nanousd, raised_to_nanousd, raised_at_ms, raised_by,"
    " raised_unit"
)


def raise_from_row(row: tuple[Any, ...]) -> records.BudgetRaise:
    """Build a raise from its row."""
    return records.BudgetRaise(
        organisation_id=row[0], raise_key=row[1], budget_id=row[2], by_nanousd=row[3],
        limit_nanousd=row[4], raised_at_ms=row[5], raised_by=row[6], unit=row[7],
    )  # fmt: skip


def balance_from_row(row: tuple[Any, ...]) -> Balance:
    """Build a balance from its row."""
    return Balance(
        balance_id=row[0], budget_id=row[1], scope_id=row[2], period_start_ms=row[3],
        ends_ms=row[4], opening=row[5], committed=row[6], reserved=row[7], overspend=row[8],
        authorized_max=row[9], level=row[10], exhausted=bool(row[11]),
        leases=row[12], refused_nanousd=row[13],
    )  # fmt: skip


def reservation_from_row(row: tuple[Any, ...]) -> Reservation:
    """Build a reservation from its row."""
    return Reservation(
        reservation_id=row[0], organisation_id=row[1], key_id=row[2], call_id=row[3],
        balance_ids=tuple(json.loads(row[4])), amount=row[5], held=row[6], created_at_ms=row[7],
        expires_at_ms=row[8], spent=row[9], state=row[10], basis=row[11], workflow_id=row[12],
        run_id=row[13], chain_id=row[14], agent=row[15], model=row[16], function=row[17],
        user=row[18], renewed=bool(row[19]), under_way=row[20], closing=bool(row[21]),
        metered=metered_from(row[22]) if row[22] else (),
    )  # fmt: skip


metered_from = msgspec.json.Decoder(tuple[MeteredHold, ...]).decode
"""Decodes the column with a reservation's holds on budgets of tokens and calls."""


def metered_text(metered: tuple[MeteredHold, ...]) -> str | None:
    """Return a reservation's holds on budgets of tokens and calls as the text of their column."""
    return msgspec.json.encode(metered).decode() if metered else None


def organisation_from_row(row: tuple[Any, ...]) -> records.Organisation:
    """Build an organisation from its row."""
    return records.Organisation(
        organisation_id=row[0],
        name=row[1],
        created_at_ms=row[2],
        settings=wire.decode(row[3], records.OrganisationSettings),
    )


def key_from_row(row: tuple[Any, ...]) -> records.KeySecret:
    """Build a key from its row."""
    key = records.Key(
        key_id=row[0], organisation_id=row[1], role=row[2], name=row[3], prefix=row[4],
        workflow_id=row[6], signed=row[7] is not None, created_at_ms=row[8],
        expires_at_ms=row[9], revoked_at_ms=row[10],
    )  # fmt: skip
    return records.KeySecret(key, row[7])


def approval_from_row(row: tuple[Any, ...]) -> records.Approval:
    """Build an approval from its row."""
    note = wire.decode(row[16], wire.ApprovalNote)
    return records.Approval(
        approval_id=row[0], organisation_id=row[1], call_id=row[3], status=row[5],
        tool_name=row[6], function=row[7], workflow_id=row[8], run_id=row[9], agent=row[10],
        requested_at_ms=row[11], deadline_ms=row[12], answered_at_ms=row[13],
        answered_by=row[14], reason=row[15], message=note.message, details=note.details,
        present_until_ms=row[17], user=row[18], arguments=row[19],
    )  # fmt: skip


NAMED: Final = "channel:"
"""Prefix of a channel's name, which is stored in the column of a webhook's address."""

IS_NAMED: Final = "url >= 'channel:' AND url < 'channel;'"
"""The condition of webhooks' rows that are channels with a name."""


def channel_from_row(row: tuple[Any, ...]) -> alerts.Channel:
    """Build a channel, without its secrets, from its row; a webhook without a name has none."""
    named = row[2].startswith(NAMED)
    options = alerts.ChannelOptions(url=row[2])
    return alerts.Channel(
        channel_id=row[0], organisation_id=row[1],
        name=row[2].removeprefix(NAMED) if named else "", kind=row[7],
        options=wire.decode(row[8], alerts.ChannelOptions) if named else options,
        enabled=bool(row[5]), created_at_ms=row[6],
    )  # fmt: skip


def webhook_from_row(row: tuple[Any, ...]) -> records.Webhook:
    """Build a webhook, without its secret, from its row."""
    return records.Webhook(
        webhook_id=row[0], organisation_id=row[1], url=row[2], types=json.loads(row[3]),
        enabled=bool(row[5]), created_at_ms=row[6],
    )  # fmt: skip


def operator_from_row(row: tuple[Any, ...]) -> tuple[Operator, str]:
    """Build an operator, and the password's hash, from a row."""
    operator = Operator(
        operator_id=row[0], name=row[1], organisation_id=row[2], role=row[6],
        has_password=bool(row[3]), created_at_ms=row[4], changed_at_ms=row[5],
    )  # fmt: skip
    return operator, row[3]


def session_from_row(row: tuple[Any, ...]) -> OperatorSession:
    """Build a session from a row of operators and the times of the session."""
    operator, _ = operator_from_row(row)
    return OperatorSession(
        operator=operator, created_at_ms=row[7], seen_at_ms=row[8], expires_at_ms=row[9]
    )


def session_view_from_row(row: tuple[Any, ...]) -> tuple[bytes, SessionView]:
    """Build the hash of a session's token, and what owners see of the session, from a row."""
    token_hash = bytes(row[0])
    return token_hash, SessionView(
        session_id=token_hash.hex()[:16], name=row[1], organisation_id=row[2],
        created_at_ms=row[3], seen_at_ms=row[4], expires_at_ms=row[5], signed_in_by=row[6],
        signed_in_from=row[7],
    )  # fmt: skip


def audit_entry_from_row(row: tuple[Any, ...]) -> records.AuditEntry:
    """Build an audit entry from its row."""
    return records.AuditEntry(
        seq=row[0], at_ms=row[1], organisation_id=row[2], actor=row[3], action=row[4],
        target=row[5], details=json.loads(row[6]), prev_hash=row[7], hash=row[8],
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
