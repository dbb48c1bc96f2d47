"""Lists and sums for operators."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from guard.core import globs, wire
from guard.gateway.domain import records
from guard.gateway.domain.control import Directives
from guard.gateway.domain.errors import NotFoundError
from guard.gateway.ledger.audit import GENESIS
from guard.gateway.storage.sql.admin_rows import (
    SELECT_BALANCE_VIEWS,
    SELECT_RUNS,
    SELECT_WORKFLOWS,
    balance_view_from_row,
    run_record,
    workflow_record,
)
from guard.gateway.storage.sql.spend_series import tag_names
from guard.gateway.unit.connection import Connection, equals
from guard.gateway.unit.rows import APPROVALS, AUDIT, EVENTS, NAMED, approval_from_row
from guard.gateway.unit.usage import place_of

RUNS_WITHIN_MS: Final = 600_000
"""A run that was seen so lately counts as running: nothing records the end of a run."""


def directives_of(connection: Connection, organisation_id: str) -> Directives:
    """Return the active directives of an organisation."""
    found = Directives()
    for (message,) in connection.rows(
        "SELECT message FROM directives WHERE organisation_id = ?", organisation_id
    ):
        found.apply(wire.decode(message, wire.ControlMessage))
    return found


def workflows(
    connection: Connection, now_ms: int, organisation_id: str, after: str, limit: int
) -> list[records.Workflow]:
    """Return workflows by id: those seen, and those that only an active directive names."""
    directives = directives_of(connection, organisation_id)
    seen = {
        row[0]: workflow_record(row, directives.state_of(row[0], None, now_ms))
        for row in connection.rows(
            f"{SELECT_WORKFLOWS} AND scope_id > ? ORDER BY scope_id LIMIT ?",
            organisation_id, after, limit,
        )
    }  # fmt: skip
    for target in directives.targets():
        if target > after and target not in seen:
            row = _workflow_row(connection, organisation_id, target)
            state = directives.state_of(target, None, now_ms)
            if row is None and state.state == "active":
                continue  # a lifted directive for a workflow that has made no call
            seen[target] = workflow_record(row or (target, None, None, 0, 0, 0, 0, 0), state)
    return sorted(seen.values(), key=lambda workflow: workflow.workflow_id)[:limit]


def workflow(
    connection: Connection, now_ms: int, organisation_id: str, workflow_id: str
) -> records.Workflow:
    """Return one workflow.

    Raises:
        NotFoundError: neither seen nor stopped, by its id or by a glob.
    """
    directives = directives_of(connection, organisation_id)
    row = _workflow_row(connection, organisation_id, workflow_id)
    state = directives.state_of(workflow_id, None, now_ms)
    if row is None and state.state == "active":
        raise NotFoundError("no such workflow")
    return workflow_record(row or (workflow_id, None, None, 0, 0, 0, 0, 0), state)


def target_exists(
    connection: Connection, now_ms: int, organisation_id: str, target: str, run_id: str | None
) -> records.TargetExists:
    """Return whether a target names anything: a workflow, those of a glob, or one run."""
    if run_id is not None:
        rows = connection.rows(
            f"{SELECT_RUNS} AND scope_id = ?",
            organisation_id, run_id,
        )  # fmt: skip
        return records.TargetExists(known=any(_matches(target, row[1]) for row in rows))
    found = (
        target == "*"
        or _is_seen(connection, organisation_id, target)
        or _is_named(connection, organisation_id, target)
        or directives_of(connection, organisation_id).stop(target, now_ms)
    )
    return records.TargetExists(known=found)


def seen(
    connection: Connection, organisation_id: str, subjects: Sequence[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Return those of some subjects (a kind of scope, and an id or a glob) that calls have had."""
    return {each for each in subjects if _is_seen(connection, organisation_id, each[1], each[0])}


def _is_seen(
    connection: Connection, organisation_id: str, target: str, kind: str = "workflow"
) -> bool:
    if kind == "tag" and globs.is_pattern(target.partition("=")[0]):
        return True  # of whichever tags
    place, target = place_of(kind, target)
    column, place = ("model", "organisation") if kind == "model" else ("scope_id", place)
    where, arguments = _naming(column, target)
    rows = connection.rows(
        f"SELECT DISTINCT {column} FROM usage WHERE organisation_id = ? AND scope_kind = ?"
        f" AND size_ms = 0 AND start_ms = 0{where}",
        organisation_id, place, *arguments,
    )  # fmt: skip
    return any(_matches(target, row[0]) for row in rows)


def names_of(
    connection: Connection, organisation_id: str, kind: str, like: str, limit: int
) -> list[str]:
    """Return ids of a kind that calls have had; of tags the values of one name, else the names."""
    place, column = place_of(kind, like)[0], "scope_id"
    if kind == "model":
        place, column = "organisation", "model"
    rows = connection.rows(
        f"SELECT DISTINCT {column} FROM usage WHERE organisation_id = ? AND scope_kind = ?"
        " AND size_ms = 0 AND start_ms = 0 LIMIT ?",
        organisation_id, place, limit,
    )  # fmt: skip
    name, _, value = like.partition("=")
    if kind != "tag":
        return [row[0] for row in rows]
    if rows:
        return [f"{name}={row[0]}" for row in rows]
    return [f"{each}={value}" for each in tag_names(connection, organisation_id, limit)]


def _is_named(connection: Connection, organisation_id: str, target: str) -> bool:
    """Return whether a budget or a key is for exactly this workflow id or glob."""
    return bool(
        connection.rows(
            "SELECT 1 FROM budgets WHERE organisation_id = ? AND scope_kind = 'workflow'"
            " AND scope_id = ? UNION ALL SELECT 1 FROM keys WHERE organisation_id = ?"
            " AND workflow_id = ? AND revoked_at_ms IS NULL LIMIT 1",
            organisation_id, target, organisation_id, target,
        )
    )  # fmt: skip


def count_targets(
    connection: Connection, now_ms: int, organisation_id: str, target: str
) -> records.TargetCount:
    """Count the workflows that a directive's target names, and their runs of lately."""
    where, arguments = _naming("scope_id", target)
    workflows = connection.rows(f"{SELECT_WORKFLOWS}{where}", organisation_id, *arguments)
    where, arguments = _naming("owner", target)
    runs = connection.rows(
        "SELECT owner, count(*) FROM usage WHERE organisation_id = ? AND scope_kind = 'run'"
        f" AND size_ms = 0 AND start_ms = 0 AND last_ms >= ?{where} GROUP BY owner",
        organisation_id, now_ms - RUNS_WITHIN_MS, *arguments,
    )  # fmt: skip
    return records.TargetCount(
        workflows=sum(_matches(target, row[0]) for row in workflows),
        runs=sum(count for name, count in runs if _matches(target, name)),
        within_ms=RUNS_WITHIN_MS,
    )


def _naming(column: str, target: str) -> tuple[str, list[str]]:
    """Return a condition that selects the rows that a target names, and perhaps more."""
    if target == "*":
        return "", []
    if globs.is_pattern(target):
        return f" AND {column} LIKE ? ESCAPE '!'", [_like(target)]
    return f" AND {column} = ?", [target]


def _matches(target: str, name: str | None) -> bool:
    # LIKE ignores case on one of the engines, so its rows are matched again, exactly.
    return target in ("*", name) or (name is not None and globs.matches(target, name))


def _like(glob: str) -> str:
    """Return a pattern of LIKE for a glob, escaped with ``!``."""
    escaped = re.sub(r"[!%_]", lambda found: f"!{found[0]}", glob)
    return escaped.replace("*", "%").replace("?", "_")


def _workflow_row(
    connection: Connection, organisation_id: str, workflow_id: str
) -> tuple[Any, ...] | None:
    rows = connection.rows(f"{SELECT_WORKFLOWS} AND scope_id = ?", organisation_id, workflow_id)
    return rows[0] if rows else None


def runs(
    connection: Connection,
    now_ms: int,
    organisation_id: str,
    workflow_id: str | None,
    after: str,
    limit: int,
) -> list[records.Run]:
    """Return runs by id, of one workflow or of all."""
    directives = directives_of(connection, organisation_id)
    where, arguments = equals(owner=workflow_id)
    return [
        run_record(row, directives, now_ms)
        for row in connection.rows(
            f"{SELECT_RUNS} AND {where or 'true'} AND scope_id > ? ORDER BY scope_id LIMIT ?",
            organisation_id, *arguments, after, limit,
        )
    ]  # fmt: skip


def _has_type(connection: Connection, organisation_id: str, event_type: str) -> bool:
    return bool(
        connection.rows(
            "SELECT 1 FROM usage WHERE organisation_id = ? AND scope_kind = 'organisation'"
            " AND size_ms = 0 AND type = ? LIMIT 1",
            organisation_id, event_type,
        )
    )  # fmt: skip


def events(
    connection: Connection, organisation_id: str, after: int, limit: int, workflow_id: str | None,
    event_type: str | None, flag: str | None = None,
) -> list[records.StoredEvent]:  # fmt: skip
    """Return events in the order of arrival; ``flag``: only those with it, or one of it."""
    where, arguments = equals(
        organisation_id=organisation_id, workflow_id=workflow_id, type=event_type
    )
    source = "events"
    if flag is not None:
        flags = flag.split(",")
        source = "events INDEXED BY events_flagged"
        where += f" AND flags <> '' AND ({' OR '.join('flags LIKE ?' for _ in flags)})"
        arguments += [f"%{each}%" for each in flags]
    if event_type is not None and not _has_type(connection, organisation_id, event_type):
        return []
    if event_type not in (None, "llm", "span"):
        where += " AND type NOT IN ('llm', 'span')"  # so that the index of the others serves
    return [
        EVENTS.read(row)
        for row in connection.rows(
            f"SELECT {EVENTS.names()} FROM {source} WHERE {where} AND event_seq > ?"
            " ORDER BY event_seq LIMIT ?",
            *arguments, after, limit,
        )
    ]  # fmt: skip


def balances(
    connection: Connection,
    now_ms: int,
    organisation_id: str,
    *,
    current_only: bool,
    after: int = 0,
    limit: int = 2**31,
) -> list[records.BalanceView]:
    """Return balances with their budgets, by number; ``current_only``: of current periods."""
    open_after_ms = now_ms if current_only else -1
    rows = connection.rows(
        f"{SELECT_BALANCE_VIEWS} balances b CROSS JOIN budgets u USING (budget_id)"
        " WHERE b.balance_id > ? AND u.organisation_id = ? AND coalesce(b.ends_ms, ?) > ?"
        " ORDER BY b.balance_id LIMIT ?",
        after, organisation_id, 2**62, open_after_ms, limit,
    )  # fmt: skip
    return [balance_view_from_row(row) for row in rows]


def ids_from(at_ms: int) -> str:
    """Return what sorts before the ids that are made from a time on."""
    digits = f"{min(at_ms, 2**48 - 1):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def approvals(
    connection: Connection, organisation_id: str, status: str | None, limit: int,
    within: tuple[int, int] = (0, 2**53),
) -> list[records.Approval]:  # fmt: skip
    """Return approvals, newest first."""
    where, arguments = equals(organisation_id=organisation_id, status=status)
    return [
        approval_from_row(row)
        for row in connection.rows(
            f"{APPROVALS.select()} WHERE {where} AND approval_id >= ? AND approval_id < ?"
            " ORDER BY approval_id DESC LIMIT ?",
            *arguments, *map(ids_from, within), limit,
        )
    ]  # fmt: skip


def deliveries(
    connection: Connection, organisation_id: str, limit: int,
    within: tuple[int, int] = (0, 2**53),
) -> list[records.Delivery]:  # fmt: skip
    """Return deliveries to channels, newest first."""
    return [
        records.Delivery(
            delivery_id=row[0], webhook_id=row[1], type=row[2], created_at_ms=row[3],
            attempts=row[4], delivered_at_ms=row[5], failed=bool(row[6]), last_status=row[7],
            error=row[8], channel=(row[9] or "").removeprefix(NAMED), kind=row[10] or "webhook",
        )
        for row in connection.rows(
            "SELECT d.delivery_id, d.webhook_id, d.type, d.created_at_ms, d.attempts,"
            " d.delivered_at_ms, d.failed, d.last_status, d.delivery_error, w.url, w.channel_kind"
            " FROM deliveries d LEFT JOIN webhooks w USING (webhook_id)"
            " WHERE d.organisation_id = ? AND d.delivery_id >= ? AND d.delivery_id < ?"
            " ORDER BY d.delivery_id DESC LIMIT ?",
            organisation_id, *map(ids_from, within), limit,
        )
    ]  # fmt: skip


def audit(
    connection: Connection, organisation_id: str | None, after: int, limit: int, *,
    with_gateway: bool = False,
) -> list[records.AuditEntry]:  # fmt: skip
    """Return audit entries in order, of one organisation or of all.

    ``with_gateway`` adds to those of an organisation the entries of none.
    """
    where, given = equals(organisation_id=organisation_id)
    end = "AND seq > ? ORDER BY seq LIMIT ?"
    rows = connection.rows(f"{AUDIT.select()} WHERE {where or 'true'} {end}", *given, after, limit)
    if with_gateway:  # a query of its own, so that both read their index
        of_none = f"{AUDIT.select()} WHERE organisation_id IS NULL {end}"
        rows = sorted([*rows, *connection.rows(of_none, after, limit)], key=lambda row: int(row[0]))
    return [*map(AUDIT.read, rows[:limit])]


def audit_head(connection: Connection) -> tuple[int, str]:
    """Return the number and the hash of the newest audit entry."""
    rows = connection.rows("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1")
    return (rows[0][0], rows[0][1]) if rows else (0, GENESIS)
