"""The dashboard's queries, newest first. Every query is bounded."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from guard.core import wire
from guard.gateway.domain import records, usage
from guard.gateway.domain.control import end_of, is_timed, newest
from guard.gateway.storage.sql.admin_rows import (
    SELECT_BALANCE_VIEWS,
    SELECT_RUNS,
    SELECT_WORKFLOWS,
    balance_view_from_row,
    run_record,
    workflow_record,
)
from guard.gateway.storage.sql.analytics import directives_of
from guard.gateway.unit.connection import Connection, equals
from guard.gateway.unit.rows import AUDIT, EVENTS, REFUSALS

SCAN_MAX: Final = 20_000
"""How many of the newest rows a filter without an index scans."""

_ANY: Final = records.EventSearch()
_CLOCKS_MS: Final = 60_000

LAST_ID: Final = "\U0010ffff"
"""Sorts after every id."""

_SORTS: Final = {
    "seen": "last_ms DESC, scope_id",
    "spend": "cost_nanousd DESC, scope_id",
    "name": "scope_id",
}
_ALL: Final = (0, 2**53)
"""All of time: its beginning and its end."""

_SCOPE_COLUMNS: Final = {"organisation": "''", "workflow": "workflow_id", "agent": "agent",
                         "chain": "chain_id", "user": "user_id", "key": "key_id",
                         "model": "model", "run": "key_id || '/' || run_id"}  # fmt: skip
_SUMS: Final = (
    "CAST(sum(u.cost_nanousd) AS BIGINT) AS cost, CAST(sum(u.llm_calls) AS BIGINT),"
    " CAST(sum(u.tool_calls) AS BIGINT), CAST(sum(u.input_tokens) AS BIGINT),"
    " CAST(sum(u.output_tokens) AS BIGINT)"
)
_DOUBT: Final = "CAST(coalesce(sum(u.doubt_nanousd), 0) AS BIGINT)"
_WORKFLOWS_WITHIN: Final = (
    "SELECT w.scope_id, first_ms, last_ms, coalesce(cost, 0) AS cost_nanousd, calls,"
    " coalesce(events, 0) AS events, coalesce(doubt, 0) AS doubt_nanousd,"
    " coalesce(llm_calls, 0) AS llm_calls FROM (SELECT scope_id, first_ms, last_ms, calls FROM"
    " usage WHERE organisation_id = ? AND scope_kind = 'workflow' AND size_ms = 0 AND start_ms = 0"
    " AND last_ms IS NOT NULL) w LEFT JOIN (SELECT scope_id, CAST(sum(cost_nanousd) AS BIGINT)"
    " AS cost, CAST(sum(events) AS BIGINT) AS events, CAST(sum(doubt_nanousd) AS BIGINT) AS doubt,"
    " CAST(sum(llm_calls) AS BIGINT) AS llm_calls FROM usage WHERE scope_kind = 'workflow'"
    f" AND size_ms = {usage.QUARTER_MS} AND start_ms >= ? AND start_ms < ?"
    " AND organisation_id = ? GROUP BY scope_id) s ON s.scope_id = w.scope_id"
)


def _within(
    organisation_id: str, size_ms: int, since_ms: int, until_ms: int, workflow_id: str | None
) -> tuple[str, list[Any]]:
    """Return the rows of an organisation or a workflow in a time, and the arguments."""
    width_ms = size_ms if size_ms == usage.MINUTE_MS else usage.QUARTER_MS
    since_ms, until_ms = (-(-at_ms // size_ms) * size_ms for at_ms in (since_ms, until_ms))
    if workflow_id is None:
        source = (
            "FROM usage u WHERE u.organisation_id = ? AND u.scope_kind = 'organisation'"
            " AND u.size_ms = ? AND u.start_ms >= ? AND u.start_ms < ?"
        )
        return source, [organisation_id, width_ms, since_ms, until_ms]
    # Rows of a time hold all workflows, so one workflow's are looked up one by one.
    source = (
        "FROM (WITH RECURSIVE times (at_ms) AS (SELECT ?3 UNION ALL SELECT at_ms + ?2 FROM times"
        " WHERE at_ms + ?2 < ?4) SELECT r.* FROM times CROSS JOIN usage r ON"
        " r.organisation_id = ?1 AND r.scope_kind = 'workflow' AND r.size_ms = ?2"
        " AND r.start_ms = at_ms AND r.scope_id = ?5) u"
    )
    return source, [organisation_id, width_ms, since_ms, until_ms, workflow_id]


def spend_over_time(
    connection: Connection, organisation_id: str, size_ms: int, since_ms: int, until_ms: int,
    step_ms: int, workflow_id: str | None,
) -> list[usage.UsagePoint]:  # fmt: skip
    """Return usage in steps of time, oldest first; steps without usage are left out."""
    source, arguments = _within(organisation_id, size_ms, since_ms, until_ms, workflow_id)
    rows = connection.rows(
        f"SELECT u.start_ms - u.start_ms % {int(step_ms)} AS start, {_SUMS} {source}"
        " GROUP BY start HAVING sum(u.cost_nanousd) <> 0 OR sum(u.llm_calls + u.tool_calls) > 0"
        " ORDER BY start",
        *arguments,
    )
    names = usage.UsagePoint.__struct_fields__
    return [usage.UsagePoint(**dict(zip(names, row, strict=True))) for row in rows]


def usage_by_model(
    connection: Connection, organisation_id: str, since_ms: int, until_ms: int,
    workflow_id: str | None, limit: int,
) -> list[usage.ModelUsage]:  # fmt: skip
    """Return usage by model in whole quarter hours, most expensive first."""
    source, arguments = _within(organisation_id, usage.QUARTER_MS, since_ms, until_ms, workflow_id)
    rows = connection.rows(
        f"SELECT u.model, {_SUMS}, sum(u.unpriced), {_DOUBT} {source} GROUP BY u.model"
        f" HAVING u.model <> '' ORDER BY cost DESC, u.model LIMIT {int(limit)}",
        *arguments,
    )
    return [
        usage.ModelUsage(model=model, cost_nanousd=cost, llm_calls=llm_calls,
                         input_tokens=input_tokens, output_tokens=output_tokens,
                         unpriced=unpriced > 0, uncertain_nanousd=max(0, min(cost, doubt)))
        for model, cost, llm_calls, _, input_tokens, output_tokens, unpriced, doubt in rows
    ]  # fmt: skip


def newest_events(
    connection: Connection, organisation_id: str, before: int, limit: int,
    search: records.EventSearch = _ANY,
) -> records.FoundEvents:  # fmt: skip
    """Return events, newest first.

    What no index finds is searched among ``SCAN_MAX`` events; the answer says where these end.
    """
    if search.until_ms is not None:
        # Events are charged in the order of their numbers, as far as the clocks of replicas agree.
        after = connection.rows(
            "SELECT event_seq FROM events WHERE organisation_id = ? AND charged_at_ms >= ?"
            " ORDER BY charged_at_ms LIMIT 1",
            organisation_id, search.until_ms + _CLOCKS_MS,
        )  # fmt: skip
        before = min([before, *(row[0] for row in after)])
    where, arguments = equals(
        organisation_id=organisation_id, workflow_id=search.workflow_id, call_id=search.call_id,
        event_id=search.event_id, user_id=search.user,
    )  # fmt: skip
    where, arguments = f"{where} AND event_seq < ?", [*arguments, before]
    scanned, values = _scanned(search)
    if not scanned:
        sql = f"SELECT {EVENTS.names()} FROM events WHERE {where} ORDER BY event_seq DESC LIMIT ?"
        rows = connection.rows(sql, *arguments, limit)
        return records.FoundEvents([EVENTS.read(row) for row in rows])
    source = f"(SELECT * FROM events WHERE {where} ORDER BY event_seq DESC LIMIT ?) newest"
    sql = f"SELECT {EVENTS.names()} FROM {source} WHERE {scanned} ORDER BY event_seq DESC LIMIT ?"
    rows = connection.rows(sql, *arguments, SCAN_MAX, *values, limit)
    found = records.FoundEvents([EVENTS.read(row) for row in rows])
    if len(found.events) < limit:
        last = connection.rows(
            f"SELECT event_seq, charged_at_ms FROM events WHERE {where} ORDER BY event_seq DESC"
            " LIMIT 1 OFFSET ?",
            *arguments, SCAN_MAX - 1,
        )  # fmt: skip
        is_over = (
            last and search.since_ms is not None and (last[0][1] < search.since_ms - _CLOCKS_MS)
        )
        found.further = last[0][0] if last and not is_over else None
    return found


def _scanned(search: records.EventSearch) -> tuple[str, list[Any]]:
    """Return the conditions of a search that no index serves, and their arguments."""
    found = [
        (f"{column} {sign} ?", value)
        for column, sign, value in (
            ("type", "=", search.type), ("run_id", "=", search.run_id),
            ("agent", "=", search.agent), ("model", "=", search.model),
            ("cost_nanousd", ">=", search.cost_nanousd),
            ("charged_at_ms", ">=", search.since_ms), ("charged_at_ms", "<", search.until_ms),
        )
        if value is not None
    ]  # fmt: skip
    conditions, values = [each for each, _ in found], [value for _, value in found]
    if search.tag is not None:
        condition, more = has_tag(*search.tag)
        conditions, values = [*conditions, condition], [*values, *more]
    return " AND ".join(conditions), values


def has_tag(name: str, value: str) -> tuple[str, list[str]]:
    """Return the condition that an event has a tag, and its arguments.

    Tags are stored as JSON in which a quote within a text has a backslash before it, so that this
    is only found where a pair begins.
    """
    pair = json.dumps({name: value}, ensure_ascii=False)[1:-1]
    return "(instr(tags, ?) = 1 OR instr(tags, ?) > 0)", ["{" + pair, ", " + pair]


def active_directives(
    connection: Connection, now_ms: int, organisation_id: str
) -> list[usage.ActiveDirective]:
    """Return the active kills and pauses, newest first."""
    latest: dict[tuple[str, str], dict[str, wire.ControlMessage | None]] = {}
    for target, run_id, slot, text in connection.rows(
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
    connection: Connection, now_ms: int, organisation_id: str, search: str,
    sort: usage.WorkflowSort, offset: int, limit: int, within: tuple[int, int] = _ALL,
) -> list[records.Workflow]:  # fmt: skip
    """Return one page of the workflows seen, with what they used in that time."""
    directives = directives_of(connection, organisation_id)
    source, arguments = SELECT_WORKFLOWS, list[Any]([organisation_id])
    if within != _ALL:
        source = f"SELECT * FROM ({_WORKFLOWS_WITHIN}) used WHERE last_ms >= ? AND first_ms < ?"
        arguments = [organisation_id, *within, organisation_id, *within]
    if search:
        source, arguments = (
            f"{source} AND instr(lower(scope_id), ?) > 0",
            [*arguments, search.lower()],
        )
    sql = f"{source} ORDER BY {_SORTS[sort]} LIMIT ? OFFSET ?"
    return [
        workflow_record(row, directives.state_of(row[0], None, now_ms))
        for row in connection.rows(sql, *arguments, limit, offset)
    ]


def refusals(
    connection: Connection, organisation_id: str, workflow_id: str | None, before: int, limit: int,
    call_id: str | None = None, within: tuple[int, int] = _ALL,
) -> list[usage.Refused]:  # fmt: skip
    """Return refused calls, newest first."""
    first, last = _numbers(connection, "refusals", "refusal_seq", within)
    where, arguments = equals(
        organisation_id=organisation_id, workflow_id=workflow_id, call_id=call_id
    )
    rows = connection.rows(
        f"SELECT {REFUSALS.names()} FROM refusals WHERE {where}"
        " AND refusal_seq >= ? AND refusal_seq < ? ORDER BY refusal_seq DESC LIMIT ?",
        *arguments, first, min(before, last), limit,
    )  # fmt: skip
    return [*map(REFUSALS.read, rows)]


def _numbers(
    connection: Connection, table: str, column: str, within: tuple[int, int]
) -> tuple[int, int]:
    """Return the numbers of the rows of a time, from the first to before the last.

    Rows are numbered in the order of time, so they are found by halving.
    """
    ((end,),) = connection.rows(f"SELECT coalesce(max({column}), -1) + 1 FROM {table}")
    found = []
    for at_ms in within:
        low, high = 0, end
        while low < high and at_ms not in _ALL:
            middle = (low + high) // 2
            ((number, row_ms),) = connection.rows(
                f"SELECT {column}, at_ms FROM {table} WHERE {column} >= ?"
                f" ORDER BY {column} LIMIT 1",
                middle,
            )
            low, high = (low, middle) if row_ms >= at_ms else (number + 1, high)
        found.append(low if at_ms != _ALL[1] else end)
    return found[0], found[1]


def newest_runs(
    connection: Connection, now_ms: int, organisation_id: str, workflow_id: str, limit: int,
    within: tuple[int, int],
) -> list[records.Run]:  # fmt: skip
    """Return a workflow's runs of a time by id, newest first."""
    directives = directives_of(connection, organisation_id)
    return [
        run_record(row, directives, now_ms)
        for row in connection.rows(
            f"{SELECT_RUNS} AND owner = ? AND last_ms >= ? AND first_ms < ?"
            " ORDER BY scope_id DESC LIMIT ?",
            organisation_id, workflow_id, *within, limit,
        )
    ]  # fmt: skip


def newest_audit(
    connection: Connection, organisation_id: str, before: int, limit: int, *, with_gateway: bool,
    within: tuple[int, int] = _ALL,
) -> list[records.AuditEntry]:  # fmt: skip
    """Return audit entries, newest first; ``with_gateway`` adds those of no organisation."""
    first, last = _numbers(connection, "audit", "seq", within)
    either = [organisation_id, None] if with_gateway else [organisation_id]
    rows: list[Any] = []
    for owner in either:
        where, arguments = equals(organisation_id=owner)
        rows += connection.rows(
            f"{AUDIT.select()} WHERE {where or 'organisation_id IS NULL'}"
            " AND seq >= ? AND seq < ? ORDER BY seq DESC LIMIT ?",
            *arguments, first, min(before, last), limit,
        )  # fmt: skip
    rows.sort(key=lambda row: -row[0])
    return [*map(AUDIT.read, rows[:limit])]


def newest_charges(
    connection: Connection, organisation_id: str, scope_kind: records.ScopeKind, limit: int
) -> list[usage.ChargedEvent]:
    """Return the newest charges, each with its id of one kind of scope."""
    column = "tags" if scope_kind == "tag" else _SCOPE_COLUMNS[scope_kind]
    found = [
        usage.ChargedEvent(*row)
        for row in connection.rows(
            f"SELECT charged_at_ms, cost_nanousd, coalesce({column}, '') FROM (SELECT *"
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
    connection: Connection, now_ms: int, organisation_id: str, limit: int
) -> list[records.BalanceView]:
    """Return balances of the current windows, those with the largest used share first."""
    rows = connection.rows(
        f"{SELECT_BALANCE_VIEWS} budgets u JOIN balances b USING (budget_id)"
        " WHERE u.organisation_id = ? AND coalesce(b.ends_ms, ?) > ?"
        " ORDER BY CAST(b.committed + b.reserved AS DOUBLE PRECISION)"
        " / max(u.limit_amount, 1) DESC, b.balance_id LIMIT ?",
        organisation_id, 2**62, now_ms, limit,
    )  # fmt: skip
    return [balance_view_from_row(row) for row in rows]
