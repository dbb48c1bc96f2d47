"""Lost events: counted at once, and reported to the gateway in an event of their own."""

from __future__ import annotations

import logging
import time

from guard.core.buffer import EventBuffer, Record
from guard.core.ids import IdFactory
from guard.delivery.health import Health
from guard.scope.scope import OUTSIDE

logger = logging.getLogger("guard.events")


class Losses:
    """Counts losses, and reports those that the gateway does not know about yet.

    One report is under way at a time, with its own ``event_id``: it is sent again until the gateway
    has accepted it, and counted there once. Used on the background loop, and at the end of the
    process by the thread that ends it.
    """

    def __init__(self, buffer: EventBuffer, health: Health, ids: IdFactory) -> None:
        self._buffer = buffer
        self._health = health
        self._ids = ids
        # The buffer's count of drops at the last look. The buffer counts them itself, since
        # callers' threads shed them.
        self._drops_seen = 0
        # Losses that are in no report yet.
        self._unreported = 0
        # The report under way. It waits here and keeps its id until the gateway has accepted it.
        self._report: Record | None = None
        # Whether events were dropped between the last two looks: logged when that begins.
        self._shedding = False

    def lose(self, count: int, why: str) -> None:
        """Count and log events that are lost, for the next report."""
        if count:
            self._health.lose(count)
            self._unreported += count
            logger.warning("%d events lost: %s", count, why)

    def count_drops(self) -> None:
        """Count what the buffer has shed since the last look; log when it begins to shed."""
        # Not in `health`, which adds the buffer's own count.
        dropped = self._buffer.dropped - self._drops_seen
        if dropped and not self._shedding:
            logger.warning("the event buffer is full; the least important events make room")
        self._shedding = bool(dropped)
        self._drops_seen += dropped
        self._unreported += dropped

    def report(self) -> Record | None:
        """Return the report for the next batch, if there is anything to report."""
        if self._report is None and self._unreported:
            data = {"events": self._unreported}
            self._report = Record(
                "sdk.loss", time.time_ns(), self._ids.serial(), OUTSIDE.event_fields, data
            )
            self._unreported = 0
        return self._report

    def is_report(self, record: Record) -> bool:
        """Return whether a record is the report, which waits here and never in the buffer."""
        return record is self._report

    def reported(self) -> None:
        """Forget the report: the gateway has accepted it."""
        self._report = None
