"""Durations and failures by model, of the newest events."""

from __future__ import annotations

from typing import Final

from guard.gateway.domain.model_latency import LatencyReport, SeenEvent, by_model
from guard.gateway.unit.connection import Connection

LOOKED_AT_MAX: Final = 10_000
"""How many events are read, with their data: models' latencies have no columns of their own."""


def latency(
    connection: Connection, organisation_id: str, since_ms: int, until_ms: int
) -> LatencyReport:
    """Return the data about models in the newest ``LOOKED_AT_MAX`` events of a time."""
    newest = (
        "(SELECT type, received_at_ms, model, flags, run_id, span_id, data FROM events"
        " INDEXED BY events_charged WHERE organisation_id = ? AND charged_at_ms >= ?"
        " AND charged_at_ms < ? ORDER BY charged_at_ms DESC, event_seq DESC LIMIT ?) newest"
    )
    arguments = organisation_id, since_ms, until_ms, LOOKED_AT_MAX
    with connection.snapshot():
        looked_at, since_ms = connection.rows(
            f"SELECT count(*), min(received_at_ms) FROM {newest}", *arguments
        )[0]
        rows = connection.rows(
            "SELECT type, model, flags, run_id, span_id, data"
            f" FROM {newest} WHERE type IN ('llm', 'span')",
            *arguments,
        )
    return LatencyReport(
        models=by_model(SeenEvent(*row) for row in rows), looked_at=looked_at, since_ms=since_ms,
        is_cut=looked_at == LOOKED_AT_MAX,
    )  # fmt: skip
