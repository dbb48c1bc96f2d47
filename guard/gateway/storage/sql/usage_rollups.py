"""Usage rollups and refused calls: collected in a unit of work, written once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from guard.core import wire
from guard.gateway.domain.commands import CallRefusal, PricedEvent, RequestOrigin
from guard.gateway.domain.usage import DAY_MS, HOUR_MS, MINUTE_MS, ROLLUP_SIZES_MS
from guard.gateway.storage.sql.record import Table
from guard.gateway.storage.sql.tables import Tables

REFUSALS_MAX: Final = 100_000
_KEEP_MS: Final = {MINUTE_MS: 2 * DAY_MS, HOUR_MS: 400 * DAY_MS}
_PRUNE_INTERVAL_MS: Final = 60_000
_PRUNE_ROWS: Final = 5000
_REASON_MAX: Final = 512


_ADD_TO_WORKFLOW: Final = Table("usage_rollups").upsert(
    add=("cost_nanousd", "llm_calls", "tool_calls", "input_tokens", "output_tokens")
)
_ADD_TO_ORGANISATION: Final = Table("organisation_rollups").upsert(
    add=("events", "cost_nanousd", "input_tokens", "output_tokens", "unpriced")
)
_ADD_REFUSAL: Final = Table("refusals").insert(
    ("organisation_id", "at_ms", "workflow_id", "run_id", "agent", "call_id", "kind", "function",
     "tool_name", "model", "status", "error_code", "reason", "user_id", "refused_by")
)  # fmt: skip


class UsageRollups:
    """Sums by time, for each workflow and for each organisation, and the newest refusals."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        # Of this unit, in order: an undo removes the last one. Events are summed only when they are
        # written, because subtracting an undone event from several sums costs more.
        self._events: list[tuple[str, int, PricedEvent]] = []
        self._refusals: list[tuple[Any, ...]] = []
        # When old rows were last deleted, by the store's clock.
        self._pruned_at_ms = 0

    def count(self, organisation_id: str, at_ms: int, priced: PricedEvent) -> None:
        """Add one event to the buckets of its time."""
        self._events.append((organisation_id, at_ms, priced))
        self._tables.undo_log.append((self._undo_event,))

    def _undo_event(self) -> None:
        if self._events:  # empty if it was written in this unit already
            self._events.pop()

    def refuse(self, request: RequestOrigin, call: wire.GateRequest, why: CallRefusal) -> None:
        """Record one refusal."""
        self._tables.tally.add("refusal", why.error_code)
        model = None if call.model == wire.UNKNOWN_MODEL else call.model
        self._refusals.append(
            (request.organisation_id, self._tables.now_ms, call.workflow_id, call.run_id,
             call.agent, call.call_id, call.kind, call.function,
             why.tool_name or call.tool_name, model, why.status, why.error_code,
             why.reason[:_REASON_MAX], call.user, why.refused_by()[:_REASON_MAX])
        )  # fmt: skip
        self._tables.on_undo(self._undo_refusal)

    def _undo_refusal(self) -> None:
        if self._refusals:  # empty if it was written in this unit already
            self._refusals.pop()

    def flush(self) -> None:
        """Write the events and refusals of this unit."""
        change = self._tables.connection.change
        if self._events:
            organisations, workflows = _by_minute(self._events)
            change(_ADD_TO_ORGANISATION, _widened(organisations, (HOUR_MS, DAY_MS)))
            change(_ADD_TO_WORKFLOW, _widened(workflows, ROLLUP_SIZES_MS))
            self._events.clear()
        if self._refusals:
            change(_ADD_REFUSAL, self._refusals)
            self._refusals.clear()

    def forget(self) -> None:
        """Drop the events and refusals that were not written."""
        self._events.clear()
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
                self._prune_buckets("usage_rollups", organisation_id, size_ms, now_ms - keep_ms)
            end_ms = now_ms - _KEEP_MS[HOUR_MS]
            self._prune_buckets("organisation_rollups", organisation_id, HOUR_MS, end_ms)
        first, last = execute("SELECT min(refusal_seq), max(refusal_seq) FROM refusals").fetchone()
        if last is not None and last - first >= REFUSALS_MAX:
            end = min(last - REFUSALS_MAX, first + _PRUNE_ROWS)
            execute("DELETE FROM refusals WHERE refusal_seq <= ?", (end,))
        execute("DELETE FROM sessions WHERE expires_at_ms <= ?", (now_ms,))

    def _prune_buckets(self, table: str, organisation_id: str, size_ms: int, end_ms: int) -> None:
        where = "WHERE organisation_id = ? AND size_ms = ?"
        oldest = self._tables.row(
            f"SELECT min(bucket_ms) FROM {table} {where}",  # noqa: S608 (constants of this module)
            organisation_id, size_ms,
        )[0]  # fmt: skip
        if oldest is not None and oldest < end_ms:
            # One hour of buckets at a time: `LIMIT` on a delete is not always compiled in.
            self._tables.write(
                f"DELETE FROM {table} {where} AND bucket_ms < ?",  # noqa: S608 (constants of this module)
                (organisation_id, size_ms, min(end_ms, oldest + HOUR_MS)),
            )


_Buckets = dict[tuple[Any, ...], list[int]]


def _by_minute(events: list[tuple[str, int, PricedEvent]]) -> tuple[_Buckets, _Buckets]:
    """Sum events by minute: of organisations by type, provider and model, and of workflows."""
    organisations: _Buckets = {}
    workflows: _Buckets = {}
    for organisation_id, at_ms, priced in events:
        event, cost, tokens = priced.event, priced.cost, (priced.input_tokens, priced.output_tokens)
        bucket = organisation_id, at_ms - at_ms % MINUTE_MS
        kind, model = event.type, priced.model or ""
        names = (*bucket, kind, priced.provider or "", model)
        _add(organisations, names, (1, cost, *tokens, int("unpriced" in priced.flags)))
        if cost or kind in ("llm", "tool"):
            workflow = (*bucket, event.workflow_id or "", model)
            _add(workflows, workflow, (cost, int(kind == "llm"), int(kind == "tool"), *tokens))
    return organisations, workflows


def _widened(minutes: _Buckets, sizes_ms: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Return the rows of buckets of every size."""
    found: _Buckets = {}
    for (organisation_id, minute_ms, *names), numbers in minutes.items():
        for size_ms in sizes_ms:
            bucket_ms = minute_ms - minute_ms % size_ms
            _add(found, (organisation_id, size_ms, bucket_ms, *names), numbers)
    return [(*key, *numbers) for key, numbers in found.items()]


def _add(buckets: _Buckets, key: tuple[Any, ...], added: Sequence[int]) -> None:
    known = buckets.get(key)
    if known is None:
        buckets[key] = list(added)
        return
    for at, number in enumerate(added):
        known[at] += number
