"""Reading for operators, on a connection of its own that never waits for the writer."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

import msgspec

from guard.core import wire
from guard.gateway.domain import records
from guard.gateway.domain.control import ControlBook, Standing
from guard.gateway.domain.ledger import Account, Balance
from guard.gateway.domain.nesting import DEPTH_MAX, nested_deeper
from guard.gateway.storage.port import NotFoundError, StoredControl
from guard.gateway.storage.sqlite.control import approval_from_row
from guard.gateway.storage.sqlite.rows import budget_from_row

GROUPS: Final = {
    "workflow": "workflow_id",
    "run": "run_id",
    "agent": "agent",
    "chain": "chain_id",
    "key": "key_id",
    "model": "model",
    "provider": "provider",
    "type": "type",
    "hour": "strftime('%Y-%m-%dT%H:00Z', charged_at_ms / 1000, 'unixepoch')",
    "day": "strftime('%Y-%m-%d', charged_at_ms / 1000, 'unixepoch')",
    "total": "NULL",
}
"""What usage can be grouped by, and the column or expression for it."""

EVENT_COLUMNS: Final = (
    "event_seq, event_id, type, at_ms, received_at_ms, workflow_id, run_id, chain_id, agent,"
    " call_id, reservation_id, key_id, model, cost_nanousd, price_source, flags, data, trace_id,"
    " span_id, parent_span_id"
)
"""The columns of an event that operators see, in the order of :func:`event_from_row`."""


class Reader:
    """Queries over one read-only connection; used from one thread at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def rows(self, sql: str, *arguments: Any) -> list[Any]:
        """Return all rows of a query."""
        return self.connection.execute(sql, arguments).fetchall()

    def checkpoint(self) -> int:
        """Copy what can be copied of the write-ahead log; return its length in pages."""
        _, log_pages, _ = self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return int(log_pages)

    def control_book(self, organisation_id: str) -> ControlBook:
        """Return the standing orders of an organisation."""
        book = ControlBook()
        for (message,) in self.rows(
            "SELECT message FROM orders WHERE organisation_id = ?", organisation_id
        ):
            book.apply(msgspec.json.decode(message, type=wire.ControlMessage))
        return book

    def control_after(self, organisation_id: str, after: int, limit: int) -> list[StoredControl]:
        """Return messages newer than ``after``, oldest first."""
        return [
            StoredControl(msgspec.json.decode(message, type=wire.ControlMessage), key_id)
            for message, key_id in self.rows(
                "SELECT message, key_id FROM control WHERE organisation_id = ? AND seq > ?"
                " ORDER BY seq LIMIT ?",
                organisation_id, after, limit,
            )
        ]  # fmt: skip

    def workflows(
        self, organisation_id: str, after: str, limit: int, now_ms: int
    ) -> list[records.Workflow]:
        """Return workflows by id: those seen, and those that only an order names."""
        book = self.control_book(organisation_id)
        seen = {
            row[0]: workflow_record(row, book.standing(row[0], None, now_ms))
            for row in self.rows(
                "SELECT workflow_id, first_seen_ms, last_seen_ms, spent_nanousd, calls, events"
                " FROM workflows WHERE organisation_id = ? AND workflow_id > ?"
                " ORDER BY workflow_id LIMIT ?",
                organisation_id, after, limit,
            )
        }  # fmt: skip
        for target in book.targets():
            if target > after and target not in seen:
                row = self._workflow_row(organisation_id, target)
                standing = book.standing(target, None, now_ms)
                seen[target] = workflow_record(row or (target, None, None, 0, 0, 0), standing)
        return sorted(seen.values(), key=lambda workflow: workflow.workflow_id)[:limit]

    def workflow(self, organisation_id: str, workflow_id: str, now_ms: int) -> records.Workflow:
        """Return one workflow.

        Raises:
            NotFoundError: neither seen nor named by an order.
        """
        book = self.control_book(organisation_id)
        row = self._workflow_row(organisation_id, workflow_id)
        if row is None and workflow_id not in book.targets():
            raise NotFoundError("no such workflow")
        standing = book.standing(workflow_id, None, now_ms)
        return workflow_record(row or (workflow_id, None, None, 0, 0, 0), standing)

    def _workflow_row(self, organisation_id: str, workflow_id: str) -> tuple[Any, ...] | None:
        rows = self.rows(
            "SELECT workflow_id, first_seen_ms, last_seen_ms, spent_nanousd, calls, events"
            " FROM workflows WHERE organisation_id = ? AND workflow_id = ?",
            organisation_id, workflow_id,
        )  # fmt: skip
        return rows[0] if rows else None

    def runs(
        self, organisation_id: str, workflow_id: str | None, after: str, limit: int, now_ms: int
    ) -> list[records.Run]:
        """Return runs by id, of one workflow or of all."""
        book = self.control_book(organisation_id)
        return [
            records.Run(
                run_id=row[0], workflow_id=row[1], first_seen_ms=row[2], last_seen_ms=row[3],
                spent_nanousd=row[4], state=book.standing(row[1], row[0], now_ms).state,
            )
            for row in self.rows(
                "SELECT run_id, workflow_id, first_seen_ms, last_seen_ms, spent_nanousd FROM runs"
                " WHERE organisation_id = ? AND run_id > ? AND (? IS NULL OR workflow_id = ?)"
                " ORDER BY run_id LIMIT ?",
                organisation_id, after, workflow_id, workflow_id, limit,
            )
        ]  # fmt: skip

    def events(
        self, organisation_id: str, after: int, limit: int, workflow_id: str | None,
        event_type: str | None,
    ) -> list[records.StoredEvent]:  # fmt: skip
        """Return events in the order of arrival."""
        return [
            event_from_row(row)
            for row in self.rows(
                f"SELECT {EVENT_COLUMNS} FROM events WHERE organisation_id = ? AND event_seq > ?"  # noqa: S608 (constant text)
                " AND (? IS NULL OR workflow_id = ?) AND (? IS NULL OR type = ?)"
                " ORDER BY event_seq LIMIT ?",
                organisation_id, after, workflow_id, workflow_id, event_type, event_type, limit,
            )
        ]  # fmt: skip

    def usage(
        self, organisation_id: str, group_by: str, since_ms: int, until_ms: int, limit: int
    ) -> list[records.UsageRow]:
        """Return usage summed by group, dearest first. ``group_by`` is a key of ``GROUPS``."""
        expression = GROUPS[group_by]
        return [
            records.UsageRow(
                group=row[0], events=row[1], llm_calls=row[2], tool_calls=row[3],
                input_tokens=row[4], output_tokens=row[5], cost_nanousd=row[6],
                cost_cents=wire.cents(row[6]), unpriced=row[7],
            )
            for row in self.rows(
                f"SELECT {expression} AS grp, count(*), coalesce(sum(type = 'llm'), 0),"  # noqa: S608 (constant text)
                " coalesce(sum(type = 'tool'), 0),"
                " coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0),"
                " coalesce(sum(cost_nanousd), 0) AS cost, coalesce(sum(flags LIKE '%unpriced%'), 0)"
                " FROM events WHERE organisation_id = ? AND charged_at_ms >= ?"
                " AND charged_at_ms < ? GROUP BY grp ORDER BY cost DESC, grp LIMIT ?",
                organisation_id, since_ms, until_ms, limit,
            )
        ]  # fmt: skip

    def balances(
        self, organisation_id: str, now_ms: int, *, current_only: bool
    ) -> list[records.BalanceView]:
        """Return balances with their budgets."""
        rows = self.rows(
            "SELECT b.*, u.* FROM balances b JOIN budgets u USING (budget_id)"
            " WHERE u.organisation_id = ? AND (? OR coalesce(b.ends_ms, ?) > ?)"
            " ORDER BY b.balance_id",
            organisation_id, not current_only, 2**62, now_ms,
        )  # fmt: skip
        return [balance_from_row(row) for row in rows]

    def approvals(
        self, organisation_id: str, status: str | None, limit: int
    ) -> list[records.Approval]:
        """Return approvals, newest first."""
        return [
            approval_from_row(row)
            for row in self.rows(
                "SELECT * FROM approvals WHERE organisation_id = ? AND (? IS NULL OR status = ?)"
                " ORDER BY approval_id DESC LIMIT ?",
                organisation_id, status, status, limit,
            )
        ]  # fmt: skip

    def deliveries(self, organisation_id: str, limit: int) -> list[records.Delivery]:
        """Return webhook deliveries, newest first."""
        return [
            records.Delivery(
                delivery_id=row[0], webhook_id=row[1], type=row[2], created_at_ms=row[3],
                attempts=row[4], delivered_at_ms=row[5], failed=bool(row[6]), last_status=row[7],
            )
            for row in self.rows(
                "SELECT delivery_id, webhook_id, type, created_at_ms, attempts, delivered_at_ms,"
                " failed, last_status FROM deliveries WHERE organisation_id = ?"
                " ORDER BY delivery_id DESC LIMIT ?",
                organisation_id, limit,
            )
        ]  # fmt: skip


def event_from_row(row: tuple[Any, ...]) -> records.StoredEvent:
    """Build an event from ``EVENT_COLUMNS``."""
    return records.StoredEvent(
        event_seq=row[0], event_id=row[1], type=row[2], at_ms=row[3], received_at_ms=row[4],
        workflow_id=row[5], run_id=row[6], chain_id=row[7], agent=row[8], call_id=row[9],
        reservation_id=row[10], key_id=row[11], model=row[12], cost_nanousd=row[13],
        price_source=row[14], flags=row[15].split(), data=_event_data(row[16]), trace_id=row[17],
        span_id=row[18], parent_span_id=row[19],
    )  # fmt: skip


def balance_from_row(row: tuple[Any, ...]) -> records.BalanceView:
    """Build a balance with its budget from their joined row."""
    balance = Balance(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8],
                      row[9], row[10], bool(row[11]))  # fmt: skip
    return balance_view(Account(budget_from_row(row[12:]), balance))


def balance_view(account: Account) -> records.BalanceView:
    """Return a balance as the admin API shows it."""
    rule, balance = account.rule, account.balance
    return records.BalanceView(
        balance_id=balance.balance_id,
        budget_id=rule.budget_id,
        scope_kind=rule.scope_kind,
        scope_id=balance.scope_id,
        window=rule.window,
        epoch_ms=balance.epoch_ms,
        ends_ms=balance.ends_ms,
        mode=rule.mode,
        limit_nanousd=rule.limit_nanousd,
        committed_nanousd=balance.committed,
        reserved_nanousd=balance.reserved,
        remaining_nanousd=account.room(),
        overshoot_nanousd=balance.overshoot,
        limit_cents=wire.cents(rule.limit_nanousd),
        committed_cents=wire.cents(balance.committed),
        reserved_cents=wire.cents(balance.reserved),
        exhausted=balance.exhausted,
    )


def workflow_record(row: tuple[Any, ...], standing: Standing) -> records.Workflow:
    """Build a workflow from its row and its control state."""
    return records.Workflow(
        workflow_id=row[0],
        state=standing.state,
        reason=standing.reason,
        resume_at_ms=standing.resume_at_ms,
        first_seen_ms=row[1],
        last_seen_ms=row[2],
        spent_nanousd=row[3],
        spent_cents=wire.cents(row[3]),
        calls=row[4],
        events=row[5],
    )


def _event_data(text: str) -> dict[str, Any]:
    """Read an event's data; what was stored too deep to be shown does not fail the whole page."""
    if nested_deeper(text.encode(), DEPTH_MAX):
        return {"unreadable": "nested too deeply"}
    data: dict[str, Any] = json.loads(text)
    return data
