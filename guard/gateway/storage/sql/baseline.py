"""The first schema: the tables that both engines have, written once.

What the engines call differently stands in braces. An engine's own tables and indexes, and every
later change, are in its ``schema`` module. The order of columns is a part of it: rows are inserted
by position.
"""

from __future__ import annotations

from typing import Final

TABLES: Final = """
CREATE TABLE organisations (
  organisation_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, created_at_ms {int} NOT NULL,
  settings TEXT NOT NULL, control_seq {int} NOT NULL DEFAULT 0
) {strict};
CREATE TABLE keys (
  key_id TEXT PRIMARY KEY, organisation_id TEXT REFERENCES organisations, role TEXT NOT NULL,
  name TEXT NOT NULL, prefix TEXT NOT NULL, key_hash {bytes} NOT NULL UNIQUE, workflow_id TEXT,
  hmac_secret TEXT, created_at_ms {int} NOT NULL, expires_at_ms {int}, revoked_at_ms {int}
) {strict};
CREATE TABLE budgets (
  budget_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL REFERENCES organisations,
  scope_kind TEXT NOT NULL, scope_id TEXT NOT NULL, "window" TEXT NOT NULL,
  limit_nanousd {int} NOT NULL, mode TEXT NOT NULL, epsilon_nanousd {int} NOT NULL,
  thresholds TEXT NOT NULL, version {int} NOT NULL, created_at_ms {int} NOT NULL,
  updated_at_ms {int} NOT NULL,
  UNIQUE (organisation_id, scope_kind, scope_id, "window")
) {strict};
CREATE TABLE balances (
  balance_id {numbered}, budget_id TEXT NOT NULL, scope_id TEXT NOT NULL,
  period_start_ms {int} NOT NULL, ends_ms {int}, opening {int} NOT NULL,
  committed {int} NOT NULL, reserved {int} NOT NULL, overspend {int} NOT NULL,
  authorized_max {int} NOT NULL, level {int} NOT NULL, exhausted {int} NOT NULL,
  leases {int} NOT NULL DEFAULT 0,
  UNIQUE (budget_id, scope_id, period_start_ms)
) {strict};
CREATE TABLE reservations (
  reservation_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, key_id TEXT NOT NULL,
  call_id TEXT NOT NULL, balance_ids TEXT NOT NULL, amount {int} NOT NULL,
  held {int} NOT NULL, created_at_ms {int} NOT NULL, expires_at_ms {int} NOT NULL,
  spent {int} NOT NULL, state TEXT NOT NULL, basis TEXT NOT NULL, workflow_id TEXT,
  run_id TEXT, chain_id TEXT, agent TEXT, model TEXT, function TEXT NOT NULL, user_id TEXT
) {keyed};
CREATE TABLE events (
  event_seq {numbered}, organisation_id TEXT NOT NULL, event_id TEXT NOT NULL,
  type TEXT NOT NULL, at_ms {int} NOT NULL, received_at_ms {int} NOT NULL,
  charged_at_ms {int} NOT NULL, key_id TEXT NOT NULL, workflow_id TEXT, run_id TEXT,
  chain_id TEXT, agent TEXT, call_id TEXT, reservation_id TEXT, provider TEXT, model TEXT,
  response_id TEXT, input_tokens {int} NOT NULL, output_tokens {int} NOT NULL,
  cost_nanousd {int} NOT NULL, price_source TEXT, flags TEXT NOT NULL,
  balance_ids TEXT NOT NULL, data TEXT NOT NULL, trace_id TEXT, span_id TEXT,
  parent_span_id TEXT, request_id TEXT, user_id TEXT, tags TEXT,
  UNIQUE (organisation_id, event_id)
) {strict};
CREATE INDEX events_workflow ON events (organisation_id, workflow_id, event_seq);
CREATE TABLE idempotency_0 (
  request TEXT PRIMARY KEY, fingerprint {bytes} NOT NULL, status {int} NOT NULL,
  body {bytes} NOT NULL
) {keyed};
CREATE TABLE idempotency_1 (
  request TEXT PRIMARY KEY, fingerprint {bytes} NOT NULL, status {int} NOT NULL,
  body {bytes} NOT NULL
) {keyed};
CREATE TABLE nonces (
  key_id TEXT NOT NULL, nonce TEXT NOT NULL, expires_at_ms {int} NOT NULL,
  PRIMARY KEY (key_id, nonce)
) {keyed};
CREATE INDEX nonces_expiry ON nonces (expires_at_ms);
CREATE TABLE control (
  organisation_id TEXT NOT NULL, seq {int} NOT NULL, key_id TEXT, type TEXT NOT NULL,
  message TEXT NOT NULL, PRIMARY KEY (organisation_id, seq)
) {keyed};
CREATE TABLE directives (
  organisation_id TEXT NOT NULL, target TEXT NOT NULL, run_id TEXT NOT NULL, slot TEXT NOT NULL,
  message TEXT NOT NULL, key_id TEXT, at_ms {int} NOT NULL DEFAULT 0,
  PRIMARY KEY (organisation_id, target, run_id, slot)
) {keyed};
CREATE TABLE workflows (
  organisation_id TEXT NOT NULL, workflow_id TEXT NOT NULL, first_seen_ms {int} NOT NULL,
  last_seen_ms {int} NOT NULL, spent_nanousd {int} NOT NULL, calls {int} NOT NULL,
  events {int} NOT NULL, PRIMARY KEY (organisation_id, workflow_id)
) {keyed};
CREATE TABLE runs (
  organisation_id TEXT NOT NULL, run_id TEXT NOT NULL, workflow_id TEXT,
  first_seen_ms {int} NOT NULL, last_seen_ms {int} NOT NULL, spent_nanousd {int} NOT NULL,
  PRIMARY KEY (organisation_id, run_id)
) {keyed};
CREATE INDEX runs_workflow ON runs (organisation_id, workflow_id);
CREATE TABLE chains (
  organisation_id TEXT NOT NULL, chain_id TEXT NOT NULL, opened_at_ms {int} NOT NULL,
  expires_at_ms {int} NOT NULL, closed {int} NOT NULL,
  PRIMARY KEY (organisation_id, chain_id)
) {keyed};
CREATE TABLE estimates (
  organisation_id TEXT NOT NULL, subject TEXT NOT NULL, count {int} NOT NULL,
  mean {real} NOT NULL, variance {real} NOT NULL, model TEXT,
  model_at_ms {int} NOT NULL DEFAULT 0, PRIMARY KEY (organisation_id, subject)
) {keyed};
CREATE TABLE approvals (
  approval_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, key_id TEXT NOT NULL,
  call_id TEXT NOT NULL, subject TEXT NOT NULL, status TEXT NOT NULL, tool_name TEXT,
  function TEXT NOT NULL, workflow_id TEXT, run_id TEXT, agent TEXT,
  requested_at_ms {int} NOT NULL, deadline_ms {int} NOT NULL, answered_at_ms {int},
  answered_by TEXT, reason TEXT NOT NULL, note TEXT NOT NULL DEFAULT '{{}}',
  present_until_ms {int}, user_id TEXT,
  UNIQUE (organisation_id, key_id, call_id)
) {keyed};
CREATE INDEX approvals_pending ON approvals (deadline_ms) WHERE status = 'pending';
CREATE TABLE policies (
  policy_id TEXT NOT NULL, version {int} NOT NULL, organisation_id TEXT NOT NULL,
  name TEXT NOT NULL, current {int} NOT NULL, record TEXT NOT NULL,
  PRIMARY KEY (policy_id, version)
) {keyed};
CREATE UNIQUE INDEX policies_name ON policies (organisation_id, name) WHERE current = 1;
CREATE TABLE prices (
  price_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, provider TEXT NOT NULL,
  model TEXT NOT NULL, record TEXT NOT NULL, UNIQUE (organisation_id, provider, model)
) {keyed};
CREATE TABLE webhooks (
  webhook_id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL, url TEXT NOT NULL,
  types TEXT NOT NULL, secret TEXT NOT NULL, enabled {int} NOT NULL,
  created_at_ms {int} NOT NULL, UNIQUE (organisation_id, url)
) {keyed};
CREATE TABLE deliveries (
  delivery_id TEXT PRIMARY KEY, webhook_id TEXT NOT NULL, organisation_id TEXT NOT NULL,
  type TEXT NOT NULL, body TEXT NOT NULL, created_at_ms {int} NOT NULL,
  next_attempt_ms {int} NOT NULL, attempts {int} NOT NULL, delivered_at_ms {int},
  failed {int} NOT NULL, last_status {int}
) {keyed};
CREATE INDEX deliveries_due ON deliveries (next_attempt_ms)
  WHERE delivered_at_ms IS NULL AND failed = 0;
CREATE TABLE audit (
  seq {int} PRIMARY KEY, at_ms {int} NOT NULL, organisation_id TEXT, actor TEXT NOT NULL,
  action TEXT NOT NULL, target TEXT NOT NULL, details TEXT NOT NULL, prev_hash TEXT NOT NULL,
  hash TEXT NOT NULL
) {strict};
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) {keyed};
CREATE INDEX events_organisation ON events (organisation_id, event_seq);
CREATE TABLE refusals (
  refusal_seq {numbered}, organisation_id TEXT NOT NULL, at_ms {int} NOT NULL,
  workflow_id TEXT, run_id TEXT, agent TEXT, call_id TEXT NOT NULL, kind TEXT NOT NULL,
  function TEXT NOT NULL, tool_name TEXT, model TEXT, status {int} NOT NULL,
  error_code TEXT NOT NULL, reason TEXT NOT NULL, user_id TEXT
) {strict};
CREATE INDEX refusals_organisation ON refusals (organisation_id, refusal_seq);
CREATE INDEX refusals_workflow ON refusals (organisation_id, workflow_id, refusal_seq);
CREATE TABLE usage_rollups (
  organisation_id TEXT NOT NULL, size_ms {int} NOT NULL, bucket_ms {int} NOT NULL,
  workflow_id TEXT NOT NULL, model TEXT NOT NULL, cost_nanousd {int} NOT NULL,
  llm_calls {int} NOT NULL, tool_calls {int} NOT NULL, input_tokens {int} NOT NULL,
  output_tokens {int} NOT NULL,
  PRIMARY KEY (organisation_id, size_ms, bucket_ms, workflow_id, model)
) {keyed};
CREATE TABLE operators (
  operator_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE,
  organisation_id TEXT REFERENCES organisations, password_hash TEXT NOT NULL,
  created_at_ms {int} NOT NULL, changed_at_ms {int} NOT NULL
) {keyed};
CREATE TABLE sessions (
  token_hash {bytes} PRIMARY KEY, operator_id TEXT NOT NULL REFERENCES operators,
  created_at_ms {int} NOT NULL, seen_at_ms {int} NOT NULL, expires_at_ms {int} NOT NULL
) {keyed};
CREATE INDEX sessions_expiry ON sessions (expires_at_ms);
CREATE INDEX audit_organisation ON audit (organisation_id, seq);
CREATE INDEX approvals_organisation ON approvals (organisation_id, status, approval_id);
CREATE INDEX events_chain ON events (organisation_id, chain_id) WHERE chain_id IS NOT NULL;
CREATE INDEX reservations_chain ON reservations (organisation_id, chain_id)
  WHERE chain_id IS NOT NULL;
CREATE TABLE scope_totals (
  organisation_id TEXT NOT NULL, scope_kind TEXT NOT NULL, scope_id TEXT NOT NULL,
  cost_nanousd {int} NOT NULL,
  hour_ms {int} NOT NULL, hour_nanousd {int} NOT NULL,
  day_ms {int} NOT NULL, day_nanousd {int} NOT NULL,
  month_ms {int} NOT NULL, month_nanousd {int} NOT NULL,
  events {int} NOT NULL, llm_calls {int} NOT NULL, tool_calls {int} NOT NULL,
  input_tokens {int} NOT NULL, output_tokens {int} NOT NULL, unpriced {int} NOT NULL,
  PRIMARY KEY (organisation_id, scope_kind, scope_id)
) {keyed};
CREATE TABLE organisation_rollups (
  organisation_id TEXT NOT NULL, size_ms {int} NOT NULL, bucket_ms {int} NOT NULL,
  type TEXT NOT NULL, provider TEXT NOT NULL, model TEXT NOT NULL, events {int} NOT NULL,
  cost_nanousd {int} NOT NULL, input_tokens {int} NOT NULL, output_tokens {int} NOT NULL,
  unpriced {int} NOT NULL,
  PRIMARY KEY (organisation_id, size_ms, bucket_ms, type, provider, model)
) {keyed};
CREATE INDEX events_charged ON events (organisation_id, charged_at_ms);
CREATE INDEX events_type ON events (organisation_id, type, event_seq)
  WHERE type NOT IN ('llm', 'span');
CREATE INDEX approvals_newest ON approvals (organisation_id, approval_id);
CREATE INDEX deliveries_newest ON deliveries (organisation_id, delivery_id);
CREATE INDEX directives_runs ON directives (organisation_id, at_ms) WHERE run_id <> '';
CREATE INDEX events_response ON events (organisation_id, provider, response_id, request_id)
  WHERE response_id IS NOT NULL;
CREATE TABLE scope_days (
  organisation_id TEXT NOT NULL, scope_kind TEXT NOT NULL, scope_id TEXT NOT NULL,
  day_ms {int} NOT NULL, cost_nanousd {int} NOT NULL, events {int} NOT NULL,
  llm_calls {int} NOT NULL, tool_calls {int} NOT NULL, input_tokens {int} NOT NULL,
  output_tokens {int} NOT NULL, unpriced {int} NOT NULL,
  PRIMARY KEY (organisation_id, scope_kind, scope_id, day_ms)
) {keyed};
CREATE INDEX approvals_present ON approvals (present_until_ms) WHERE status = 'pending';
INSERT INTO facts VALUES ('summed_event_seq', '0');
"""
"""``int``, ``bytes`` and ``real`` are types; ``numbered`` is a key that the database counts up;
``keyed`` ends a table that SQLite stores by its key, ``strict`` any other."""

UNCERTAIN_HOURS: Final = """
CREATE TABLE uncertain_hours (
  organisation_id TEXT NOT NULL, scope_kind TEXT NOT NULL, scope_id TEXT NOT NULL,
  hour_ms {int} NOT NULL, cost_nanousd {int} NOT NULL,
  PRIMARY KEY (organisation_id, scope_kind, scope_id, hour_ms)
) {keyed};
"""
"""A later step: charges in doubt, by scope and hour."""

RENEWALS: Final = """
ALTER TABLE reservations ADD COLUMN renewed {int} NOT NULL DEFAULT 0;
ALTER TABLE reservations ADD COLUMN under_way {int} NOT NULL DEFAULT 0;
"""
"""A later step: whether a holder renews a reservation, and what only it knows to be under way."""

OWNERS: Final = """
ALTER TABLE reservations ADD COLUMN closing {int} NOT NULL DEFAULT 0;
ALTER TABLE chains ADD COLUMN workflow_id TEXT;
"""
"""A later step: whether the holder has closed a lease, and in which workflow a chain was opened."""

REFUSED: Final = """
ALTER TABLE balances ADD COLUMN refused_nanousd {int} NOT NULL DEFAULT 0;
"""
"""A later step: the least that was refused for want of a balance, while that does not fit."""

SCOPE_HOURS: Final = """
CREATE TABLE scope_hours (
  organisation_id TEXT NOT NULL, scope_kind TEXT NOT NULL, hour_ms {int} NOT NULL,
  scope_id TEXT NOT NULL, cost_nanousd {int} NOT NULL, events {int} NOT NULL,
  llm_calls {int} NOT NULL, tool_calls {int} NOT NULL, input_tokens {int} NOT NULL,
  output_tokens {int} NOT NULL, unpriced {int} NOT NULL,
  PRIMARY KEY (organisation_id, scope_kind, hour_ms, scope_id)
) {keyed};
INSERT INTO facts VALUES ('summed_hours_seq', '0');
"""
"""A later step: usage of each scope by hour; the events that are there are summed by the sweep."""

METERED: Final = """
ALTER TABLE reservations ADD COLUMN metered TEXT;
"""
"""A later step: what reservations hold of budgets of tokens and calls."""
RAISES: Final = """
ALTER TABLE budgets ADD COLUMN on_exhausted TEXT NOT NULL DEFAULT 'refuse';
ALTER TABLE budgets ADD COLUMN ask_ms {int} NOT NULL DEFAULT 300000;
CREATE TABLE budget_raises (
  organisation_id TEXT NOT NULL, raise_key TEXT NOT NULL, budget_id TEXT NOT NULL,
  by_nanousd {int} NOT NULL, raised_to_nanousd {int} NOT NULL, raised_at_ms {int} NOT NULL,
  raised_by TEXT NOT NULL, PRIMARY KEY (organisation_id, raise_key)
) {keyed};
CREATE INDEX budget_raises_newest ON budget_raises (organisation_id, budget_id, raised_at_ms);
CREATE TABLE budget_asks (
  balance_id {int} NOT NULL, asking_call TEXT NOT NULL, organisation_id TEXT NOT NULL,
  ask_seen_ms {int} NOT NULL, ask TEXT NOT NULL, PRIMARY KEY (balance_id, asking_call)
) {keyed};
CREATE INDEX budget_asks_organisation ON budget_asks (organisation_id, asking_call);
CREATE INDEX budget_asks_seen ON budget_asks (ask_seen_ms);
"""
"""A later step: budgets that ask before they refuse, the calls that ask, and the raises."""

WIND_DOWNS: Final = """
ALTER TABLE budgets ADD COLUMN wind_down_percent {int} NOT NULL DEFAULT 0;
CREATE TABLE wind_downs (
  balance_id {int} NOT NULL, winding_run TEXT NOT NULL, begun_ms {int} NOT NULL,
  last_call TEXT NOT NULL, PRIMARY KEY (balance_id, winding_run)
) {keyed};
CREATE INDEX wind_downs_begun ON wind_downs (begun_ms);
"""
"""A later step: shares that are kept for winding down, and the runs that do."""

RAISED_UNITS: Final = """
ALTER TABLE budget_raises ADD COLUMN raised_unit TEXT NOT NULL DEFAULT 'usd';
"""
"""A later step: what a raised budget counts; that of a run is gone when its raises are listed."""

PEOPLE: Final = """
ALTER TABLE organisations ADD COLUMN removed_ms {int};
ALTER TABLE operators ADD COLUMN operator_role TEXT NOT NULL DEFAULT 'owner';
ALTER TABLE sessions ADD COLUMN signed_in_by TEXT NOT NULL DEFAULT 'password';
ALTER TABLE sessions ADD COLUMN signed_in_from TEXT NOT NULL DEFAULT '';
"""
"""A later step: organisations that were removed, roles, and where sessions began."""

WEEKS: Final = """
ALTER TABLE scope_totals ADD COLUMN week_ms {int} NOT NULL DEFAULT 0;
ALTER TABLE scope_totals ADD COLUMN week_nanousd {int} NOT NULL DEFAULT 0;
"""
"""A later step: what each scope has cost in its newest week."""

ALERTS: Final = """
ALTER TABLE webhooks ADD COLUMN channel_kind TEXT NOT NULL DEFAULT 'webhook';
ALTER TABLE webhooks ADD COLUMN channel_options TEXT NOT NULL DEFAULT '{{}}';
ALTER TABLE deliveries ADD COLUMN delivery_error TEXT NOT NULL DEFAULT '';
CREATE TABLE alert_rules (
  organisation_id TEXT NOT NULL, alert_name TEXT NOT NULL, alert_rule TEXT NOT NULL,
  PRIMARY KEY (organisation_id, alert_name)
) {keyed};
CREATE TABLE alert_facts (
  organisation_id TEXT NOT NULL, fact TEXT NOT NULL, told_ms {int} NOT NULL,
  PRIMARY KEY (organisation_id, fact)
) {keyed};
CREATE INDEX alert_facts_told ON alert_facts (told_ms);
ALTER TABLE approvals ADD COLUMN arguments_digest TEXT;
ALTER TABLE refusals ADD COLUMN refused_by TEXT NOT NULL DEFAULT '';
CREATE INDEX refusals_call ON refusals (organisation_id, call_id);
CREATE TABLE channel_pace (
  channel_id TEXT PRIMARY KEY, pace_from_ms {int} NOT NULL, pace_told {int} NOT NULL,
  digest_id TEXT NOT NULL, digest_due_ms {int} NOT NULL
) {keyed};
"""
"""A later step: kinds of channels, rules of alerts, what was told, and how fast; of which
arguments an approval is; and which budget or policy has refused a call."""

LOOPS: Final = """
CREATE TABLE repeats (
  organisation_id TEXT NOT NULL, run_id TEXT NOT NULL, loop_kind TEXT NOT NULL,
  digest TEXT NOT NULL, subject TEXT NOT NULL, workflow_id TEXT, agent TEXT, key_id TEXT NOT NULL,
  allowed {int} NOT NULL, seen {int} NOT NULL, began_ms {int} NOT NULL, counted_ms {int} NOT NULL,
  began_seq {int} NOT NULL, noticed_ms {int}, loop_action TEXT NOT NULL,
  PRIMARY KEY (organisation_id, run_id, loop_kind, digest)
) {keyed};
CREATE INDEX repeats_newest ON repeats (organisation_id, counted_ms);
CREATE INDEX repeats_unnoticed ON repeats (counted_ms) WHERE noticed_ms IS NULL;
CREATE INDEX repeats_noticed ON repeats (counted_ms) WHERE noticed_ms IS NOT NULL;
"""
"""A later step: how often runs have made the same call, and which were flagged."""

BOUNDED: Final = """
CREATE INDEX budgets_several ON budgets (organisation_id)
  WHERE instr(scope_id, '*') > 0 OR instr(scope_id, {question}) > 0;
CREATE INDEX deliveries_waiting ON deliveries (organisation_id, next_attempt_ms)
  WHERE delivered_at_ms IS NULL AND failed = 0;
CREATE INDEX deliveries_webhook ON deliveries (webhook_id)
  WHERE delivered_at_ms IS NULL AND failed = 0;
CREATE INDEX events_flagged ON events (organisation_id, event_seq) WHERE flags <> '';
"""
"""A later step: indexes by which no command goes through all rows of its organisation."""

FOUND: Final = """
CREATE INDEX events_call ON events (organisation_id, call_id, event_seq)
  WHERE call_id IS NOT NULL;
CREATE INDEX events_user ON events (organisation_id, user_id, event_seq)
  WHERE user_id IS NOT NULL;
"""
"""A later step: indexes by which a call, and a user's newest events, are found."""

TAG_SUMS: Final = "INSERT INTO facts VALUES ('summed_tags_seq', '0');"
"""A later step: tags are summed in the tables of scopes, also those of events that are there."""
