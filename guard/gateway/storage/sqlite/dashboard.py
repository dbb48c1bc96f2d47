"""The dashboard's queries and operators on the embedded store. Every query is bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from guard.core import wire
from guard.gateway.domain import figures, records
from guard.gateway.domain.control import ControlBook
from guard.gateway.storage.port import Actor
from guard.gateway.storage.sqlite import audit as sqlite_audit
from guard.gateway.storage.sqlite import operators as sqlite_operators
from guard.gateway.storage.sqlite.core import SqliteCore
from guard.gateway.storage.sqlite.queries import (
    EVENT_COLUMNS,
    Reader,
    balance_from_row,
    event_from_row,
    workflow_record,
)

SCAN_MAX: Final = 20_000
"""Newest rows that a filter without an index of its own looks through."""

_SORTS: Final = {
    "seen": "last_seen_ms DESC, workflow_id",
    "spend": "spent_nanousd DESC, workflow_id",
    "name": "workflow_id",
}
_SCOPE_COLUMNS: Final = {"organisation": "''", "workflow": "workflow_id", "agent": "agent",
                         "chain": "chain_id", "key": "key_id", "model": "model"}  # fmt: skip
_SUMS: Final = (
    "sum(cost_nanousd), sum(llm_calls), sum(tool_calls), sum(input_tokens), sum(output_tokens)"
)


def newest_events(
    reader: Reader, organisation_id: str, before: int, limit: int, workflow_id: str | None,
    event_type: str | None, run_id: str | None,
) -> list[records.StoredEvent]:  # fmt: skip
    """Return events, newest first; a type or a run is looked for among the newest ``SCAN_MAX``."""
    where, arguments = "organisation_id = ? AND event_seq < ?", [organisation_id, before]
    if workflow_id is not None:
        where += " AND workflow_id = ?"
        arguments.append(workflow_id)
    filters = [
        (column, value)
        for column, value in (("type", event_type), ("run_id", run_id))
        if value is not None
    ]
    source = "events"
    if filters:
        source = f"(SELECT * FROM events WHERE {where} ORDER BY event_seq DESC LIMIT ?)"  # noqa: S608 (constant text)
        where = " AND ".join(f"{column} = ?" for column, _ in filters)
        arguments += [SCAN_MAX, *(value for _, value in filters)]
    sql = f"SELECT {EVENT_COLUMNS} FROM {source} WHERE {where} ORDER BY event_seq DESC LIMIT ?"  # noqa: S608 (constant text)
    return [event_from_row(row) for row in reader.rows(sql, *arguments, limit)]


def orders(reader: Reader, organisation_id: str, now_ms: int) -> list[figures.StandingOrder]:
    """Return the kills and pauses in force, newest first."""
    latest: dict[tuple[str, str], dict[str, wire.ControlMessage | None]] = {}
    for target, run_id, slot, text in reader.rows(
        "SELECT target, run_id, slot, message FROM orders WHERE organisation_id = ?",
        organisation_id,
    ):
        order = msgspec.json.decode(text, type=wire.ControlMessage)
        latest.setdefault((target, run_id), {})[slot] = order
    found = []
    for (target, run_id), slots in latest.items():
        life, flow = slots.get("life"), slots.get("flow")
        killed = life is not None and life.type == "kill"
        message = life if killed else flow
        if message is None or message.type not in ("kill", "pause"):
            continue
        resume_at_ms = None
        if message.type == "pause" and message.resume_after_ms is not None:
            resume_at_ms = message.at_ms + message.resume_after_ms
            if now_ms >= resume_at_ms:
                continue
        found.append(
            figures.StandingOrder(
                action="kill" if message.type == "kill" else "pause", target=target,
                run_id=run_id or None, reason=message.reason, at_ms=message.at_ms,
                resume_at_ms=resume_at_ms,
            )
        )  # fmt: skip
    return sorted(found, key=lambda order: -order.at_ms)


def workflow_page(
    reader: Reader, organisation_id: str, search: str, sort: figures.WorkflowSort, offset: int,
    limit: int, now_ms: int,
) -> list[records.Workflow]:  # fmt: skip
    """Return one page of the workflows seen."""
    book: ControlBook = reader.control_book(organisation_id)
    sql = (
        "SELECT workflow_id, first_seen_ms, last_seen_ms, spent_nanousd, calls, events"  # noqa: S608 (constant text)
        " FROM workflows WHERE organisation_id = ? AND (? = '' OR instr(lower(workflow_id), ?))"
        f" ORDER BY {_SORTS[sort]} LIMIT ? OFFSET ?"
    )
    needle = search.lower()
    return [
        workflow_record(row, book.standing(row[0], None, now_ms))
        for row in reader.rows(sql, organisation_id, needle, needle, limit, offset)
    ]


def refusals(
    reader: Reader, organisation_id: str, workflow_id: str | None, before: int, limit: int
) -> list[figures.Refused]:
    """Return refused calls, newest first."""
    where, arguments = "organisation_id = ? AND refusal_seq < ?", [organisation_id, before]
    if workflow_id is not None:
        where += " AND workflow_id = ?"
        arguments.append(workflow_id)
    rows = reader.rows(
        "SELECT refusal_seq, at_ms, workflow_id, run_id, agent, call_id, kind, function,"  # noqa: S608 (constant text)
        f" tool_name, model, status, error_code, reason FROM refusals WHERE {where}"
        " ORDER BY refusal_seq DESC LIMIT ?",
        *arguments, limit,
    )  # fmt: skip
    names = figures.Refused.__struct_fields__
    return [figures.Refused(**dict(zip(names, row, strict=True))) for row in rows]


def mark(reader: Reader, organisation_id: str, seen: figures.Mark) -> figures.Mark:
    """Return how far the organisation is now. Looks only at what is newer than ``seen``."""

    def newest(table: str, column: str, known: Any) -> Any:
        sql = f"SELECT max({column}) FROM {table} WHERE organisation_id = ? AND {column} > ?"  # noqa: S608 (constant text)
        value = reader.rows(sql, organisation_id, known)[0][0]
        return known if value is None else value

    control = reader.rows(
        "SELECT control_seq FROM organisations WHERE organisation_id = ?", organisation_id
    )
    return figures.Mark(
        event_seq=newest("events", "event_seq", seen.event_seq),
        reservation_id=newest("reservations", "reservation_id", seen.reservation_id),
        refusal_seq=newest("refusals", "refusal_seq", seen.refusal_seq),
        approval_id=newest("approvals", "approval_id", seen.approval_id),
        control_seq=control[0][0] if control else 0,
        audit_seq=newest("audit", "seq", seen.audit_seq),
    )


def first_mark(reader: Reader) -> figures.Mark:
    """Return a mark at the newest of everything, whosesoever it is."""

    def newest(table: str, column: str, nothing: Any) -> Any:
        sql = f"SELECT max({column}) FROM {table}"  # noqa: S608 (constant text)
        return reader.rows(sql)[0][0] or nothing

    return figures.Mark(
        event_seq=newest("events", "event_seq", 0),
        reservation_id=newest("reservations", "reservation_id", ""),
        refusal_seq=newest("refusals", "refusal_seq", 0),
        approval_id=newest("approvals", "approval_id", ""),
        control_seq=-1,
        audit_seq=newest("audit", "seq", 0),
    )


class SqliteDashboard(SqliteCore):
    """What the dashboard reads, and its operators and sessions."""

    async def spend_over_time(
        self, organisation_id: str, size_ms: int, since_ms: int, until_ms: int, step_ms: int,
        workflow_id: str | None,
    ) -> list[figures.FigurePoint]:  # fmt: skip
        """Return usage in steps of time, oldest first; steps without usage are left out."""

        def work(reader: Reader) -> list[figures.FigurePoint]:
            rows = reader.rows(
                f"SELECT bucket_ms - bucket_ms % ? AS start, {_SUMS} FROM figures"  # noqa: S608 (constant text)
                " WHERE organisation_id = ? AND size_ms = ? AND bucket_ms >= ? AND bucket_ms < ?"
                " AND (? IS NULL OR workflow_id = ?) GROUP BY start ORDER BY start",
                step_ms, organisation_id, size_ms, since_ms, until_ms, workflow_id, workflow_id,
            )  # fmt: skip
            names = figures.FigurePoint.__struct_fields__
            return [figures.FigurePoint(**dict(zip(names, row, strict=True))) for row in rows]

        return await self.read(work)

    async def usage_by_model(
        self, organisation_id: str, size_ms: int, since_ms: int, workflow_id: str | None,
        limit: int,
    ) -> list[figures.ModelFigures]:  # fmt: skip
        """Return usage by model, dearest first."""

        def work(reader: Reader) -> list[figures.ModelFigures]:
            rows = reader.rows(
                "SELECT model, sum(cost_nanousd) AS cost, sum(llm_calls), sum(input_tokens),"
                " sum(output_tokens) FROM figures WHERE organisation_id = ? AND size_ms = ?"
                " AND bucket_ms >= ? AND (? IS NULL OR workflow_id = ?) AND model <> ''"
                " GROUP BY model ORDER BY cost DESC, model LIMIT ?",
                organisation_id, size_ms, since_ms, workflow_id, workflow_id, limit,
            )  # fmt: skip
            names = figures.ModelFigures.__struct_fields__
            return [figures.ModelFigures(**dict(zip(names, row, strict=True))) for row in rows]

        return await self.read(work)

    async def workflow_page(
        self, organisation_id: str, search: str, sort: figures.WorkflowSort, offset: int,
        limit: int,
    ) -> list[records.Workflow]:  # fmt: skip
        """Return one page of the workflows seen, with their state."""
        now_ms = self.clock_ms()
        return await self.read(
            lambda reader: workflow_page(
                reader, organisation_id, search, sort, offset, limit, now_ms
            )
        )

    async def standing_orders(self, organisation_id: str) -> list[figures.StandingOrder]:
        """Return the kills and pauses in force, newest first."""
        now_ms = self.clock_ms()
        return await self.read(lambda reader: orders(reader, organisation_id, now_ms))

    async def newest_runs(
        self, organisation_id: str, workflow_id: str, before: str, limit: int
    ) -> list[records.Run]:
        """Return a workflow's runs by id, newest first."""
        now_ms = self.clock_ms()

        def work(reader: Reader) -> list[records.Run]:
            book = reader.control_book(organisation_id)
            return [
                records.Run(
                    run_id=row[0], workflow_id=row[1], first_seen_ms=row[2], last_seen_ms=row[3],
                    spent_nanousd=row[4], state=book.standing(row[1], row[0], now_ms).state,
                )
                for row in reader.rows(
                    "SELECT run_id, workflow_id, first_seen_ms, last_seen_ms, spent_nanousd"
                    " FROM runs WHERE organisation_id = ? AND workflow_id = ?"
                    " AND (? = '' OR run_id < ?) ORDER BY run_id DESC LIMIT ?",
                    organisation_id, workflow_id, before, before, limit,
                )
            ]  # fmt: skip

        return await self.read(work)

    async def newest_events(
        self, organisation_id: str, before: int, limit: int, workflow_id: str | None,
        event_type: str | None, run_id: str | None,
    ) -> list[records.StoredEvent]:  # fmt: skip
        """Return events, newest first."""
        return await self.read(
            lambda reader: newest_events(
                reader, organisation_id, before, limit, workflow_id, event_type, run_id
            )
        )

    async def refusals(
        self, organisation_id: str, workflow_id: str | None, before: int, limit: int
    ) -> list[figures.Refused]:
        """Return refused calls, newest first."""
        return await self.read(
            lambda reader: refusals(reader, organisation_id, workflow_id, before, limit)
        )

    async def newest_audit(
        self, organisation_id: str, before: int, limit: int, *, with_gateway: bool
    ) -> list[records.AuditEntry]:
        """Return audit entries, newest first; ``with_gateway`` adds those of no organisation."""

        def work(reader: Reader) -> list[records.AuditEntry]:
            either = [organisation_id, None] if with_gateway else [organisation_id]
            rows: list[Any] = []
            for owner in either:
                rows += reader.rows(
                    "SELECT * FROM audit WHERE organisation_id IS ? AND seq < ?"
                    " ORDER BY seq DESC LIMIT ?",
                    owner, before, limit,
                )  # fmt: skip
            rows.sort(key=lambda row: -row[0])
            return [sqlite_audit.entry_from_row(row) for row in rows[:limit]]

        return await self.read(work)

    async def newest_charges(
        self, organisation_id: str, scope_kind: records.ScopeKind, limit: int
    ) -> list[figures.ChargedEvent]:
        """Return the newest charges with the id that they carry for a kind of scope."""

        def work(reader: Reader) -> list[figures.ChargedEvent]:
            column = _SCOPE_COLUMNS[scope_kind]
            return [
                figures.ChargedEvent(*row)
                for row in reader.rows(
                    f"SELECT charged_at_ms, cost_nanousd, coalesce({column}, '') FROM events"  # noqa: S608 (constant text)
                    " WHERE organisation_id = ? AND cost_nanousd > 0"
                    " ORDER BY charged_at_ms DESC, event_seq DESC LIMIT ?",
                    organisation_id, limit,
                )
            ]  # fmt: skip

        return await self.read(work)

    async def fullest_balances(self, organisation_id: str, limit: int) -> list[records.BalanceView]:
        """Return balances of the current windows, those with the largest used share first."""
        now_ms = self.clock_ms()

        def work(reader: Reader) -> list[records.BalanceView]:
            rows = reader.rows(
                "SELECT b.*, u.* FROM budgets u JOIN balances b USING (budget_id)"
                " WHERE u.organisation_id = ? AND coalesce(b.ends_ms, ?) > ?"
                " ORDER BY CAST(b.committed + b.reserved AS REAL) / max(u.limit_nanousd, 1) DESC,"
                " b.balance_id LIMIT ?",
                organisation_id, 2**62, now_ms, limit,
            )  # fmt: skip
            return [balance_from_row(row) for row in rows]

        return await self.read(work)

    async def marks(self, seen: Mapping[str, figures.Mark | None]) -> dict[str, figures.Mark]:
        """Return how far each organisation is now; ``None`` for one not looked at before."""

        def work(reader: Reader) -> dict[str, figures.Mark]:
            found = {}
            for organisation_id, known in seen.items():
                start = known if known is not None else first_mark(reader)
                found[organisation_id] = mark(reader, organisation_id, start)
            return found

        return await self.read(work)

    # -- operators and sessions ----------------------------------------------------------------

    async def put_operator(
        self, actor: Actor, operator: figures.Operator, password_hash: str
    ) -> figures.Operator:
        """Add an operator, or change the password and end the sessions of one."""
        return await self.write(
            lambda books: sqlite_operators.put_operator(books, actor, operator, password_hash)
        )

    async def find_operator(self, name: str) -> tuple[figures.Operator, str] | None:
        """Return an operator and the hash of the password."""

        def work(reader: Reader) -> tuple[figures.Operator, str] | None:
            rows = reader.rows("SELECT * FROM operators WHERE name = ?", name)
            return sqlite_operators.operator_from_row(rows[0]) if rows else None

        return await self.read(work)

    async def has_operators(self) -> bool:
        """Tell whether anybody can sign in."""
        return await self.read(lambda reader: bool(reader.rows("SELECT 1 FROM operators LIMIT 1")))

    async def open_session(
        self, actor: Actor, operator_id: str, token_hash: bytes, keep_ms: int
    ) -> None:
        """Start a session."""
        await self.write(
            lambda books: sqlite_operators.open_session(
                books, actor, operator_id, token_hash, keep_ms
            )
        )

    async def find_session(self, token_hash: bytes) -> figures.Session | None:
        """Return a session in whatever state, or ``None``."""

        def work(reader: Reader) -> figures.Session | None:
            rows = reader.rows(
                "SELECT o.*, s.created_at_ms, s.seen_at_ms, s.expires_at_ms FROM sessions s"
                " JOIN operators o USING (operator_id) WHERE token_hash = ?",
                token_hash,
            )
            return sqlite_operators.session_from_row(rows[0]) if rows else None

        return await self.read(work)

    async def touch_session(self, token_hash: bytes) -> None:
        """Note that a session is in use."""
        await self.write(lambda books: sqlite_operators.touch_session(books, token_hash))

    async def end_session(self, token_hash: bytes) -> None:
        """End a session."""
        await self.write(lambda books: sqlite_operators.end_session(books, token_hash))
