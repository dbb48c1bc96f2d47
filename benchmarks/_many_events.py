"""Many events of a day or more, written straight into a store with all sums of them."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

import psycopg

from guard.gateway.ledger.state import Scopes
from guard.gateway.storage.postgres.store import PostgresStorage
from guard.gateway.storage.sql.scope_totals import COLUMNS
from guard.gateway.storage.sql.unit_of_work import SqlUnitOfWork
from guard.gateway.storage.sqlite.store import SqliteStorage

DAY: Final = 86_400_000
_LONG: Final = Scopes(weight=10_000)

_EVENTS: Final = (
    "INSERT INTO events (event_seq, organisation_id, event_id, type, at_ms, received_at_ms,"
    " charged_at_ms, key_id, workflow_id, run_id, chain_id, agent, provider, model, input_tokens,"
    " output_tokens, cost_nanousd, price_source, flags, balance_ids, data, user_id, call_id, tags)"
    " WITH RECURSIVE n (n) AS (SELECT CAST(0 AS BIGINT) UNION ALL SELECT n + 1 FROM n"
    " WHERE n + 1 < {events}) SELECT n + 1, '{own}', 'e' || n,"
    " CASE n % 5 WHEN 0 THEN 'tool' WHEN 1 THEN 'span'"
    " ELSE 'llm' END, at_ms, at_ms, at_ms, 'k' || (n % 3), 'w' || (run % 50), 'r' || run,"
    " CASE WHEN n % 11 = 0 THEN 'c' || (n / 110) END, 'a' || (n % 20), 'openai',"
    " 'm' || ((n * 7919) % 20), 100, 50, CASE WHEN n % 5 > 1 THEN 1000 + n % 977 ELSE 0 END,"
    " 'published', CASE WHEN n % 400 = 2 THEN 'unpriced' ELSE '' END, '[]',"
    " '{{\"latency_ms\": ' || (n % 9000) || '}}', 'u' || ((n * 104729) % 5000), 'call' || (n / 3),"
    ' \'{{"team": "t\' || (n % 12) || \'", "request": "q\' || (n % 5000) || \'"}}\''
    " FROM (SELECT n, {start} + n * {days} * 86400000 / {events} AS at_ms,"
    " (n / 1000) * 20 + n % 20 AS run FROM n) e"
)
_UNPRICED: Final = "sum(CASE WHEN flags LIKE '%unpriced%' THEN 1 ELSE 0 END)"
_LLM: Final = "sum(CASE type WHEN 'llm' THEN 1 ELSE 0 END)"
_TOOL: Final = "sum(CASE type WHEN 'tool' THEN 1 ELSE 0 END)"
_TOKENS: Final = "sum(input_tokens), sum(output_tokens)"
_DERIVED: Final = (
    (
        "INSERT INTO workflows SELECT organisation_id, workflow_id, min(at_ms), max(at_ms),"
        f" sum(cost_nanousd), {_LLM}, count(*) FROM events GROUP BY organisation_id, workflow_id"
    ),
    (
        "INSERT INTO runs SELECT organisation_id, run_id, min(workflow_id), min(at_ms), max(at_ms),"
        " sum(cost_nanousd) FROM events GROUP BY organisation_id, run_id"
    ),
    *(
        "INSERT INTO organisation_rollups SELECT organisation_id, {0}, charged_at_ms"
        " - charged_at_ms % {0} AS bucket, type, provider, model, count(*), sum(cost_nanousd),"
        f" {_TOKENS}, {_UNPRICED} FROM events"
        " GROUP BY organisation_id, bucket, type, provider, model".format(size)
        for size in (3_600_000, DAY)
    ),
    *(
        "INSERT INTO usage_rollups SELECT organisation_id, {0}, charged_at_ms - charged_at_ms % {0}"
        f" AS bucket, workflow_id, model, sum(cost_nanousd), {_LLM}, {_TOOL}, {_TOKENS} FROM events"
        " GROUP BY organisation_id, bucket, workflow_id, model".format(size)
        for size in (60_000, 3_600_000)
    ),
    *(
        f"INSERT INTO scope_totals SELECT organisation_id, CASE WHEN {column} IS NULL"
        f" THEN 'no {kind}' ELSE '{kind}' END, coalesce({column}, ''), sum(cost_nanousd), 0, 0, 0,"
        f" 0, 0, 0, count(*), {_LLM}, {_TOOL}, {_TOKENS}, {_UNPRICED}, 0, 0"
        f" FROM events GROUP BY organisation_id, {column}"
        for kind, column in COLUMNS.items()
    ),
    (
        "INSERT INTO balances (budget_id, scope_id, period_start_ms, ends_ms, opening, committed,"
        " reserved, overspend, authorized_max, level, exhausted) SELECT b.budget_id, x.scope_id,"
        " CASE b.\"window\" WHEN 'day' THEN {today} ELSE 0 END,"
        " CASE b.\"window\" WHEN 'day' THEN {today} + 86400000 END, 0, x.cost_nanousd, 0, 0,"
        " 1000000000000, 0, 0 FROM budgets b JOIN scope_totals x ON x.scope_kind = b.scope_kind"
    ),
    (
        "INSERT INTO refusals (organisation_id, at_ms, workflow_id, run_id, call_id, kind,"
        " function, status, error_code, reason) SELECT organisation_id, at_ms, workflow_id, run_id,"
        " event_id, 'call', 'f', 402, 'GD-B004', 'r' FROM events WHERE event_seq % 100 = 0"
    ),
)  # fmt: skip


def fill(database: str, organisation_id: str, events: int, now_ms: int, days: int = 1) -> None:
    """Write so many events of the last days into a database that no gateway uses."""
    asyncio.run(_fill(database, organisation_id, events, now_ms, days))


async def _fill(database: str, organisation_id: str, events: int, now_ms: int, days: int) -> None:
    if "://" in database:
        storage: Any = PostgresStorage(database)
    else:
        storage = SqliteStorage(os.fspath(database))
    await storage.open(lambda _: None)
    try:
        words = {"own": organisation_id, "events": events, "start": now_ms - days * DAY,
                 "days": days, "today": now_ms - now_ms % DAY}  # fmt: skip
        texts = [sql.format(**words) if "{" in sql else sql for sql in (_EVENTS, *_DERIVED)]
        if "://" in database:
            _execute(database, texts)
        else:
            await storage.write(_LONG, lambda unit: [unit.write(sql) for sql in texts])
        unit: SqlUnitOfWork = storage._unit
        for sums in unit.scope_sums:
            sums.look()
            while sums.is_due:
                await storage.write(_LONG, lambda _, sums=sums: sums.step(50_000))
    finally:
        await storage.close()
    if "://" in database:  # as PostgreSQL does by itself after a while
        _execute(database, ["VACUUM ANALYZE"])


def _execute(database: str, texts: list[str]) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        for sql in texts:
            connection.execute(sql.encode())
