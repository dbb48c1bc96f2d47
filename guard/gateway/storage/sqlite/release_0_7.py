"""Writes the contents of a file of release 0.7 into a new file of the first schema.

Rows are copied as they are, but for keys that were rotated (:mod:`.joined_keys`). Usage is summed
from the events, all of which 0.7 kept.
"""

from __future__ import annotations

from typing import Final

from guard.core import wire
from guard.gateway.domain import models
from guard.gateway.domain.commands import PricedEvent
from guard.gateway.storage.sql.usage_report import TOOL_NAME
from guard.gateway.storage.sqlite.connection import SqliteWriteConnection
from guard.gateway.storage.sqlite.joined_keys import Joined
from guard.gateway.unit.money import LedgerTables

BATCH_EVENTS: Final = 1000
"""Events whose sums are written together."""

_TABLES: Final = {"orders": "directives"}
_COLUMNS: Final = {
    "epoch_ms": "period_start_ms",
    "overshoot": "overspend",
    "bound": "authorized_max",
    "limit_nanousd": "limit_amount",
}
"""Names that have changed: 0.7's, and today's."""

_OLD_TABLES: Final = (
    "SELECT name FROM old.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    " AND name NOT IN ('figures', 'workflows', 'runs', 'keys')"
)
_EVENTS: Final = (
    "SELECT organisation_id, charged_at_ms, workflow_id, agent, chain_id, key_of(key_id),"
    " model, type,"
    " run_id, provider, cost_nanousd, input_tokens, output_tokens, flags,"
    f" {TOOL_NAME} FROM old.events"
)
_DERIVED: Final = """
UPDATE events SET request_id = event_id WHERE response_id IS NOT NULL;
INSERT OR REPLACE INTO directives SELECT organisation_id,
  json_extract(message, '$.budget.scope'), '', 'budget', message, key_id, 0 FROM control
  WHERE type = 'budget' AND json_extract(message, '$.budget.scope') IS NOT NULL
  ORDER BY organisation_id, seq;
DELETE FROM directives WHERE slot = 'budget'
  AND NOT coalesce(json_extract(message, '$.exhausted'), 0);
UPDATE directives SET at_ms = coalesce(json_extract(message, '$.at_ms'), 0);
INSERT INTO usage SELECT organisation_id, 'workflow', 0, 0, workflow_id, '', '', '', 0, 0, 0, 0, 0,
  0, 0, 0, 0, calls, first_seen_ms, last_seen_ms, NULL FROM old.workflows WHERE true
  ON CONFLICT DO UPDATE SET calls = excluded.calls, first_ms = excluded.first_ms,
  last_ms = excluded.last_ms;
INSERT INTO usage SELECT organisation_id, 'run', 0, 0, run_id, '', '', '', 0, 0, 0, 0, 0, 0, 0, 0,
  0, 0, first_seen_ms, last_seen_ms, workflow_id FROM old.runs WHERE true
  ON CONFLICT DO UPDATE SET first_ms = excluded.first_ms, last_ms = excluded.last_ms,
  owner = excluded.owner;
DELETE FROM usage WHERE size_ms = 60000
  AND start_ms < (SELECT max(charged_at_ms) FROM events) - 172800000;
"""
"""What 0.7 looked up elsewhere, such as exhausted budgets among the control messages; when
workflows and runs were seen; and no minutes but those of the last two days."""


def convert(old: str, connection: SqliteWriteConnection, now_ms: int, *, carry: bool) -> Joined:
    """Fill an empty database of the first schema, in one transaction.

    Returns:
        What was rotated, and is one key now.

    Args:
        old: a URI of the file of 0.7, which is only read.
        connection: to the new database, opened with ``uri=True`` and outside of a transaction.
        now_ms, carry: as for :meth:`Joined.of`.

    Raises:
        sqlite3.Error: the old file is damaged, or the disk is full.
    """
    connection.execute("ATTACH ? AS old", (old,))
    connection.execute("PRAGMA foreign_keys = OFF")  # tables come in any order
    connection.execute("BEGIN")
    plan = Joined.of(connection, now_ms, carry=carry, schema="old")
    connection.create_function("key_of", 1, plan.key_of, deterministic=True)
    _sum_events(connection)
    for (table,) in connection.execute(_OLD_TABLES).fetchall():
        columns = [row[1] for row in connection.execute(f"PRAGMA old.table_info({table})")]
        names = ", ".join(f'"{_COLUMNS.get(each, each)}"' for each in columns)
        target = _TABLES.get(table, table)
        source = ", ".join(
            "key_of(key_id)" if each == "key_id" else f'"{each}"' for each in columns
        )
        connection.execute(
            f"INSERT OR REPLACE INTO {target} ({names}) SELECT {source} FROM old.{table}"
        )
    for statement in _DERIVED.split(";"):
        connection.execute(statement)
    plan.apply(connection)
    connection.execute("COMMIT")
    connection.execute("DETACH old")
    return plan


def _sum_events(connection: SqliteWriteConnection) -> None:
    tables = LedgerTables(connection)
    for number, row in enumerate(connection.execute(_EVENTS), start=1):
        _count(tables, *row)
        if number % BATCH_EVENTS == 0:
            _write(tables)
    _write(tables)


def _count(
    tables: LedgerTables, organisation_id: str, charged_at_ms: int, workflow_id: str | None,
    agent: str | None, chain_id: str | None, key_id: str, model: str | None, kind: str,
    run_id: str | None, provider: str | None, cost: int, input_tokens: int, output_tokens: int,
    flags: str, tool: str | None,
) -> None:  # fmt: skip
    event = wire.Event("", kind, charged_at_ms, workflow_id, run_id, data={"tool_name": tool})
    priced = PricedEvent(
        event, b"", cost,
        provider=provider, model=model, input_tokens=input_tokens, output_tokens=output_tokens,
        flags=flags,
    )  # fmt: skip
    keys = (workflow_id, agent, chain_id, None, key_id, (), models.names(model))
    tables.count_usage(organisation_id, keys, charged_at_ms, priced)


def _write(tables: LedgerTables) -> None:
    tables.usage.flush()
    tables.undo_log.clear()
