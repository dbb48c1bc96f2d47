"""What a scope has already cost when its balance is opened.

A budget that is set at noon counts the cost of the morning. The sum is computed in the writer's
transaction, whenever a scope is first seen in a period. It must not scan the events of other
scopes: events of workflows and of chains are indexed.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from guard.gateway.domain.records import ScopeKind

CLOCK_SLACK_MS: Final = 60_000
"""How far arrival times may be out of order, after a crash and a step of the clock."""

_COLUMNS: Final = {"workflow": "workflow_id", "agent": "agent", "chain": "chain_id",
                   "key": "key_id", "model": "model"}  # fmt: skip
_INDEXES: Final = {"workflow": "events_workflow", "chain": "events_chain"}


def spent_before(
    connection: sqlite3.Connection,
    organisation_id: str,
    kind: ScopeKind,
    scope_id: str,
    start_ms: int,
    end_ms: int | None,
) -> int:
    """Return the nano-dollars that a scope has cost in a period, archived costs included.

    Args:
        connection: the writer's, inside its transaction.
        organisation_id: whose events they are.
        kind: which kind of scope it is.
        scope_id: the concrete id, empty for the organisation.
        start_ms: when the period begins.
        end_ms: when it ends; ``None`` for the one that never does.
    """
    where = "organisation_id = ? AND charged_at_ms >= ? AND charged_at_ms < ?"
    arguments: list[Any] = [organisation_id, start_ms, 2**62 if end_ms is None else end_ms]
    index = _INDEXES.get(kind, "events_cost")
    if kind in _COLUMNS:
        where += f" AND {_COLUMNS[kind]} = ?"
        arguments.append(scope_id)
    if index == "events_cost":
        where += " AND cost_nanousd > 0"
    elif index == "events_workflow" and end_ms is not None:
        where += " AND event_seq >= ?"
        arguments.append(_first_since(connection, start_ms - CLOCK_SLACK_MS))
    sql = f"SELECT coalesce(sum(cost_nanousd), 0) FROM events INDEXED BY {index} WHERE {where}"  # noqa: S608 (constants of this module)
    total = int(connection.execute(sql, arguments).fetchone()[0])
    if end_ms is None:
        (archived,) = connection.execute(
            "SELECT coalesce(sum(cost_nanousd), 0) FROM archived_spend WHERE organisation_id = ?"
            " AND scope_kind = ? AND scope_id = ?",
            (organisation_id, kind, scope_id),
        ).fetchone()
        total += archived
    return total


def _first_since(connection: sqlite3.Connection, at_ms: int) -> int:
    """Return a number that no event received at or after a moment lies below.

    Events are numbered as they arrive, so a binary search finds it. An event is never charged to a
    time after its arrival.
    """
    execute = connection.execute
    (low,) = execute("SELECT min(event_seq) FROM events").fetchone()
    (newest,) = execute("SELECT max(event_seq) FROM events").fetchone()  # each by the index alone
    if low is None:
        return 0
    high = newest + 1
    while low < high:
        middle = (low + high) // 2
        seq, received_at_ms = execute(
            "SELECT event_seq, received_at_ms FROM events WHERE event_seq >= ?"
            " ORDER BY event_seq LIMIT 1",
            (middle,),
        ).fetchone()
        if received_at_ms >= at_ms:
            high = middle
        else:
            low = seq + 1
    return int(low)
