"""Tables of the embedded store, as numbered migrations applied in order at start-up."""

from __future__ import annotations

import sqlite3
from typing import Final

from guard.gateway.domain import models
from guard.gateway.storage.sqlite import scope_totals_migration, user_scope

_V1: Final = """
CREATE TABLE organisations (
  organisation_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, created_at_ms INTEGER NOT NULL,
  settings TEXT NOT NULL, control_seq INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE keys (
  key_id TEXT PRIMARY KEY, organisation_id TEXT REFERENCES organisations, role TEXT NOT NULL,
  name TEXT NOT NULL, prefix TEXT NOT NULL, key_hash BLOB NOT NULL UNIQUE, workflow_id TEXT,
  hmac_secret TEXT, created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER, revoked_at_ms INTEGER
) STRICT;
CREATE TABLE budgets (
  budget_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL REFERENCES organisations,
  scope_kind TEXT NOT NULL, scope_id TEXT NOT NULL, window TEXT NOT NULL,
  limit_nanousd INTEGER NOT NULL, mode TEXT NOT NULL, epsilon_nanousd INTEGER NOT NULL,
  thresholds TEXT NOT NULL, version INTEGER NOT NULL, created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  UNIQUE (organisation_id, scope_kind, scope_id, window)
) STRICT;
CREATE TABLE balances (
  balance_id INTEGER PRIMARY KEY, budget_id TEXT NOT NULL, scope_id TEXT NOT NULL,
  epoch_ms INTEGER NOT NULL, ends_ms INTEGER, opening INTEGER NOT NULL,
  committed INTEGER NOT NULL, reserved INTEGER NOT NULL, overshoot INTEGER NOT NULL,
  bound INTEGER NOT NULL, level INTEGER NOT NULL, exhausted INTEGER NOT NULL,
  UNIQUE (budget_id, scope_id, epoch_ms)
) STRICT;
CREATE TABLE reservations (
  reservation_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, key_id TEXT NOT NULL,
  call_id TEXT NOT NULL, balance_ids TEXT NOT NULL, amount INTEGER NOT NULL,
  held INTEGER NOT NULL, created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL,
  spent INTEGER NOT NULL, state TEXT NOT NULL, basis TEXT NOT NULL, workflow_id TEXT,
  run_id TEXT, chain_id TEXT, agent TEXT, model TEXT, function TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE events (
  event_seq INTEGER PRIMARY KEY, organisation_id TEXT NOT NULL, event_id TEXT NOT NULL,
  type TEXT NOT NULL, at_ms INTEGER NOT NULL, received_at_ms INTEGER NOT NULL,
  charged_at_ms INTEGER NOT NULL, key_id TEXT NOT NULL, workflow_id TEXT, run_id TEXT,
  chain_id TEXT, agent TEXT, call_id TEXT, reservation_id TEXT, provider TEXT, model TEXT,
  response_id TEXT, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
  cost_nanousd INTEGER NOT NULL, price_source TEXT, flags TEXT NOT NULL,
  balance_ids TEXT NOT NULL, data TEXT NOT NULL,
  UNIQUE (organisation_id, event_id)
) STRICT;
CREATE UNIQUE INDEX events_response ON events (organisation_id, provider, response_id)
  WHERE response_id IS NOT NULL;
CREATE INDEX events_cost ON events (organisation_id, charged_at_ms) WHERE cost_nanousd > 0;
CREATE INDEX events_workflow ON events (organisation_id, workflow_id, event_seq);
CREATE TABLE idempotency_0 (
  request TEXT PRIMARY KEY, fingerprint BLOB NOT NULL, status INTEGER NOT NULL, body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE idempotency_1 (
  request TEXT PRIMARY KEY, fingerprint BLOB NOT NULL, status INTEGER NOT NULL, body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE nonces (
  key_id TEXT NOT NULL, nonce TEXT NOT NULL, expires_at_ms INTEGER NOT NULL,
  PRIMARY KEY (key_id, nonce)
) STRICT, WITHOUT ROWID;
CREATE INDEX nonces_expiry ON nonces (expires_at_ms);
CREATE TABLE control (
  organisation_id TEXT NOT NULL, seq INTEGER NOT NULL, key_id TEXT, type TEXT NOT NULL,
  message TEXT NOT NULL, PRIMARY KEY (organisation_id, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE orders (
  organisation_id TEXT NOT NULL, target TEXT NOT NULL, run_id TEXT NOT NULL, slot TEXT NOT NULL,
  message TEXT NOT NULL, PRIMARY KEY (organisation_id, target, run_id, slot)
) STRICT, WITHOUT ROWID;
CREATE TABLE workflows (
  organisation_id TEXT NOT NULL, workflow_id TEXT NOT NULL, first_seen_ms INTEGER NOT NULL,
  last_seen_ms INTEGER NOT NULL, spent_nanousd INTEGER NOT NULL, calls INTEGER NOT NULL,
  events INTEGER NOT NULL, PRIMARY KEY (organisation_id, workflow_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE runs (
  organisation_id TEXT NOT NULL, run_id TEXT NOT NULL, workflow_id TEXT,
  first_seen_ms INTEGER NOT NULL, last_seen_ms INTEGER NOT NULL, spent_nanousd INTEGER NOT NULL,
  PRIMARY KEY (organisation_id, run_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX runs_workflow ON runs (organisation_id, workflow_id);
CREATE TABLE chains (
  organisation_id TEXT NOT NULL, chain_id TEXT NOT NULL, opened_at_ms INTEGER NOT NULL,
  expires_at_ms INTEGER NOT NULL, closed INTEGER NOT NULL,
  PRIMARY KEY (organisation_id, chain_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE estimates (
  organisation_id TEXT NOT NULL, subject TEXT NOT NULL, count INTEGER NOT NULL,
  mean REAL NOT NULL, variance REAL NOT NULL, PRIMARY KEY (organisation_id, subject)
) STRICT, WITHOUT ROWID;
CREATE TABLE approvals (
  approval_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, key_id TEXT NOT NULL,
  call_id TEXT NOT NULL, subject TEXT NOT NULL, status TEXT NOT NULL, tool_name TEXT,
  function TEXT NOT NULL, workflow_id TEXT, run_id TEXT, agent TEXT,
  requested_at_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, answered_at_ms INTEGER,
  answered_by TEXT, reason TEXT NOT NULL,
  UNIQUE (organisation_id, key_id, call_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX approvals_pending ON approvals (deadline_ms) WHERE status = 'pending';
CREATE TABLE policies (
  policy_id TEXT NOT NULL, version INTEGER NOT NULL, organisation_id TEXT NOT NULL,
  name TEXT NOT NULL, current INTEGER NOT NULL, record TEXT NOT NULL,
  PRIMARY KEY (policy_id, version)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX policies_name ON policies (organisation_id, name) WHERE current = 1;
CREATE TABLE prices (
  price_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, provider TEXT NOT NULL,
  model TEXT NOT NULL, record TEXT NOT NULL, UNIQUE (organisation_id, provider, model)
) STRICT, WITHOUT ROWID;
CREATE TABLE webhooks (
  webhook_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, url TEXT NOT NULL,
  types TEXT NOT NULL, secret TEXT NOT NULL, enabled INTEGER NOT NULL,
  created_at_ms INTEGER NOT NULL, UNIQUE (organisation_id, url)
) STRICT, WITHOUT ROWID;
CREATE TABLE deliveries (
  delivery_id TEXT PRIMARY KEY, webhook_id TEXT NOT NULL, organisation_id TEXT NOT NULL,
  type TEXT NOT NULL, body TEXT NOT NULL, created_at_ms INTEGER NOT NULL,
  next_attempt_ms INTEGER NOT NULL, attempts INTEGER NOT NULL, delivered_at_ms INTEGER,
  failed INTEGER NOT NULL, last_status INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX deliveries_due ON deliveries (next_attempt_ms)
  WHERE delivered_at_ms IS NULL AND failed = 0;
CREATE TABLE audit (
  seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, organisation_id TEXT, actor TEXT NOT NULL,
  action TEXT NOT NULL, target TEXT NOT NULL, details TEXT NOT NULL, prev_hash TEXT NOT NULL,
  hash TEXT NOT NULL
) STRICT;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""

_V2: Final = """
ALTER TABLE events ADD COLUMN trace_id TEXT;
ALTER TABLE events ADD COLUMN span_id TEXT;
ALTER TABLE events ADD COLUMN parent_span_id TEXT;
CREATE INDEX events_organisation ON events (organisation_id, event_seq);
CREATE TABLE refusals (
  refusal_seq INTEGER PRIMARY KEY, organisation_id TEXT NOT NULL, at_ms INTEGER NOT NULL,
  workflow_id TEXT, run_id TEXT, agent TEXT, call_id TEXT NOT NULL, kind TEXT NOT NULL,
  function TEXT NOT NULL, tool_name TEXT, model TEXT, status INTEGER NOT NULL,
  error_code TEXT NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE INDEX refusals_organisation ON refusals (organisation_id, refusal_seq);
CREATE INDEX refusals_workflow ON refusals (organisation_id, workflow_id, refusal_seq);
CREATE TABLE figures (
  organisation_id TEXT NOT NULL, size_ms INTEGER NOT NULL, bucket_ms INTEGER NOT NULL,
  workflow_id TEXT NOT NULL, model TEXT NOT NULL, cost_nanousd INTEGER NOT NULL,
  llm_calls INTEGER NOT NULL, tool_calls INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  PRIMARY KEY (organisation_id, size_ms, bucket_ms, workflow_id, model)
) STRICT, WITHOUT ROWID;
CREATE TABLE operators (
  operator_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE,
  organisation_id TEXT REFERENCES organisations, password_hash TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL, changed_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE sessions (
  token_hash BLOB PRIMARY KEY, operator_id TEXT NOT NULL REFERENCES operators,
  created_at_ms INTEGER NOT NULL, seen_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_expiry ON sessions (expires_at_ms);
CREATE INDEX audit_organisation ON audit (organisation_id, seq);
CREATE INDEX approvals_organisation ON approvals (organisation_id, status, approval_id);
INSERT INTO figures SELECT organisation_id, 3600000, charged_at_ms - charged_at_ms % 3600000,
  coalesce(workflow_id, ''), coalesce(model, ''), sum(cost_nanousd), sum(type = 'llm'),
  sum(type = 'tool'), sum(input_tokens), sum(output_tokens)
  FROM events WHERE cost_nanousd > 0 OR type IN ('llm', 'tool') GROUP BY 1, 3, 4, 5;
"""
"""The dashboard's tables; hours are filled from the events that are there."""

_V3: Final = """
CREATE TABLE carried (
  organisation_id TEXT NOT NULL, scope_kind TEXT NOT NULL, scope_id TEXT NOT NULL,
  cost_nanousd INTEGER NOT NULL, PRIMARY KEY (organisation_id, scope_kind, scope_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX events_chain ON events (organisation_id, chain_id) WHERE chain_id IS NOT NULL;
CREATE INDEX reservations_chain ON reservations (organisation_id, chain_id)
  WHERE chain_id IS NOT NULL;
"""

_V4: Final = """
ALTER TABLE carried RENAME TO archived_spend;
ALTER TABLE figures RENAME TO usage_rollups;
ALTER TABLE orders RENAME TO directives;
ALTER TABLE balances RENAME COLUMN epoch_ms TO period_start_ms;
ALTER TABLE balances RENAME COLUMN overshoot TO overspend;
ALTER TABLE balances RENAME COLUMN bound TO authorized_max;
"""

_V6: Final = """
ALTER TABLE events ADD COLUMN request_id TEXT;
UPDATE events SET request_id = event_id WHERE response_id IS NOT NULL;
DROP INDEX events_response;
CREATE INDEX events_response ON events (organisation_id, provider, response_id, request_id)
  WHERE response_id IS NOT NULL;
"""
"""Vendors re-use the ids of responses: only the same request's answer is a repeat."""

_V7: Final = """
CREATE TABLE scope_days (
  organisation_id TEXT NOT NULL, scope_kind TEXT NOT NULL, scope_id TEXT NOT NULL,
  day_ms INTEGER NOT NULL, cost_nanousd INTEGER NOT NULL, events INTEGER NOT NULL,
  llm_calls INTEGER NOT NULL, tool_calls INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL, unpriced INTEGER NOT NULL,
  PRIMARY KEY (organisation_id, scope_kind, scope_id, day_ms)
) STRICT, WITHOUT ROWID;
INSERT INTO facts VALUES ('summed_event_seq', '0');
"""
"""What is stored already is summed by the first sweeps."""

_V8: Final = """
ALTER TABLE estimates ADD COLUMN model TEXT;
ALTER TABLE estimates ADD COLUMN model_at_ms INTEGER NOT NULL DEFAULT 0;
"""

_V9: Final = "ALTER TABLE balances ADD COLUMN leases INTEGER NOT NULL DEFAULT 0;"
"""How many open leases hold money on a balance."""

_V10: Final = """
ALTER TABLE approvals ADD COLUMN note TEXT NOT NULL DEFAULT '{}';
ALTER TABLE approvals ADD COLUMN present_until_ms INTEGER;
CREATE INDEX approvals_present ON approvals (present_until_ms) WHERE status = 'pending';
"""
"""What the caller of an approval shows, and until when it is known to wait."""

MIGRATIONS: Final = (
    _V1, _V2, _V3, _V4, scope_totals_migration.SCRIPT, _V6, _V7, _V8, _V9, _V10,
    user_scope.SCRIPT,
)  # fmt: skip


def _family(model: str | None) -> str | None:
    return None if model is None else models.family(model)


def connect(path: str, *, durable: bool) -> sqlite3.Connection:
    """Open the database for writing: WAL, foreign keys, explicit transactions.

    Args:
        path: file name.
        durable: sync every commit to the disk (survives power loss). Without it a commit
            survives the death of the process, and power loss may take the newest ones away
            without harming the rest.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -65536")
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # checkpoints run beside the writer
    connection.execute("PRAGMA journal_size_limit = 8388608")  # a log that starts afresh is cut
    return connection


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema to the newest version, each step whole or not at all.

    Raises:
        RuntimeError: the file was written by a newer gateway.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise RuntimeError(f"the database has schema {version}, newer than this gateway knows")
    connection.create_function("model_family", 1, _family, deterministic=True)
    for step in _steps(version):
        connection.executescript(f"BEGIN IMMEDIATE;{step}COMMIT;")


def rehearse(connection: sqlite3.Connection) -> None:
    """Run every step that is missing in one transaction, and take it back.

    Raises:
        sqlite3.Error: a step fails.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.create_function("model_family", 1, _family, deterministic=True)
    try:
        connection.executescript("BEGIN IMMEDIATE;" + "".join(_steps(version)))
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _steps(version: int) -> list[str]:
    return [
        f"{script}PRAGMA user_version = {number};"
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1)
    ]
