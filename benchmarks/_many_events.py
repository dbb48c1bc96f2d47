"""Many events of a day or more, written straight into a store with all sums of them."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any, Final

import psycopg

from guard.gateway.storage.postgres.store import PostgresStorage
from guard.gateway.storage.sqlite.store import SqliteStorage
from guard.gateway.unit.state import Touches

DAY: Final = 86_400_000
_HEAVY: Final = Touches(weight=10_000)

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
    ' \'{{"latency_ms": \' || (n % 9000) || CASE n % 5 WHEN 0 THEN \', "tool_name": "t\''
    " || (n / 5 % 30) || '\"' ELSE '' END || '}}', 'u' || ((n * 104729) % 5000), 'call' || (n / 3),"
    ' \'{{"team": "t\' || (n % 12) || \'", "request": "q\' || (n % 5000) || \'"}}\''
    " FROM (SELECT n, {start} + n * {days} * 86400000 / {events} AS at_ms,"
    " (n / 1000) * 20 + n % 20 AS run FROM n) e"
)
_NUMBERS: Final = (
    "sum(cost_nanousd), count(*), sum(CASE type WHEN 'llm' THEN 1 ELSE 0 END),"
    " sum(CASE type WHEN 'tool' THEN 1 ELSE 0 END), sum(input_tokens), sum(output_tokens),"
    " sum(CASE WHEN flags LIKE '%unpriced%' THEN 1 ELSE 0 END), 0, 0"
)


def _usage(
    kind: str, size_ms: int, scope_id: str, model: str, rest: str = "'', ''",
    seen: str = "0, NULL, NULL, NULL",
) -> str:  # fmt: skip
    """Return SQL that writes the usage of one kind of scope, by a width."""
    start = f"charged_at_ms - charged_at_ms % {size_ms}" if size_ms else "0"
    return (
        f"INSERT INTO usage SELECT organisation_id, '{kind}', {size_ms}, {start} AS start,"
        f" coalesce({scope_id}, '') AS scope, coalesce({model}, '') AS m, {rest}, {_NUMBERS},"
        f" {seen} FROM events WHERE {scope_id} IS NOT NULL OR '{kind}' IN ('run', 'chain')"
        " GROUP BY organisation_id, start, scope, m"
        f"{', ' + rest if rest[0] != chr(39) else ''}"
    )


_QUARTER: Final = 900_000
_PARTS: Final = "coalesce(provider, ''), type"
_DERIVED: Final = (
    *(_usage("organisation", size, "''", "model", _PARTS) for size in (0, _QUARTER, 60_000)),
    *(_usage("workflow", size, "workflow_id", "model" if size else "''")
      for size in (0, _QUARTER, 60_000)),
    (
        "UPDATE usage SET calls = llm_calls, first_ms = {start}, last_ms = {start} + start_ms"
        " WHERE scope_kind = 'workflow' AND size_ms = 0"
    ),
    _usage("run", 0, "run_id", "''",
           seen="0, min(charged_at_ms), max(charged_at_ms), min(workflow_id)"),
    _usage("chain", 0, "chain_id", "''"),
    *(_usage(kind, size, column, "model" if size and kind == "user" else "''")
      for kind, column in (("agent", "agent"), ("user", "user_id"), ("key", "key_id"),
                           ("tool", "json_extract(data, '$.tool_name')"))
      for size in (0, _QUARTER)),
    *(sql for name in ("team", "request") for sql in (
        _usage(f"tag:{name}", size, f"json_extract(tags, '$.{name}')", "model" if size else "''")
        for size in (0, _QUARTER)
    )),
    (
        "INSERT INTO balances (budget_id, scope_id, period_start_ms, ends_ms, opening, committed,"
        " reserved, overspend, authorized_max, level, exhausted) SELECT b.budget_id, x.scope_id,"
        " CASE b.\"window\" WHEN 'day' THEN {today} ELSE 0 END,"
        " CASE b.\"window\" WHEN 'day' THEN {today} + 86400000 END, 0, x.cost_nanousd, 0, 0,"
        " 1000000000000, 0, 0 FROM budgets b JOIN (SELECT scope_kind, scope_id,"
        " sum(cost_nanousd) AS cost_nanousd FROM usage WHERE size_ms = 0"
        " GROUP BY scope_kind, scope_id) x ON x.scope_kind = b.scope_kind"
    ),
    (
        "INSERT INTO refusals (organisation_id, at_ms, workflow_id, run_id, call_id, kind,"
        " function, status, error_code, reason) SELECT organisation_id, at_ms, workflow_id, run_id,"
        " event_id, 'call', 'f', 402, 'GD-B004', 'r' FROM events WHERE event_seq % 100 = 0"
    ),
)  # fmt: skip


_JSON: Final = re.compile(r"json_extract\((\w+), '\$\.(\w+)'\)")


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
            texts = [_JSON.sub(r"(\1::jsonb ->> '\2')", sql) for sql in texts]
            _execute(database, texts)
        else:
            await storage.write(_HEAVY, lambda unit: [unit.write(sql) for sql in texts])
    finally:
        await storage.close()
    if "://" in database:  # as PostgreSQL does by itself after a while
        _execute(database, ["VACUUM ANALYZE"])


def _execute(database: str, texts: list[str]) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        for sql in texts:
            connection.execute(sql.encode())
