CREATE TABLE approvals (
  approval_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, key_id TEXT NOT NULL,
  call_id TEXT NOT NULL, subject TEXT NOT NULL, status TEXT NOT NULL, tool_name TEXT,
  function TEXT NOT NULL, workflow_id TEXT, run_id TEXT, agent TEXT,
  requested_at_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, answered_at_ms INTEGER,
  answered_by TEXT, reason TEXT NOT NULL,
  UNIQUE (organisation_id, key_id, call_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE audit (
  seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, organisation_id TEXT, actor TEXT NOT NULL,
  action TEXT NOT NULL, target TEXT NOT NULL, details TEXT NOT NULL, prev_hash TEXT NOT NULL,
  hash TEXT NOT NULL
) STRICT;
CREATE TABLE balances (
  balance_id INTEGER PRIMARY KEY, budget_id TEXT NOT NULL, scope_id TEXT NOT NULL,
  epoch_ms INTEGER NOT NULL, ends_ms INTEGER, opening INTEGER NOT NULL,
  committed INTEGER NOT NULL, reserved INTEGER NOT NULL, overshoot INTEGER NOT NULL,
  bound INTEGER NOT NULL, level INTEGER NOT NULL, exhausted INTEGER NOT NULL,
  UNIQUE (budget_id, scope_id, epoch_ms)
) STRICT;
CREATE TABLE budgets (
  budget_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL REFERENCES organisations,
  scope_kind TEXT NOT NULL, scope_id TEXT NOT NULL, window TEXT NOT NULL,
  limit_nanousd INTEGER NOT NULL, mode TEXT NOT NULL, epsilon_nanousd INTEGER NOT NULL,
  thresholds TEXT NOT NULL, version INTEGER NOT NULL, created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  UNIQUE (organisation_id, scope_kind, scope_id, window)
) STRICT;
CREATE TABLE chains (
  organisation_id TEXT NOT NULL, chain_id TEXT NOT NULL, opened_at_ms INTEGER NOT NULL,
  expires_at_ms INTEGER NOT NULL, closed INTEGER NOT NULL,
  PRIMARY KEY (organisation_id, chain_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE control (
  organisation_id TEXT NOT NULL, seq INTEGER NOT NULL, key_id TEXT, type TEXT NOT NULL,
  message TEXT NOT NULL, PRIMARY KEY (organisation_id, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE deliveries (
  delivery_id TEXT PRIMARY KEY, webhook_id TEXT NOT NULL, organisation_id TEXT NOT NULL,
  type TEXT NOT NULL, body TEXT NOT NULL, created_at_ms INTEGER NOT NULL,
  next_attempt_ms INTEGER NOT NULL, attempts INTEGER NOT NULL, delivered_at_ms INTEGER,
  failed INTEGER NOT NULL, last_status INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE estimates (
  organisation_id TEXT NOT NULL, subject TEXT NOT NULL, count INTEGER NOT NULL,
  mean REAL NOT NULL, variance REAL NOT NULL, PRIMARY KEY (organisation_id, subject)
) STRICT, WITHOUT ROWID;
CREATE TABLE events (
  event_seq INTEGER PRIMARY KEY, organisation_id TEXT NOT NULL, event_id TEXT NOT NULL,
  type TEXT NOT NULL, at_ms INTEGER NOT NULL, received_at_ms INTEGER NOT NULL,
  charged_at_ms INTEGER NOT NULL, key_id TEXT NOT NULL, workflow_id TEXT, run_id TEXT,
  chain_id TEXT, agent TEXT, call_id TEXT, reservation_id TEXT, provider TEXT, model TEXT,
  response_id TEXT, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
  cost_nanousd INTEGER NOT NULL, price_source TEXT, flags TEXT NOT NULL,
  balance_ids TEXT NOT NULL, data TEXT NOT NULL, trace_id TEXT, span_id TEXT, parent_span_id TEXT,
  UNIQUE (organisation_id, event_id)
) STRICT;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE figures (
  organisation_id TEXT NOT NULL, size_ms INTEGER NOT NULL, bucket_ms INTEGER NOT NULL,
  workflow_id TEXT NOT NULL, model TEXT NOT NULL, cost_nanousd INTEGER NOT NULL,
  llm_calls INTEGER NOT NULL, tool_calls INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  PRIMARY KEY (organisation_id, size_ms, bucket_ms, workflow_id, model)
) STRICT, WITHOUT ROWID;
CREATE TABLE idempotency_0 (
  request TEXT PRIMARY KEY, fingerprint BLOB NOT NULL, status INTEGER NOT NULL, body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE idempotency_1 (
  request TEXT PRIMARY KEY, fingerprint BLOB NOT NULL, status INTEGER NOT NULL, body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE keys (
  key_id TEXT PRIMARY KEY, organisation_id TEXT REFERENCES organisations, role TEXT NOT NULL,
  name TEXT NOT NULL, prefix TEXT NOT NULL, key_hash BLOB NOT NULL UNIQUE, workflow_id TEXT,
  hmac_secret TEXT, created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER, revoked_at_ms INTEGER
) STRICT;
CREATE TABLE nonces (
  key_id TEXT NOT NULL, nonce TEXT NOT NULL, expires_at_ms INTEGER NOT NULL,
  PRIMARY KEY (key_id, nonce)
) STRICT, WITHOUT ROWID;
CREATE TABLE operators (
  operator_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE,
  organisation_id TEXT REFERENCES organisations, password_hash TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL, changed_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE orders (
  organisation_id TEXT NOT NULL, target TEXT NOT NULL, run_id TEXT NOT NULL, slot TEXT NOT NULL,
  message TEXT NOT NULL, PRIMARY KEY (organisation_id, target, run_id, slot)
) STRICT, WITHOUT ROWID;
CREATE TABLE organisations (
  organisation_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, created_at_ms INTEGER NOT NULL,
  settings TEXT NOT NULL, control_seq INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE policies (
  policy_id TEXT NOT NULL, version INTEGER NOT NULL, organisation_id TEXT NOT NULL,
  name TEXT NOT NULL, current INTEGER NOT NULL, record TEXT NOT NULL,
  PRIMARY KEY (policy_id, version)
) STRICT, WITHOUT ROWID;
CREATE TABLE prices (
  price_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, provider TEXT NOT NULL,
  model TEXT NOT NULL, record TEXT NOT NULL, UNIQUE (organisation_id, provider, model)
) STRICT, WITHOUT ROWID;
CREATE TABLE refusals (
  refusal_seq INTEGER PRIMARY KEY, organisation_id TEXT NOT NULL, at_ms INTEGER NOT NULL,
  workflow_id TEXT, run_id TEXT, agent TEXT, call_id TEXT NOT NULL, kind TEXT NOT NULL,
  function TEXT NOT NULL, tool_name TEXT, model TEXT, status INTEGER NOT NULL,
  error_code TEXT NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE TABLE reservations (
  reservation_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, key_id TEXT NOT NULL,
  call_id TEXT NOT NULL, balance_ids TEXT NOT NULL, amount INTEGER NOT NULL,
  held INTEGER NOT NULL, created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL,
  spent INTEGER NOT NULL, state TEXT NOT NULL, basis TEXT NOT NULL, workflow_id TEXT,
  run_id TEXT, chain_id TEXT, agent TEXT, model TEXT, function TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE runs (
  organisation_id TEXT NOT NULL, run_id TEXT NOT NULL, workflow_id TEXT,
  first_seen_ms INTEGER NOT NULL, last_seen_ms INTEGER NOT NULL, spent_nanousd INTEGER NOT NULL,
  PRIMARY KEY (organisation_id, run_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE sessions (
  token_hash BLOB PRIMARY KEY, operator_id TEXT NOT NULL REFERENCES operators,
  created_at_ms INTEGER NOT NULL, seen_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE webhooks (
  webhook_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, url TEXT NOT NULL,
  types TEXT NOT NULL, secret TEXT NOT NULL, enabled INTEGER NOT NULL,
  created_at_ms INTEGER NOT NULL, UNIQUE (organisation_id, url)
) STRICT, WITHOUT ROWID;
CREATE TABLE workflows (
  organisation_id TEXT NOT NULL, workflow_id TEXT NOT NULL, first_seen_ms INTEGER NOT NULL,
  last_seen_ms INTEGER NOT NULL, spent_nanousd INTEGER NOT NULL, calls INTEGER NOT NULL,
  events INTEGER NOT NULL, PRIMARY KEY (organisation_id, workflow_id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX events_response ON events (organisation_id, provider, response_id)
  WHERE response_id IS NOT NULL;
CREATE INDEX events_cost ON events (organisation_id, charged_at_ms) WHERE cost_nanousd > 0;
CREATE INDEX events_workflow ON events (organisation_id, workflow_id, event_seq);
CREATE INDEX nonces_expiry ON nonces (expires_at_ms);
CREATE INDEX runs_workflow ON runs (organisation_id, workflow_id);
CREATE INDEX approvals_pending ON approvals (deadline_ms) WHERE status = 'pending';
CREATE UNIQUE INDEX policies_name ON policies (organisation_id, name) WHERE current = 1;
CREATE INDEX deliveries_due ON deliveries (next_attempt_ms)
  WHERE delivered_at_ms IS NULL AND failed = 0;
CREATE INDEX events_organisation ON events (organisation_id, event_seq);
CREATE INDEX refusals_organisation ON refusals (organisation_id, refusal_seq);
CREATE INDEX refusals_workflow ON refusals (organisation_id, workflow_id, refusal_seq);
CREATE INDEX sessions_expiry ON sessions (expires_at_ms);
CREATE INDEX audit_organisation ON audit (organisation_id, seq);
CREATE INDEX approvals_organisation ON approvals (organisation_id, status, approval_id);
