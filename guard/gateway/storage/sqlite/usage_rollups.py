"""Usage rollups and refused calls: collected in a unit of work, written once."""

from __future__ import annotations

from typing import Any, Final

from guard.core import wire
from guard.gateway.domain.commands import PricedEvent, Refusal, Request
from guard.gateway.domain.usage import HOUR_MS, MINUTE_MS, ROLLUP_SIZES_MS
from guard.gateway.storage.sqlite.tables import Tables, restore_list

REFUSALS_MAX: Final = 100_000
_KEEP_MS: Final = {MINUTE_MS: 2 * 86_400_000, HOUR_MS: 400 * 86_400_000}
_PRUNE_INTERVAL_MS: Final = 60_000
_PRUNE_ROWS: Final = 5000
_REASON_MAX: Final = 512


class UsageRollups:
    """Sums by minute and by hour, and the newest refusals."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._deltas: dict[tuple[str, int, int, str, str], list[int]] = {}
        self._refusals: list[tuple[Any, ...]] = []
        self._pruned_at_ms = 0

    def count(self, organisation_id: str, at_ms: int, priced: PricedEvent) -> None:
        """Add one event to the buckets of its time."""
        event = priced.event
        is_llm, is_tool = event.type == "llm", event.type == "tool"
        if not (priced.cost or is_llm or is_tool):
            return
        log = self._tables.undo_log
        for size_ms in ROLLUP_SIZES_MS:
            key = (organisation_id, size_ms, at_ms - at_ms % size_ms,
                   event.workflow_id or "", priced.model or "")  # fmt: skip
            delta = self._deltas.get(key)
            if delta is None:
                delta = self._deltas[key] = [0, 0, 0, 0, 0]
                log.append((self._deltas.pop, key, None))
            else:
                log.append((restore_list, delta, delta[:]))
            delta[0] += priced.cost
            delta[1] += is_llm
            delta[2] += is_tool
            delta[3] += priced.input_tokens
            delta[4] += priced.output_tokens

    def refuse(self, request: Request, call: wire.GateRequest, why: Refusal) -> None:
        """Record one refusal."""
        model = None if call.model == wire.UNKNOWN_MODEL else call.model
        self._refusals.append(
            (request.organisation_id, self._tables.now_ms, call.workflow_id, call.run_id,
             call.agent, call.call_id, call.kind, call.function,
             why.tool_name or call.tool_name, model, why.status, why.error_code,
             why.reason[:_REASON_MAX])
        )  # fmt: skip
        self._tables.on_undo(self._undo_refusal)

    def _undo_refusal(self) -> None:
        if self._refusals:  # empty where it was written in this unit already
            self._refusals.pop()

    def flush(self) -> None:
        """Write what was collected in this unit."""
        many = self._tables.connection.executemany
        if self._deltas:
            many(
                "INSERT INTO usage_rollups VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET"
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

    def forget(self) -> None:
        """Drop what was not written."""
        self._deltas.clear()
        self._refusals.clear()

    def prune(self, organisation_ids: list[str]) -> None:
        """Drop old buckets, refusals beyond the newest ``REFUSALS_MAX`` and ended sessions.

        It does so once a minute, and a bounded number of rows each time.
        """
        now_ms, execute = self._tables.now_ms, self._tables.write
        if now_ms - self._pruned_at_ms < _PRUNE_INTERVAL_MS:
            return
        self._pruned_at_ms = now_ms
        for organisation_id in organisation_ids:
            for size_ms, keep_ms in _KEEP_MS.items():
                oldest = execute(
                    "SELECT min(bucket_ms) FROM usage_rollups WHERE organisation_id = ?"
                    " AND size_ms = ?",
                    (organisation_id, size_ms),
                ).fetchone()[0]
                if oldest is not None and oldest < now_ms - keep_ms:
                    # One hour of buckets at a time: `LIMIT` on a delete is not always compiled in.
                    end = min(now_ms - keep_ms, oldest + HOUR_MS)
                    execute(
                        "DELETE FROM usage_rollups WHERE organisation_id = ? AND size_ms = ?"
                        " AND bucket_ms < ?",
                        (organisation_id, size_ms, end),
                    )
        first, last = execute("SELECT min(refusal_seq), max(refusal_seq) FROM refusals").fetchone()
        if last is not None and last - first >= REFUSALS_MAX:
            end = min(last - REFUSALS_MAX, first + _PRUNE_ROWS)
            execute("DELETE FROM refusals WHERE refusal_seq <= ?", (end,))
        execute("DELETE FROM sessions WHERE expires_at_ms <= ?", (now_ms,))
