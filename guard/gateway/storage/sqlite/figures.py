"""Figures over time and refused calls: collected in a transaction, written once per group."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from guard.core import wire
from guard.gateway.domain.commands import PricedEvent, Refusal, Request
from guard.gateway.domain.figures import FIGURE_SIZES_MS, HOUR_MS, MINUTE_MS

REFUSALS_MAX: Final = 100_000
_KEEP_MS: Final = {MINUTE_MS: 2 * 86_400_000, HOUR_MS: 400 * 86_400_000}
_PRUNE_INTERVAL_MS: Final = 60_000
_PRUNE_ROWS: Final = 5000
_REASON_MAX: Final = 512

SCHEMA: Final = """
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
"""Tables of the dashboard, as one migration; hours are filled from the events that are there."""


class FigureTable:
    """Deltas of the current transaction, and how they are written."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._deltas: dict[tuple[str, int, int, str, str], list[int]] = {}
        self._refusals: list[tuple[Any, ...]] = []
        self._pruned_at_ms = 0

    def count(self, organisation_id: str, at_ms: int, priced: PricedEvent) -> None:
        """Take one event into the figures of its time."""
        event = priced.event
        is_llm, is_tool = event.type == "llm", event.type == "tool"
        if not (priced.cost or is_llm or is_tool):
            return
        for size_ms in FIGURE_SIZES_MS:
            key = (organisation_id, size_ms, at_ms - at_ms % size_ms,
                   event.workflow_id or "", priced.model or "")  # fmt: skip
            delta = self._deltas.get(key)
            if delta is None:
                delta = self._deltas[key] = [0, 0, 0, 0, 0]
            delta[0] += priced.cost
            delta[1] += is_llm
            delta[2] += is_tool
            delta[3] += priced.input_tokens
            delta[4] += priced.output_tokens

    def refuse(self, at_ms: int, request: Request, call: wire.GateRequest, why: Refusal) -> None:
        """Keep one refusal."""
        model = None if call.model == wire.UNKNOWN_MODEL else call.model
        self._refusals.append(
            (request.organisation_id, at_ms, call.workflow_id, call.run_id, call.agent,
             call.call_id, call.kind, call.function, why.tool_name or call.tool_name, model,
             why.status, why.error_code, why.reason[:_REASON_MAX])
        )  # fmt: skip

    def flush(self) -> None:
        """Write what was collected."""
        many = self._connection.executemany
        if self._deltas:
            many(
                "INSERT INTO figures VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET"
                " cost_nanousd = cost_nanousd + excluded.cost_nanousd,"
                " llm_calls = llm_calls + excluded.llm_calls,"
                " tool_calls = tool_calls + excluded.tool_calls,"
                " input_tokens = input_tokens + excluded.input_tokens,"
                " output_tokens = output_tokens + excluded.output_tokens",
                [(*key, *delta) for key, delta in self._deltas.items()],
            )
            self._deltas.clear()
        if self._refusals:
            many(
                "INSERT INTO refusals (organisation_id, at_ms, workflow_id, run_id, agent, call_id,"
                " kind, function, tool_name, model, status, error_code, reason)"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
                self._refusals,
            )
            self._refusals.clear()

    def prune(self, now_ms: int, organisation_ids: list[str]) -> None:
        """Once a minute, drop minutes and hours that are too old, refusals beyond the newest
        ``REFUSALS_MAX`` and sessions that have ended; a bounded number of rows each time."""
        if now_ms - self._pruned_at_ms < _PRUNE_INTERVAL_MS:
            return
        self._pruned_at_ms = now_ms
        execute = self._connection.execute
        for organisation_id in organisation_ids:
            for size_ms, keep_ms in _KEEP_MS.items():
                oldest = execute(
                    "SELECT min(bucket_ms) FROM figures WHERE organisation_id = ? AND size_ms = ?",
                    (organisation_id, size_ms),
                ).fetchone()[0]
                if oldest is not None and oldest < now_ms - keep_ms:
                    # One hour of buckets at a time: `LIMIT` on a delete is not always compiled in.
                    end = min(now_ms - keep_ms, oldest + HOUR_MS)
                    execute(
                        "DELETE FROM figures WHERE organisation_id = ? AND size_ms = ?"
                        " AND bucket_ms < ?",
                        (organisation_id, size_ms, end),
                    )
        first, last = execute("SELECT min(refusal_seq), max(refusal_seq) FROM refusals").fetchone()
        if last is not None and last - first >= REFUSALS_MAX:
            end = min(last - REFUSALS_MAX, first + _PRUNE_ROWS)
            execute("DELETE FROM refusals WHERE refusal_seq <= ?", (end,))
        execute("DELETE FROM sessions WHERE expires_at_ms <= ?", (now_ms,))
