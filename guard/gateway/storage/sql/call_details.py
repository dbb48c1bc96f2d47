"""One event or one refused call with all that is stored of it. Every query is bounded."""

from __future__ import annotations

import json
from typing import Any, Final

from guard.gateway.domain import records, usage
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.domain.ledger import Reservation
from guard.gateway.storage.sql.admin_rows import (
    SELECT_BALANCE_VIEWS,
    balance_view_from_row,
)
from guard.gateway.unit.connection import Connection
from guard.gateway.unit.rows import EVENTS, REFUSALS, RESERVATIONS

REFUSALS_MAX: Final = 20
"""Refusals of one call that are shown."""

_BALANCES_MAX: Final = 50


def event_details(
    connection: Connection, organisation_id: str, event_seq: int
) -> usage.EventDetails:
    """Return an event, what it was charged to and held, and what has refused its call.

    Raises:
        NotFoundError: the organisation has no such event.
    """
    rows = connection.rows(
        f"SELECT {EVENTS.names()}, charged_at_ms, provider, response_id, request_id, balance_ids,"
        " input_tokens, output_tokens FROM events WHERE organisation_id = ? AND event_seq = ?",
        organisation_id, event_seq,
    )  # fmt: skip
    if not rows:
        raise NotFoundError("no such event")
    row = rows[0]
    event = EVENTS.read(row)
    charged_at_ms, provider, response_id, request_id, balance_ids, read, written = row[22:]
    refused = []
    if event.call_id is not None:
        refused = refusals_of_call(connection, organisation_id, event.call_id)
    return usage.EventDetails(
        event=event, charged_at_ms=charged_at_ms, provider=provider, response_id=response_id,
        request_id=request_id, input_tokens=read, output_tokens=written,
        balances=_balances(connection, organisation_id, json.loads(balance_ids or "[]")),
        held=_reservation(connection, organisation_id, event.reservation_id), refused=refused,
    )  # fmt: skip


def refusal(connection: Connection, organisation_id: str, refusal_seq: int) -> usage.Refused:
    """Return one refusal.

    Raises:
        NotFoundError: the organisation has no such refusal, or it is too old.
    """
    rows = connection.rows(
        f"SELECT {REFUSALS.names()} FROM refusals WHERE organisation_id = ? AND refusal_seq = ?",
        organisation_id, refusal_seq,
    )  # fmt: skip
    if not rows:
        raise NotFoundError("no such refusal; the newest 100,000 are kept")
    return REFUSALS.read(rows[0])


def refusals_of_call(
    connection: Connection, organisation_id: str, call_id: str
) -> list[usage.Refused]:
    """Return how often and why a call was refused, newest first."""
    rows = connection.rows(
        f"SELECT {REFUSALS.names()} FROM refusals WHERE organisation_id = ? AND call_id = ?"
        " ORDER BY refusal_seq DESC LIMIT ?",
        organisation_id, call_id, REFUSALS_MAX,
    )  # fmt: skip
    return [*map(REFUSALS.read, rows)]


def _reservation(
    connection: Connection, organisation_id: str, reservation_id: str | None
) -> usage.Held | None:
    if reservation_id is None:
        return None
    rows = connection.rows(
        f"{RESERVATIONS.select()} WHERE organisation_id = ? AND reservation_id = ?",
        organisation_id, reservation_id,
    )  # fmt: skip
    if not rows:
        return None
    found: Reservation = RESERVATIONS.read(rows[0])
    return usage.Held(
        reservation_id=found.reservation_id, state=found.state, basis=found.basis,
        function=found.function, amount_nanousd=found.amount, held_nanousd=found.held,
        spent_nanousd=found.spent, created_at_ms=found.created_at_ms,
        expires_at_ms=found.expires_at_ms,
        metered=[(each.unit, each.amount) for each in found.metered],
    )  # fmt: skip


def _balances(
    connection: Connection, organisation_id: str, ids: list[Any]
) -> list[records.BalanceView]:
    """Return the balances that an event was charged to, as they are now."""
    ids = ids[:_BALANCES_MAX]
    if not ids:
        return []
    rows = connection.rows(
        f"{SELECT_BALANCE_VIEWS} budgets u JOIN balances b USING (budget_id)"
        f" WHERE u.organisation_id = ? AND b.balance_id IN ({', '.join('?' * len(ids))})"
        " ORDER BY b.balance_id",
        organisation_id, *(int(each) for each in ids),
    )  # fmt: skip
    return [balance_view_from_row(row) for row in rows]
