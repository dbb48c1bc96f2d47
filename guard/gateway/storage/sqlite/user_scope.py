"""The eleventh migration: for which user, and with which tags, work was done."""

from __future__ import annotations

from typing import Final

SCRIPT: Final = """
ALTER TABLE reservations ADD COLUMN user_id TEXT;
ALTER TABLE events ADD COLUMN user_id TEXT;
ALTER TABLE events ADD COLUMN tags TEXT;
ALTER TABLE approvals ADD COLUMN user_id TEXT;
ALTER TABLE refusals ADD COLUMN user_id TEXT;
INSERT INTO scope_totals SELECT organisation_id, 'no user', '', cost_nanousd, hour_ms,
  hour_nanousd, day_ms, day_nanousd, month_ms, month_nanousd, events, llm_calls, tool_calls,
  input_tokens, output_tokens, unpriced FROM scope_totals WHERE scope_kind = 'organisation';
INSERT INTO scope_days SELECT organisation_id, 'no user', '', day_ms, sum(cost_nanousd),
  sum(events), sum(llm_calls), sum(tool_calls), sum(input_tokens), sum(output_tokens),
  sum(unpriced) FROM scope_days WHERE scope_kind = 'key' GROUP BY organisation_id, day_ms;
"""
"""What was done before was done for nobody in particular; every event has a key."""
