"""Durations and failures by model, of the newest events."""

from __future__ import annotations

from typing import Final

from guard.gateway.domain.model_latency import LatencyReport, SeenEvent, by_model
from guard.gateway.unit.connection import Connection

LOOKED_AT_MAX: Final = 10_000
"""How many events are read, with their data: models' latencies have no columns of their own."""


def latency(connection: Connection, organisation_id: str) -> LatencyReport:
    """Return the data about models in the newest ``LOOKED_AT_MAX`` events."""
    newest = (
        "(SELECT type, received_at_ms, model, flags, run_id, span_id, data FROM events"
        " WHERE organisation_id = ? ORDER BY event_seq DESC LIMIT ?) newest"
    )
    with connection.snapshot():
        looked_at, since_ms = connection.rows(
            f"SELECT count(*), min(received_at_ms) FROM {newest}",
            organisation_id, LOOKED_AT_MAX,
        )[0]  # fmt: skip
        rows = connection.rows(
            "SELECT type, model, flags, run_id, span_id, data"
            f" FROM {newest} WHERE type IN ('llm', 'span')",
            organisation_id, LOOKED_AT_MAX,
        )  # fmt: skip
    return LatencyReport(
        models=by_model(SeenEvent(*row) for row in rows), looked_at=looked_at, since_ms=since_ms,
        is_cut=looked_at == LOOKED_AT_MAX,
    )  # fmt: skip
