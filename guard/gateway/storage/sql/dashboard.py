"""The dashboard's queries, newest first. Every query is bounded."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from guard.core import wire
from guard.gateway.domain import records, usage
from guard.gateway.domain.control import end_of, is_timed, newest
from guard.gateway.storage.sql.analytics import directives_of
from guard.gateway.storage.sql.connection import Connection, equals
from guard.gateway.storage.sql.rows import AUDIT, EVENTS, REFUSALS
from guard.gateway.storage.sql.uncertain import MODEL_USAGE, of_one, of_scopes
from guard.gateway.storage.sql.views import (
    SELECT_BALANCE_VIEWS,
    SELECT_RUNS,
    SELECT_WORKFLOWS,
    balance_view_from_row,
    run_record,
    workflow_record,
)

SCAN_MAX: Final = 20_000
"""How many of the newest rows a filter without an index scans."""

LAST_ID: Final = "\U0010ffff"
"""Sorts after every id."""

_SORTS: Final = {
    "seen": "last_seen_ms DESC, workflow_id",
    "spend": "spent_nanousd DESC, workflow_id",
    "name": "workflow_id",
}
_SCOPE_COLUMNS: Final = {"organisation": "''", "workflow": "workflow_id", "agent": "agent",
                         "chain": "chain_id", "user": "user_id", "key": "key_id",
                         "model": "model"}  # fmt: skip
_WORKFLOW_SUMS: Final = (
    "sum(cost_nanousd) AS cost, sum(llm_calls), sum(tool_calls), sum(input_tokens),"
    " sum(output_tokens)"
)
_ORGANISATION_SUMS: Final = (
    "sum(cost_nanousd) AS cost, sum(CASE type WHEN 'llm' THEN events ELSE 0 END),"
    " sum(CASE type WHEN 'tool' THEN events ELSE 0 END), sum(input_tokens), sum(output_tokens)"
)
_WITHIN: Final = "WHERE organisation_id = ? AND size_ms = ? AND bucket_ms >= ? AND bucket_ms < ?"
# Buckets hold all workflows, so one workflow's rows are looked up bucket by bucket.
_WORKFLOW_ROLLUPS: Final = (
    "(WITH RECURSIVE times (at_ms) AS (SELECT ?3 UNION ALL SELECT at_ms + ?2 FROM times"
    " WHERE at_ms + ?2 < ?4) SELECT u.* FROM times CROSS JOIN usage_rollups u"
    " ON u.organisation_id = ?1 AND u.size_ms = ?2 AND u.bucket_ms = at_ms"
    " AND u.workflow_id = ?5) rollups"
)


def _rollups(
    organisation_id: str, size_ms: int, since_ms: int, until_ms: int, workflow_id: str | None
) -> tuple[str, str, list[Any]]:
    """Return the columns, the source and the arguments of sums over rollups."""
    since_ms = -(-since_ms // size_ms) * size_ms
    arguments = [organisation_id, size_ms, since_ms, until_ms]
    if workflow_id is None and size_ms == usage.MINUTE_MS:  # kept for two days, so they are few
        return _WORKFLOW_SUMS, f"usage_rollups {_WITHIN}", arguments
    if workflow_id is None:
        return _ORGANISATION_SUMS, f"organisation_rollups {_WITHIN}", arguments
    return _WORKFLOW_SUMS, _WORKFLOW_ROLLUPS, [*arguments, workflow_id]


def spend_over_time(
    reading: Connection, organisation_id: str, size_ms: int, since_ms: int, until_ms: int,
    step_ms: int, workflow_id: str | None,
) -> list[usage.UsagePoint]:  # fmt: skip
    """Return usage in steps of time, oldest first; steps without usage are left out."""
    sums, source, arguments = _rollups(organisation_id, size_ms, since_ms, until_ms, workflow_id)
    rows = reading.rows(
        f"SELECT bucket_ms - bucket_ms % {int(step_ms)} AS start, {sums} FROM {source}"  # noqa: S608 (constant text and a number)
        " GROUP BY start ORDER BY start",
        *arguments,
    )
    names = usage.UsagePoint.__struct_fields__
    return [usage.UsagePoint(**dict(zip(names, row, strict=True))) for row in rows]


def uncertain_spend(
    reading: Connection, organisation_id: str, since_ms: int, until_ms: int,
    workflow_id: str | None,
) -> int:  # fmt: skip
    """Return the charges in doubt in the hours of a time, in all or of one workflow."""
    kind = "organisation" if workflow_id is None else "workflow"
    return of_one(reading, organisation_id, kind, workflow_id or "", since_ms, until_ms)


def usage_by_model(
    reading: Connection, now_ms: int, organisation_id: str, size_ms: int, since_ms: int,
    workflow_id: str | None, limit: int,
) -> list[usage.ModelUsage]:  # fmt: skip
    """Return usage by model, most expensive first."""
    until_ms = now_ms + size_ms
    sums, source, arguments = _rollups(organisation_id, size_ms, since_ms, until_ms, workflow_id)
    rows = reading.rows(
        f"SELECT model, {sums} FROM {source} GROUP BY model HAVING model <> ''"  # noqa: S608 (constant text)
        f" ORDER BY cost DESC, model LIMIT {int(limit)}",
        *arguments,
    )
    unpriced = unpriced_models(reading, organisation_id, since_ms, until_ms) if rows else set()
    doubts: dict[str, int] = {}  # of a workflow they are known in all, and not by model
    if workflow_id is None:
        names = [row[0] for row in rows]
        doubts = of_scopes(reading, organisation_id, MODEL_USAGE, names, since_ms, until_ms)
    return [
        usage.ModelUsage(model=model, cost_nanousd=cost, llm_calls=llm_calls,
                         input_tokens=input_tokens, output_tokens=output_tokens,
                         unpriced=model in unpriced,
                         uncertain_nanousd=min(cost, doubts.get(model, 0)))
        for model, cost, llm_calls, _, input_tokens, output_tokens in rows
    ]  # fmt: skip


def unpriced_models(
    reading: Connection, organisation_id: str, since_ms: int, until_ms: int
) -> set[str]:
    """Return the models of which something was charged at fallback prices, by the hour."""
    rows = reading.rows(
        f"SELECT DISTINCT model FROM organisation_rollups {_WITHIN} AND unpriced > 0",  # noqa: S608 (constant text)
        organisation_id, usage.HOUR_MS, since_ms - since_ms % usage.HOUR_MS, until_ms,
    )  # fmt: skip
    return {row[0] for row in rows}


def newest_events(
    reading: Connection, organisation_id: str, before: int, limit: int, workflow_id: str | None,
    event_type: str | None, run_id: str | None, call_id: str | None = None,
    event_id: str | None = None,
) -> list[records.StoredEvent]:  # fmt: skip
    """Return events, newest first; types and runs are searched among the newest ``SCAN_MAX``."""
    where, arguments = equals(
        organisation_id=organisation_id, workflow_id=workflow_id, call_id=call_id,
        event_id=event_id,
    )  # fmt: skip
    where, arguments = f"{where} AND event_seq < ?", [*arguments, before]
    filters = [
        (column, value)
        for column, value in (("type", event_type), ("run_id", run_id))
        if value is not None
    ]
    source = "events"
    if filters:
        source = f"(SELECT * FROM events WHERE {where} ORDER BY event_seq DESC LIMIT ?) newest"  # noqa: S608 (constant text)
        where = " AND ".join(f"{column} = ?" for column, _ in filters)
        arguments += [SCAN_MAX, *(value for _, value in filters)]
    sql = f"SELECT {EVENTS.names()} FROM {source} WHERE {where} ORDER BY event_seq DESC LIMIT ?"  # noqa: S608 (constant text)
    return [EVENTS.read(row) for row in reading.rows(sql, *arguments, limit)]


def active_directives(
    reading: Connection, now_ms: int, organisation_id: str
) -> list[usage.ActiveDirective]:
    """Return the active kills and pauses, newest first."""
    latest: dict[tuple[str, str], dict[str, wire.ControlMessage | None]] = {}
    for target, run_id, slot, text in reading.rows(
        "SELECT target, run_id, slot, message FROM directives WHERE organisation_id = ?",
        organisation_id,
    ):
        directive = wire.decode(text, wire.ControlMessage)
        latest.setdefault((target, run_id), {})[slot] = directive
    found = []
    for (target, run_id), slots in latest.items():
        life, flow, timed = slots.get("life"), slots.get("flow"), slots.get("timed")
        if timed is not None and now_ms >= end_of(timed):
            timed = None
        killed = life is not None and life.type == "kill"
        message = life if killed else newest(flow, timed)
        if message is None or message.type not in ("kill", "pause"):
            continue
        resume_at_ms = end_of(message) if is_timed(message) else None
        found.append(
            usage.ActiveDirective(
                action="kill" if message.type == "kill" else "pause", target=target,
                run_id=run_id or None, reason=message.reason, at_ms=message.at_ms,
                resume_at_ms=resume_at_ms,
            )
        )  # fmt: skip
    return sorted(found, key=lambda directive: -directive.at_ms)


def workflow_page(
    reading: Connection, now_ms: int, organisation_id: str, search: str, sort: usage.WorkflowSort,
    offset: int, limit: int,
) -> list[records.Workflow]:  # fmt: skip
    """Return one page of the workflows seen."""
    directives = directives_of(reading, organisation_id)
    found = " AND instr(lower(workflow_id), ?) > 0" if search else ""
    sql = (
        f"{SELECT_WORKFLOWS} WHERE organisation_id = ?{found}"
        f" ORDER BY {_SORTS[sort]} LIMIT ? OFFSET ?"
    )
    needles = [search.lower()] if search else []
    return [
        workflow_record(row, directives.state_of(row[0], None, now_ms))
        for row in reading.rows(sql, organisation_id, *needles, limit, offset)
    ]


def refusals(
    reading: Connection, organisation_id: str, workflow_id: str | None, before: int, limit: int,
    call_id: str | None = None,
) -> list[usage.Refused]:  # fmt: skip
    """Return refused calls, newest first."""
    where, arguments = equals(
        organisation_id=organisation_id, workflow_id=workflow_id, call_id=call_id
    )
    rows = reading.rows(
        f"SELECT {REFUSALS.names()} FROM refusals WHERE {where}"  # noqa: S608 (constant text)
        " AND refusal_seq < ? ORDER BY refusal_seq DESC LIMIT ?",
        *arguments, before, limit,
    )  # fmt: skip
    return [*map(REFUSALS.read, rows)]


def newest_runs(
    reading: Connection, now_ms: int, organisation_id: str, workflow_id: str, before: str,
    limit: int,
) -> list[records.Run]:  # fmt: skip
    """Return a workflow's runs by id, newest first."""
    directives = directives_of(reading, organisation_id)
    return [
        run_record(row, directives, now_ms)
        for row in reading.rows(
            f"{SELECT_RUNS} WHERE organisation_id = ? AND workflow_id = ? AND run_id < ?"
            " ORDER BY run_id DESC LIMIT ?",
            organisation_id, workflow_id, before or LAST_ID, limit,
        )
    ]  # fmt: skip


def newest_audit(
    reading: Connection, organisation_id: str, before: int, limit: int, *, with_gateway: bool
) -> list[records.AuditEntry]:
    """Return audit entries, newest first; ``with_gateway`` adds those of no organisation."""
    either = [organisation_id, None] if with_gateway else [organisation_id]
    rows: list[Any] = []
    for owner in either:
        where, arguments = equals(organisation_id=owner)
        rows += reading.rows(
            f"{AUDIT.select()} WHERE {where or 'organisation_id IS NULL'}"
            " AND seq < ? ORDER BY seq DESC LIMIT ?",
            *arguments, before, limit,
        )  # fmt: skip
    rows.sort(key=lambda row: -row[0])
    return [*map(AUDIT.read, rows[:limit])]


def newest_charges(
    reading: Connection, organisation_id: str, scope_kind: records.ScopeKind, limit: int
) -> list[usage.ChargedEvent]:
    """Return the newest charges, each with its id of one kind of scope."""
    column = "tags" if scope_kind == "tag" else _SCOPE_COLUMNS[scope_kind]
    found = [
        usage.ChargedEvent(*row)
        for row in reading.rows(
            f"SELECT charged_at_ms, cost_nanousd, coalesce({column}, '') FROM (SELECT *"  # noqa: S608 (constant text)
            " FROM events INDEXED BY events_charged WHERE organisation_id = ?"
            " ORDER BY charged_at_ms DESC, event_seq DESC LIMIT ?) newest"
            " WHERE cost_nanousd > 0 LIMIT ?",
            organisation_id, SCAN_MAX, limit,
        )
    ]  # fmt: skip
    if scope_kind != "tag":
        return found
    return [
        msgspec.structs.replace(each, scope_id=f"{name}={value}")
        for each in found
        if each.scope_id
        for name, value in json.loads(each.scope_id).items()
    ]


def fullest_balances(
    reading: Connection, now_ms: int, organisation_id: str, limit: int
) -> list[records.BalanceView]:
    """Return balances of the current windows, those with the largest used share first."""
    rows = reading.rows(
        f"{SELECT_BALANCE_VIEWS} budgets u JOIN balances b USING (budget_id)"
        " WHERE u.organisation_id = ? AND coalesce(b.ends_ms, ?) > ?"
        " ORDER BY CAST(b.committed + b.reserved AS DOUBLE PRECISION)"
        " / max(u.limit_nanousd, 1) DESC, b.balance_id LIMIT ?",
        organisation_id, 2**62, now_ms, limit,
    )  # fmt: skip
    return [balance_view_from_row(row) for row in rows]
