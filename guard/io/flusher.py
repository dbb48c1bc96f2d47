"""Drains the event buffer: in batches of its own, and in the luggage of gate requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from guard.breaker.exceptions import BreakerTransportError, GuardError, GuardTransportError
from guard.core import wire
from guard.core.batching import EventBuffer, Record
from guard.core.ids import IdFactory
from guard.health import Health
from guard.io.gateway import GatewayClient, send_blocking
from guard.scope import Scope
from guard.settings import Settings

logger = logging.getLogger("guard.delivery")

_GATE_EVENTS_MAX: Final = 200
"""Most events that travel with one gate request: it is a caller who waits for it."""

_RETRY_PAUSE_S: Final = 1.0


class Flusher:
    """Sends what the buffer holds; runs on the background loop, one batch in flight.

    Args:
        buffer: where callers put their records.
        client: the gateway.
        settings: batch size and flush interval.
        ids: event and batch ids.
        health: where sent and lost events are counted.
    """

    def __init__(
        self,
        buffer: EventBuffer,
        client: GatewayClient,
        settings: Settings,
        ids: IdFactory,
        health: Health,
    ) -> None:
        self._buffer = buffer
        self._health = health
        self._client = client
        self._settings = settings
        self._ids = ids
        self._wake = asyncio.Event()
        self._one_flush = asyncio.Lock()
        self._dropped_reported = 0
        self._in_trouble = False
        self.limits = wire.Limits()
        self.in_flight = 0

    def wake(self) -> None:
        """Flush now instead of at the end of the interval."""
        self._wake.set()

    async def run(self) -> None:
        """Flush at every interval and at every wake-up, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._settings.flush_interval_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                while len(self._buffer):
                    await self.flush_batch()
            except GuardError:
                # Told once by flush_batch; the interval (at least a second) is the back-off.
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def flush(self) -> None:
        """Send everything that is in the buffer.

        Raises:
            BreakerTransportError: the gateway did not take it; what can be kept stays buffered.
        """
        lost_before = self._health.lost
        try:
            while len(self._buffer):
                await self.flush_batch()
        except GuardError as exc:
            raise BreakerTransportError(
                f"{len(self._buffer)} events are still buffered: {exc}",
                events_lost=self._health.lost - lost_before,
                buffer_size=len(self._buffer),
            ) from exc

    async def flush_batch(self) -> None:
        """Send one batch, the most important events first."""
        async with self._one_flush:
            self._report_drops()
            most = min(self._settings.batch_size, self.limits.max_batch_events)
            records = self._buffer.take(most)
            if not records:
                return
            self.in_flight = len(records)
            try:
                await self._deliver(records)
            finally:
                self.in_flight = 0

    def luggage(self, workflow_id: str | None) -> list[Record]:
        """Take what is buffered for one workflow, to travel with its gate request."""
        return self._buffer.take_if(
            lambda record: record[3].workflow_id == workflow_id, _GATE_EVENTS_MAX
        )

    def arrived(self, records: Sequence[Record], outcome: wire.EventsOutcome | None) -> None:
        """Report that a gate request delivered its luggage."""
        rejected = outcome.rejected if outcome is not None else []
        self._count(len(records), rejected)

    def came_back(self, records: list[Record]) -> None:
        """Report that a gate request failed: its luggage is sent again (once on the ledger)."""
        self._buffer.put_back(records)

    def events(self, records: Sequence[Record]) -> list[wire.Event]:
        """Turn records into events of the protocol."""
        return [_event(record, self._ids) for record in records]

    async def _deliver(self, records: list[Record]) -> None:
        try:
            reply = await self._client.send(self._batch(records))
        except GuardTransportError as exc:
            self._trouble(exc)
            if exc.retryable:
                self._buffer.put_back(records)
                raise
            if len(records) > 1:  # too large, or one event poisons the batch: halve it
                half = len(records) // 2
                await self._deliver(records[:half])
                await self._deliver(records[half:])
                return
            self._health.lost += 1
        except BaseException as exc:
            if isinstance(exc, GuardError):
                self._trouble(exc)
            self._buffer.put_back(records)
            raise
        else:
            self._count(len(records), reply.rejected)
            if self._in_trouble:
                self._in_trouble = False
                logger.warning("events are delivered again")

    def _batch(self, records: Sequence[Record]) -> wire.EventBatch:
        now_ms = time.time_ns() // 1_000_000
        return wire.EventBatch(
            batch_id=self._ids.uuid7(now_ms), sent_at_ms=now_ms, events=self.events(records)
        )

    def _count(self, delivered: int, rejected: Sequence[wire.RejectedEvent]) -> None:
        self._health.sent += delivered - len(rejected)
        self._health.lost += len(rejected)
        for event in rejected:
            logger.warning("the gateway refused an event: %s %s", event.error_code, event.detail)

    def _trouble(self, exc: BaseException) -> None:
        if not self._in_trouble:
            self._in_trouble = True
            logger.warning("events are not delivered, they wait in memory: %s", exc)

    def _report_drops(self) -> None:
        dropped = self._buffer.dropped
        if dropped > self._dropped_reported:
            count, self._dropped_reported = dropped - self._dropped_reported, dropped
            self._health.lost += count
            record = ("sdk.loss", time.time_ns(), self._ids.serial(), Scope(), {"events": count})
            self._buffer.append(record)

    def drain_blocking(self, deadline_s: float) -> None:
        """Send what is left from the calling thread; for interpreter exit.

        Raises:
            BreakerTransportError: something could not be delivered.
        """
        ends = time.monotonic() + deadline_s
        while records := self._buffer.take(self._settings.batch_size):
            left_s = ends - time.monotonic()
            try:
                if left_s <= 0:
                    raise GuardTransportError("no time left", endpoint=wire.EVENTS_PATH)
                reply = send_blocking(self._settings, self._batch(records), left_s)
            except GuardError as exc:
                self._buffer.put_back(records)
                raise BreakerTransportError(
                    f"events were not delivered before the exit: {exc}",
                    events_lost=len(self._buffer),
                    buffer_size=len(self._buffer),
                ) from exc
            self._count(len(records), reply.rejected)


def _event(record: Record, ids: IdFactory) -> wire.Event:
    kind, at_ns, serial, scope, payload = record
    at_ms = at_ns // 1_000_000
    call = scope.call
    data: Any = payload
    return wire.Event(
        event_id=ids.uuid7(at_ms, serial),
        type=kind,
        at_ms=at_ms,
        workflow_id=scope.workflow_id,
        run_id=scope.run_id,
        chain_id=scope.chain_id,
        agent=scope.agent,
        trace_id=scope.trace_id,
        span_id=scope.span_id,
        parent_span_id=scope.parent_span_id,
        call_id=call.call_id if call is not None else None,
        reservation_id=call.reservation_id if call is not None else None,
        data=data,
    )
