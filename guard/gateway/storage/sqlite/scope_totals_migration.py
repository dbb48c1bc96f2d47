"""The fifth migration: running totals of scopes and rollups of organisations, from the events."""

from __future__ import annotations

from typing import Final

_SIZES: Final = ("hour", "day", "month")
_SCOPES: Final = (
    ("workflow", "workflow_id"), ("agent", "agent"), ("chain", "chain_id"), ("key", "key_id"),
    ("run", "run_id"),
)  # fmt: skip

_TABLES: Final = """
CREATE TABLE scope_totals (
  organisation_id TEXT NOT NULL, scope_kind TEXT NOT NULL, scope_id TEXT NOT NULL,
  cost_nanousd INTEGER NOT NULL,
  hour_ms INTEGER NOT NULL, hour_nanousd INTEGER NOT NULL,
  day_ms INTEGER NOT NULL, day_nanousd INTEGER NOT NULL,
  month_ms INTEGER NOT NULL, month_nanousd INTEGER NOT NULL,
  events INTEGER NOT NULL, llm_calls INTEGER NOT NULL, tool_calls INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, unpriced INTEGER NOT NULL,
  PRIMARY KEY (organisation_id, scope_kind, scope_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE organisation_rollups (
  organisation_id TEXT NOT NULL, size_ms INTEGER NOT NULL, bucket_ms INTEGER NOT NULL,
  type TEXT NOT NULL, provider TEXT NOT NULL, model TEXT NOT NULL, events INTEGER NOT NULL,
  cost_nanousd INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
  unpriced INTEGER NOT NULL,
  PRIMARY KEY (organisation_id, size_ms, bucket_ms, type, provider, model)
) STRICT, WITHOUT ROWID;
DROP INDEX events_cost;
CREATE INDEX events_charged ON events (organisation_id, charged_at_ms);
CREATE INDEX events_type ON events (organisation_id, type, event_seq)
  WHERE type NOT IN ('llm', 'span');
CREATE INDEX approvals_newest ON approvals (organisation_id, approval_id);
CREATE INDEX deliveries_newest ON deliveries (organisation_id, delivery_id);
CREATE TABLE charges AS SELECT organisation_id, workflow_id, agent, chain_id, key_id, model,
  run_id, coalesce(provider, '') AS provider, type, cost_nanousd AS cost, input_tokens,
  output_tokens, flags LIKE '%unpriced%' AS unpriced, charged_at_ms AS at,
  charged_at_ms - charged_at_ms % 3600000 AS hour,
  charged_at_ms - charged_at_ms % 86400000 AS day,
  CAST(strftime('%s', charged_at_ms / 1000, 'unixepoch', 'start of month') AS INTEGER) * 1000
    AS month FROM events;
"""

_REST: Final = """
DROP TABLE charges;
INSERT INTO scope_totals SELECT organisation_id, scope_kind, scope_id, cost_nanousd, 0, 0, 0, 0,
  0, 0, 0, 0, 0, 0, 0, 0 FROM archived_spend WHERE true ON CONFLICT DO UPDATE SET
  cost_nanousd = min(scope_totals.cost_nanousd + excluded.cost_nanousd, 4611686018427387903);
DROP TABLE archived_spend;
ALTER TABLE directives ADD COLUMN key_id TEXT;
ALTER TABLE directives ADD COLUMN at_ms INTEGER NOT NULL DEFAULT 0;
INSERT OR REPLACE INTO directives SELECT organisation_id,
  json_extract(message, '$.budget.scope'), '', 'budget', message, key_id, 0 FROM control
  WHERE type = 'budget' AND json_extract(message, '$.budget.scope') IS NOT NULL
  ORDER BY organisation_id, seq;
DELETE FROM directives WHERE slot = 'budget'
  AND NOT coalesce(json_extract(message, '$.exhausted'), 0);
UPDATE directives SET at_ms = coalesce(json_extract(message, '$.at_ms'), 0);
CREATE INDEX directives_runs ON directives (organisation_id, at_ms) WHERE run_id <> '';
"""

_MODELS: Final = (
    "(SELECT *, model AS name FROM charges WHERE model IS NOT NULL UNION ALL"
    " SELECT *, model_family(model) FROM charges WHERE model_family(model) <> model)"
)
"""A model's events count for its family as well, as budgets do."""


def _bounded_sum(expression: str) -> str:
    """Return SQL for a sum that ends at ``2**62 - 1`` where a plain one would overflow."""
    high, low = f"sum(({expression}) >> 31)", f"sum(({expression}) & 2147483647)"
    return f"CASE WHEN {high} >= 2147483647 THEN {2**62 - 1} ELSE {high} * 2147483648 + {low} END"


def _totals_of(kind: str, scope_id: str, source: str) -> str:
    """Return SQL that fills the totals of one kind of scope; each has its own newest periods."""
    newest = ", ".join(
        f"max({size}) OVER (PARTITION BY organisation_id, {scope_id}) AS newest_{size}"
        for size in _SIZES
    )
    periods = ", ".join(
        f"max({size}), " + _bounded_sum(f"CASE WHEN {size} = newest_{size} THEN cost ELSE 0 END")
        for size in _SIZES
    )
    return f"""
INSERT INTO scope_totals SELECT organisation_id, '{kind}', id, {_bounded_sum("cost")},
  {periods}, count(*), sum(type = 'llm'), sum(type = 'tool'), {_bounded_sum("input_tokens")},
  {_bounded_sum("output_tokens")}, sum(unpriced)
  FROM (SELECT organisation_id, {scope_id} AS id, type, cost, input_tokens, output_tokens,
  unpriced, hour, day, month, {newest} FROM {source}) GROUP BY organisation_id, id;
"""  # noqa: S608 (constants of this module)


def _rollups_of(size_ms: int) -> str:
    return f"""
INSERT INTO organisation_rollups SELECT organisation_id, {size_ms},
  at - at % {size_ms}, type, provider, coalesce(model, ''), count(*), {_bounded_sum("cost")},
  {_bounded_sum("input_tokens")}, {_bounded_sum("output_tokens")}, sum(unpriced)
  FROM charges GROUP BY 1, 3, 4, 5, 6;
"""  # noqa: S608 (constants of this module)


SCRIPT: Final = "".join(
    (
        _TABLES,
        _totals_of("organisation", "''", "charges"),
        _totals_of("model", "name", _MODELS),
        *(_totals_of(k, name, f"charges WHERE {name} IS NOT NULL") for k, name in _SCOPES),
        *(_totals_of(f"no {k}", "''", f"charges WHERE {name} IS NULL") for k, name in _SCOPES),
        _rollups_of(3_600_000),
        _rollups_of(86_400_000),
        _REST,
    )
)
