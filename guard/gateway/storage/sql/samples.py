"""Figures for metrics that need a query: sampled by the sweep, so that a scrape needs none."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from guard.gateway.storage.sql.retention import cutoff_ms
from guard.gateway.unit.connection import Connection

INTERVAL_MS: Final = 5000
BACKLOG_MAX: Final = 10_000
"""The backlog is counted up to this number."""


class Samples(Struct, frozen=True):
    """Newest figures.

    Attributes:
        at_ms: when they were read.
        retention_lag_s: how long the oldest event has been due for deletion.
        webhook_backlog: messages that are not delivered yet.
    """

    at_ms: int = -INTERVAL_MS
    retention_lag_s: float = 0.0
    webhook_backlog: int = 0


def read(connection: Connection, now_ms: int, keep_ms: int) -> Samples:
    """Read the figures, from a few index entries however large the tables are.

    Args:
        connection: a connection.
        now_ms: the time.
        keep_ms: how long events are kept; 0: for ever.
    """
    # The newest event is never deleted.
    oldest = connection.rows("SELECT received_at_ms FROM events ORDER BY event_seq LIMIT 2")
    lag_ms = 0
    if keep_ms and len(oldest) == 2:
        lag_ms = max(0, cutoff_ms(now_ms, keep_ms) - oldest[0][0])
    [(backlog,)] = connection.rows(
        "SELECT count(*) FROM (SELECT 1 FROM deliveries INDEXED BY deliveries_due"
        " WHERE delivered_at_ms IS NULL AND failed = 0 LIMIT ?) due",
        BACKLOG_MAX,
    )
    return Samples(now_ms, lag_ms / 1000, backlog)
