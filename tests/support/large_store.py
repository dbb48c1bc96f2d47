"""A database of release 0.7 with many events, made in seconds; a gateway converts it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.support import release_0_7

HOUR = 3_600_000

_EVENTS = """
WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n + 1 < :events)
INSERT INTO events (event_seq, organisation_id, event_id, type, at_ms, received_at_ms,
  charged_at_ms, key_id, workflow_id, run_id, chain_id, agent, provider, model, response_id,
  input_tokens, output_tokens, cost_nanousd, price_source, flags, balance_ids, data)
SELECT n + 1, 'o', 'e' || n, CASE n % 5 WHEN 0 THEN 'tool' WHEN 1 THEN 'span' ELSE 'llm' END,
  at, at, at, 'k' || (n % 3), 'w' || ((n * 7919) % :workflows), 'r' || (n / 10),
  CASE WHEN n % 11 = 0 THEN 'c' || (n / 110) END, 'a' || (n % 20), 'openai', 'm' || (n % 12),
  NULL, 100, 50, CASE WHEN n % 5 > 1 THEN 1000 + n % 977 ELSE 0 END, 'published',
  CASE WHEN n % 400 = 2 THEN 'unpriced' ELSE '' END,
  CASE WHEN n % 5 > 1 THEN '[1]' ELSE '[]' END, '{}'
FROM (SELECT n, :start + n * (:span / :events) AS at FROM n)
"""


def make(path: Path, *, events: int, workflows: int, now_ms: int, days: int) -> None:
    """Write ``events`` events of one organisation ``o`` over ``days`` days up to ``now_ms``.

    The organisation has a budget for everything and one for each workflow, with balances.
    """
    connection = release_0_7.empty(path)
    connection.execute("PRAGMA synchronous = OFF")
    span = days * 24 * HOUR
    connection.execute("INSERT INTO organisations VALUES ('o', 'o', 1, '{}', 0)")
    connection.executemany(
        "INSERT INTO budgets VALUES (?, 'o', ?, ?, 'total', ?, 'soft', 0, '[]', 1, 1, 1)",
        [("b0", "organisation", "", 10**12), ("b1", "workflow", "*", 10**9)],
    )
    connection.execute(
        _EVENTS, {"events": events, "workflows": workflows, "start": now_ms - span, "span": span}
    )
    connection.executescript(_DERIVED)
    connection.close()


_DERIVED = """BEGIN;
INSERT INTO workflows SELECT 'o', workflow_id, min(at_ms), max(at_ms), sum(cost_nanousd),
  sum(type = 'llm'), count(*) FROM events GROUP BY workflow_id;
INSERT INTO runs SELECT 'o', run_id, min(workflow_id), min(at_ms), max(at_ms), sum(cost_nanousd)
  FROM events GROUP BY run_id;
INSERT INTO figures SELECT 'o', size, charged_at_ms - charged_at_ms % size, workflow_id,
  model, sum(cost_nanousd), sum(type = 'llm'), sum(type = 'tool'), sum(input_tokens),
  sum(output_tokens) FROM events, (SELECT 60000 AS size UNION ALL SELECT 3600000)
  WHERE type IN ('llm', 'tool')
  AND (size = 3600000 OR charged_at_ms > (SELECT max(charged_at_ms) FROM events) - 172800000)
  GROUP BY size, 3, workflow_id, model;
INSERT INTO balances SELECT 1, 'b0', '', 0, NULL, 0, sum(cost_nanousd), 0, 0,
  1000000000000, 0, 0 FROM events;
INSERT INTO balances SELECT NULL, 'b1', workflow_id, 0, NULL, spent_nanousd, spent_nanousd, 0, 0,
  1000000000, 0, 0 FROM workflows;
COMMIT;
"""


def steps_of(connection: sqlite3.Connection, count: list[int]) -> None:
    """Count the steps of the database's machine in ``count[0]``, by the hundred."""

    def add() -> int:
        count[0] += 100
        return 0

    connection.set_progress_handler(add, 100)
