-- The tables that both engines have, in SQLite's words. The PostgreSQL store translates the types
-- and adds tables and indexes of its own (postgres/schema.py). Until 1.0 a change of the schema
-- edits this file, the version in sqlite/schema.py and postgres/schema.py, and what converts files
-- of release 0.7 (sqlite/release_0_7.py); there are no steps between unreleased versions.
-- Columns with a default are those that release 0.7 did not have.

CREATE TABLE organisations (
  organisation_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, created_at_ms INTEGER NOT NULL,
  settings TEXT NOT NULL, control_seq INTEGER NOT NULL DEFAULT 0, removed_ms INTEGER
) STRICT;

CREATE TABLE keys (
  key_id TEXT PRIMARY KEY, organisation_id TEXT REFERENCES organisations, role TEXT NOT NULL,
  name TEXT NOT NULL, workflow_id TEXT, created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER,
  revoked_at_ms INTEGER, team TEXT NOT NULL DEFAULT '',
  person TEXT NOT NULL DEFAULT '', purpose TEXT NOT NULL DEFAULT '',
  may_name TEXT NOT NULL DEFAULT '[]', shows_cost INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE secrets (
  key_hash BLOB PRIMARY KEY, key_id TEXT NOT NULL REFERENCES keys, prefix TEXT NOT NULL,
  hmac_secret TEXT, made_ms INTEGER NOT NULL, ends_ms INTEGER, used_ms INTEGER, login_id TEXT,
  works_until_ms INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX secrets_key ON secrets (key_id);
CREATE INDEX secrets_login ON secrets (login_id, ends_ms) WHERE login_id IS NOT NULL;
CREATE INDEX secrets_prefix ON secrets (prefix);

CREATE TABLE key_aliases (
  alias_id TEXT PRIMARY KEY, key_id TEXT NOT NULL REFERENCES keys
) STRICT, WITHOUT ROWID;

CREATE TABLE nonces (
  key_id TEXT NOT NULL, nonce TEXT NOT NULL, expires_at_ms INTEGER NOT NULL,
  PRIMARY KEY (key_id, nonce)
) STRICT, WITHOUT ROWID;
CREATE INDEX nonces_expiry ON nonces (expires_at_ms);

CREATE TABLE operators (
  operator_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE,
  organisation_id TEXT REFERENCES organisations, password_hash TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL, changed_at_ms INTEGER NOT NULL,
  operator_role TEXT NOT NULL DEFAULT 'owner'
) STRICT, WITHOUT ROWID;

CREATE TABLE sign_ons (
  issuer TEXT NOT NULL, subject TEXT NOT NULL, operator_id TEXT NOT NULL, name TEXT NOT NULL,
  by_groups INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (issuer, subject)
) STRICT, WITHOUT ROWID;

CREATE TABLE login_codes (
  device_hash BLOB PRIMARY KEY, user_code TEXT NOT NULL UNIQUE, asked_from TEXT NOT NULL,
  code_ends_ms INTEGER NOT NULL, record TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX login_codes_ends ON login_codes (code_ends_ms);

CREATE TABLE login_accounts (
  issuer TEXT NOT NULL, subject TEXT NOT NULL,
  organisation_id TEXT NOT NULL REFERENCES organisations, team TEXT NOT NULL,
  key_id TEXT NOT NULL REFERENCES keys,
  PRIMARY KEY (issuer, subject, organisation_id, team)
) STRICT, WITHOUT ROWID;
CREATE INDEX login_accounts_key ON login_accounts (key_id);

CREATE TABLE logins (
  login_id TEXT PRIMARY KEY, login_ends_ms INTEGER NOT NULL, record TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX logins_ends ON logins (login_ends_ms);

CREATE TABLE sessions (
  token_hash BLOB PRIMARY KEY, operator_id TEXT NOT NULL REFERENCES operators,
  created_at_ms INTEGER NOT NULL, seen_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL,
  signed_in_by TEXT NOT NULL DEFAULT 'password', signed_in_from TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_expiry ON sessions (expires_at_ms);

CREATE TABLE audit (
  seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, organisation_id TEXT, actor TEXT NOT NULL,
  action TEXT NOT NULL, target TEXT NOT NULL, details TEXT NOT NULL, prev_hash TEXT NOT NULL,
  hash TEXT NOT NULL
) STRICT;
CREATE INDEX audit_organisation ON audit (organisation_id, seq);

CREATE TABLE facts (
  name TEXT PRIMARY KEY, value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE budgets (
  budget_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL REFERENCES organisations,
  scope_kind TEXT NOT NULL, scope_id TEXT NOT NULL, "window" TEXT NOT NULL,
  limit_amount INTEGER NOT NULL, mode TEXT NOT NULL, epsilon_nanousd INTEGER NOT NULL,
  thresholds TEXT NOT NULL, version INTEGER NOT NULL, created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL, unit TEXT NOT NULL DEFAULT 'usd',
  counts TEXT NOT NULL DEFAULT '[]', on_exhausted TEXT NOT NULL DEFAULT 'refuse',
  ask_ms INTEGER NOT NULL DEFAULT 300000, wind_down_percent INTEGER NOT NULL DEFAULT 0,
  zone TEXT NOT NULL DEFAULT '',
  UNIQUE (organisation_id, scope_kind, scope_id, "window", unit, counts)
) STRICT;
CREATE INDEX budgets_metered ON budgets (organisation_id) WHERE unit <> 'usd';
CREATE INDEX budgets_several ON budgets (organisation_id)
  WHERE instr(scope_id, '*') > 0 OR instr(scope_id, char(63)) > 0;

CREATE TABLE balances (
  balance_id INTEGER PRIMARY KEY, budget_id TEXT NOT NULL, scope_id TEXT NOT NULL,
  period_start_ms INTEGER NOT NULL, ends_ms INTEGER, opening INTEGER NOT NULL,
  committed INTEGER NOT NULL, reserved INTEGER NOT NULL, overspend INTEGER NOT NULL,
  authorized_max INTEGER NOT NULL, level INTEGER NOT NULL, exhausted INTEGER NOT NULL,
  leases INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0,
  zone TEXT NOT NULL DEFAULT 'UTC',
  UNIQUE (budget_id, scope_id, period_start_ms)
) STRICT;

CREATE TABLE budget_raises (
  organisation_id TEXT NOT NULL, raise_key TEXT NOT NULL, budget_id TEXT NOT NULL,
  by_amount INTEGER NOT NULL, raised_to INTEGER NOT NULL, raised_at_ms INTEGER NOT NULL,
  raised_by TEXT NOT NULL, raised_unit TEXT NOT NULL DEFAULT 'usd',
  PRIMARY KEY (organisation_id, raise_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX budget_raises_newest ON budget_raises (organisation_id, budget_id, raised_at_ms);

CREATE TABLE budget_asks (
  balance_id INTEGER NOT NULL, asking_call TEXT NOT NULL, organisation_id TEXT NOT NULL,
  ask_seen_ms INTEGER NOT NULL, ask TEXT NOT NULL,
  PRIMARY KEY (balance_id, asking_call)
) STRICT, WITHOUT ROWID;
CREATE INDEX budget_asks_organisation ON budget_asks (organisation_id, asking_call);
CREATE INDEX budget_asks_seen ON budget_asks (ask_seen_ms);

CREATE TABLE wind_downs (
  balance_id INTEGER NOT NULL, winding_run TEXT NOT NULL, begun_ms INTEGER NOT NULL,
  last_call TEXT NOT NULL,
  PRIMARY KEY (balance_id, winding_run)
) STRICT, WITHOUT ROWID;
CREATE INDEX wind_downs_begun ON wind_downs (begun_ms);

CREATE TABLE reservations (
  reservation_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, key_id TEXT NOT NULL,
  call_id TEXT NOT NULL, balance_ids TEXT NOT NULL, amount INTEGER NOT NULL,
  held INTEGER NOT NULL, created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL,
  spent INTEGER NOT NULL, state TEXT NOT NULL, basis TEXT NOT NULL, workflow_id TEXT,
  run_id TEXT, chain_id TEXT, agent TEXT, model TEXT, function TEXT NOT NULL, user_id TEXT,
  renewed INTEGER NOT NULL DEFAULT 0, under_way INTEGER NOT NULL DEFAULT 0,
  closing INTEGER NOT NULL DEFAULT 0, metered TEXT,
  calls INTEGER NOT NULL DEFAULT 0, buckets TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX reservations_chain ON reservations (organisation_id, chain_id)
  WHERE chain_id IS NOT NULL;

CREATE TABLE chains (
  organisation_id TEXT NOT NULL, chain_id TEXT NOT NULL, opened_at_ms INTEGER NOT NULL,
  expires_at_ms INTEGER NOT NULL, closed INTEGER NOT NULL, workflow_id TEXT,
  PRIMARY KEY (organisation_id, chain_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE rate_windows (
  organisation_id TEXT NOT NULL, bucket TEXT NOT NULL, per_ms INTEGER NOT NULL,
  ends_ms INTEGER NOT NULL, lent INTEGER NOT NULL, loans INTEGER NOT NULL, times TEXT,
  PRIMARY KEY (organisation_id, bucket)
) STRICT, WITHOUT ROWID;
CREATE TABLE estimates (
  organisation_id TEXT NOT NULL, subject TEXT NOT NULL, count INTEGER NOT NULL,
  mean REAL NOT NULL, variance REAL NOT NULL, model TEXT, model_at_ms INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (organisation_id, subject)
) STRICT, WITHOUT ROWID;

CREATE TABLE repeats (
  organisation_id TEXT NOT NULL, run_id TEXT NOT NULL, loop_kind TEXT NOT NULL,
  digest TEXT NOT NULL, subject TEXT NOT NULL, workflow_id TEXT, agent TEXT,
  key_id TEXT NOT NULL, allowed INTEGER NOT NULL, seen INTEGER NOT NULL,
  began_ms INTEGER NOT NULL, counted_ms INTEGER NOT NULL, began_seq INTEGER NOT NULL,
  noticed_ms INTEGER, loop_action TEXT NOT NULL,
  PRIMARY KEY (organisation_id, run_id, loop_kind, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX repeats_newest ON repeats (organisation_id, counted_ms);
CREATE INDEX repeats_unnoticed ON repeats (counted_ms) WHERE noticed_ms IS NULL;
CREATE INDEX repeats_noticed ON repeats (counted_ms) WHERE noticed_ms IS NOT NULL;

CREATE TABLE later_work (
  organisation_id TEXT NOT NULL, provider TEXT NOT NULL, work_id TEXT NOT NULL,
  charged_as TEXT, key_id TEXT NOT NULL, reservation_id TEXT, workflow_id TEXT, run_id TEXT,
  chain_id TEXT, agent TEXT, user_id TEXT, call_id TEXT, tags TEXT NOT NULL,
  begun_ms INTEGER NOT NULL,
  PRIMARY KEY (organisation_id, provider, work_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX later_work_begun ON later_work (begun_ms);

CREATE TABLE policies (
  policy_id TEXT NOT NULL, version INTEGER NOT NULL, organisation_id TEXT NOT NULL,
  name TEXT NOT NULL, current INTEGER NOT NULL, record TEXT NOT NULL,
  PRIMARY KEY (policy_id, version)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX policies_name ON policies (organisation_id, name) WHERE current = 1;

CREATE TABLE prices (
  price_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, provider TEXT NOT NULL,
  model TEXT NOT NULL, record TEXT NOT NULL,
  UNIQUE (organisation_id, provider, model)
) STRICT, WITHOUT ROWID;

CREATE TABLE own_facts (
  organisation_id TEXT PRIMARY KEY, record TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE control (
  organisation_id TEXT NOT NULL, seq INTEGER NOT NULL, key_id TEXT, type TEXT NOT NULL,
  message TEXT NOT NULL,
  PRIMARY KEY (organisation_id, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE directives (
  organisation_id TEXT NOT NULL, target TEXT NOT NULL, run_id TEXT NOT NULL, slot TEXT NOT NULL,
  message TEXT NOT NULL, key_id TEXT, at_ms INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (organisation_id, target, run_id, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX directives_runs ON directives (organisation_id, at_ms) WHERE run_id <> '';

CREATE TABLE approvals (
  approval_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, key_id TEXT NOT NULL,
  call_id TEXT NOT NULL, subject TEXT NOT NULL, status TEXT NOT NULL, tool_name TEXT,
  function TEXT NOT NULL, workflow_id TEXT, run_id TEXT, agent TEXT,
  requested_at_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, answered_at_ms INTEGER,
  answered_by TEXT, reason TEXT NOT NULL, note TEXT NOT NULL DEFAULT '{}',
  present_until_ms INTEGER, user_id TEXT, arguments_digest TEXT,
  UNIQUE (organisation_id, key_id, call_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX approvals_pending ON approvals (deadline_ms) WHERE status = 'pending';
CREATE INDEX approvals_organisation ON approvals (organisation_id, status, approval_id);
CREATE INDEX approvals_newest ON approvals (organisation_id, approval_id);
CREATE INDEX approvals_present ON approvals (present_until_ms) WHERE status = 'pending';

CREATE TABLE events (
  event_seq INTEGER PRIMARY KEY, organisation_id TEXT NOT NULL, event_id TEXT NOT NULL,
  type TEXT NOT NULL, at_ms INTEGER NOT NULL, received_at_ms INTEGER NOT NULL,
  charged_at_ms INTEGER NOT NULL, key_id TEXT NOT NULL, workflow_id TEXT, run_id TEXT,
  chain_id TEXT, agent TEXT, call_id TEXT, reservation_id TEXT, provider TEXT, model TEXT,
  response_id TEXT, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
  cost_nanousd INTEGER NOT NULL, price_source TEXT, flags TEXT NOT NULL,
  balance_ids TEXT NOT NULL, data TEXT NOT NULL, trace_id TEXT, span_id TEXT,
  parent_span_id TEXT, request_id TEXT, user_id TEXT, tags TEXT,
  UNIQUE (organisation_id, event_id)
) STRICT;
CREATE INDEX events_workflow ON events (organisation_id, workflow_id, event_seq);
CREATE INDEX events_organisation ON events (organisation_id, event_seq);
CREATE INDEX events_chain ON events (organisation_id, chain_id) WHERE chain_id IS NOT NULL;
CREATE INDEX events_charged ON events (organisation_id, charged_at_ms);
CREATE INDEX events_type ON events (organisation_id, type, event_seq)
  WHERE type NOT IN ('llm', 'span');
CREATE INDEX events_response ON events (organisation_id, provider, response_id, request_id)
  WHERE response_id IS NOT NULL;
CREATE INDEX events_flagged ON events (organisation_id, event_seq) WHERE flags <> '';
CREATE INDEX events_call ON events (organisation_id, call_id, event_seq)
  WHERE call_id IS NOT NULL;
CREATE INDEX events_user ON events (organisation_id, user_id, event_seq)
  WHERE user_id IS NOT NULL;

CREATE TABLE refusals (
  refusal_seq INTEGER PRIMARY KEY, organisation_id TEXT NOT NULL, at_ms INTEGER NOT NULL,
  workflow_id TEXT, run_id TEXT, agent TEXT, call_id TEXT NOT NULL, kind TEXT NOT NULL,
  function TEXT NOT NULL, tool_name TEXT, model TEXT, status INTEGER NOT NULL,
  error_code TEXT NOT NULL, reason TEXT NOT NULL, user_id TEXT,
  refused_by TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX refusals_organisation ON refusals (organisation_id, refusal_seq);
CREATE INDEX refusals_workflow ON refusals (organisation_id, workflow_id, refusal_seq);
CREATE INDEX refusals_call ON refusals (organisation_id, call_id);

CREATE TABLE idempotency_0 (
  request TEXT PRIMARY KEY, fingerprint BLOB NOT NULL, status INTEGER NOT NULL,
  body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency_1 (
  request TEXT PRIMARY KEY, fingerprint BLOB NOT NULL, status INTEGER NOT NULL,
  body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE usage (
  organisation_id TEXT NOT NULL, scope_kind TEXT NOT NULL, size_ms INTEGER NOT NULL,
  start_ms INTEGER NOT NULL, scope_id TEXT NOT NULL, model TEXT NOT NULL, provider TEXT NOT NULL,
  type TEXT NOT NULL, cost_nanousd INTEGER NOT NULL, events INTEGER NOT NULL,
  llm_calls INTEGER NOT NULL, tool_calls INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL, unpriced INTEGER NOT NULL, doubt_nanousd INTEGER NOT NULL,
  doubt_tokens INTEGER NOT NULL, calls INTEGER NOT NULL, first_ms INTEGER, last_ms INTEGER,
  owner TEXT,
  PRIMARY KEY (organisation_id, scope_kind, size_ms, start_ms, scope_id, model, provider, type)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_owner ON usage (organisation_id, owner, scope_id) WHERE owner IS NOT NULL;
CREATE INDEX usage_doubt ON usage (organisation_id, scope_kind, scope_id, size_ms, start_ms)
  WHERE doubt_nanousd <> 0 OR doubt_tokens <> 0;

CREATE TABLE webhooks (
  webhook_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, url TEXT NOT NULL,
  types TEXT NOT NULL, secret TEXT NOT NULL, enabled INTEGER NOT NULL,
  created_at_ms INTEGER NOT NULL, channel_kind TEXT NOT NULL DEFAULT 'webhook',
  channel_options TEXT NOT NULL DEFAULT '{}',
  UNIQUE (organisation_id, url)
) STRICT, WITHOUT ROWID;

CREATE TABLE deliveries (
  delivery_id TEXT PRIMARY KEY, webhook_id TEXT NOT NULL, organisation_id TEXT NOT NULL,
  type TEXT NOT NULL, body TEXT NOT NULL, created_at_ms INTEGER NOT NULL,
  next_attempt_ms INTEGER NOT NULL, attempts INTEGER NOT NULL, delivered_at_ms INTEGER,
  failed INTEGER NOT NULL, last_status INTEGER, delivery_error TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;
CREATE INDEX deliveries_due ON deliveries (next_attempt_ms)
  WHERE delivered_at_ms IS NULL AND failed = 0;
CREATE INDEX deliveries_newest ON deliveries (organisation_id, delivery_id);
CREATE INDEX deliveries_waiting ON deliveries (organisation_id, next_attempt_ms)
  WHERE delivered_at_ms IS NULL AND failed = 0;
CREATE INDEX deliveries_webhook ON deliveries (webhook_id)
  WHERE delivered_at_ms IS NULL AND failed = 0;

CREATE TABLE channel_pace (
  channel_id TEXT PRIMARY KEY, pace_from_ms INTEGER NOT NULL, pace_told INTEGER NOT NULL,
  digest_id TEXT NOT NULL, digest_due_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE alert_rules (
  organisation_id TEXT NOT NULL, alert_name TEXT NOT NULL, alert_rule TEXT NOT NULL,
  PRIMARY KEY (organisation_id, alert_name)
) STRICT, WITHOUT ROWID;

CREATE TABLE sent_alerts (
  organisation_id TEXT NOT NULL, fact TEXT NOT NULL, told_ms INTEGER NOT NULL,
  PRIMARY KEY (organisation_id, fact)
) STRICT, WITHOUT ROWID;
CREATE INDEX sent_alerts_told ON sent_alerts (told_ms);
