"""Drains the event buffer: in batches of its own, and in the luggage of gate requests.

While the gateway is away the events wait in memory, or on disk when there is a spool. Nothing
leaves here uncounted: an event is delivered, kept, on disk, or in ``events_lost``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

import msgspec

from guard.breaker.exceptions import (
    BreakerTransportError,
    GuardConsumeOverbudgetError,
    GuardError,
    RateLimitError,
)
from guard.core import wire
from guard.core.batching import EventBuffer, Record, priority_of
from guard.core.ids import IdFactory
from guard.core.records import batch_bytes, event_of, fitting
from guard.core.retry import Backoff
from guard.health import Health
from guard.io.gateway import BodyRefusedError, GatewayClient
from guard.io.parcels import LOSS_PRIORITY, Parcel, encoded
from guard.io.spool import Spool, Spooled, SpoolError
from guard.loop import in_thread
from guard.scope import OUTSIDE
from guard.settings import Settings

logger = logging.getLogger("guard.delivery")

_GATE_EVENTS_MAX: Final = 200
"""Most events that travel with one gate request: it is a caller who waits for it."""

_GATE_LOOKED_AT_MAX: Final = 2000
"""Most events of each lane that are looked at for that."""

_GATE_BYTES_MAX: Final = 128 * 1024
_BACKLOG_BATCHES: Final = 4
"""From this many batches on the buffer backs up, and batches grow to what the gateway takes."""

_AFTER_FAILURE: Final = Backoff(base_s=1.0, cap_s=15.0)
_SPOOL_LOOK_S: Final = 15.0


class Flusher:
    """Sends what the buffer and the spool hold; runs on the background loop, one batch in flight.

    Args:
        buffer: where callers put their records.
        client: the gateway.
        settings: batch size and flush interval.
        ids: event and batch ids.
        health: where sent and lost events are counted.
        told: takes an error that the hooks are to hear of.
        spool: events on disk, if there is a directory for them.
    """

    def __init__(
        self,
        buffer: EventBuffer,
        client: GatewayClient,
        settings: Settings,
        ids: IdFactory,
        health: Health,
        *,
        told: Callable[[BaseException], None],
        spool: Spool | None = None,
    ) -> None:
        self._buffer = buffer
        self._client = client
        self._settings = settings
        self._ids = ids
        self._health = health
        self._told = told
        self._spool = spool
        self._spool_fails = False
        self._look_at_s = 0.0
        self._wake = asyncio.Event()
        self._one_flush = asyncio.Lock()
        self._hands: list[Parcel] = []
        self._luggage: dict[int, list[Record]] = {}
        self._drops_seen = 0
        self._unreported = 0
        self._loss: Record | None = None
        self._in_trouble = False
        self.limits = wire.Limits()

    @property
    def in_flight(self) -> int:
        """How many events are neither in the buffer nor at the gateway for sure."""
        return sum(len(parcel.records) for parcel in self._hands) + sum(
            len(records) for records in self._luggage.values()
        )

    @property
    def spooled(self) -> int:
        """How many events wait on disk."""
        return 0 if self._spool is None else self._spool.pending

    def wake(self) -> None:
        """Flush now instead of at the end of the interval, or of the pause after a failure."""
        self._wake.set()

    # -- the service --------------------------------------------------------------------------

    async def run(self) -> None:
        """Flush at every interval and at every wake-up, until cancelled. No failure ends it."""
        interval_s = self._settings.flush_interval_ms / 1000
        failures = 0
        next_try_s = 0.0
        while True:
            woken = await self._waited(interval_s)
            if self._in_trouble and not woken and time.monotonic() < next_try_s:
                await self._shelter()
                continue
            try:
                await self._drain()
            except Exception as exc:  # noqa: BLE001  # told, counted, and tried again
                self._trouble(exc)
                pause_s = _AFTER_FAILURE.delay_s(failures, random.random())
                if isinstance(exc, RateLimitError) and exc.retry_after is not None:
                    pause_s = max(pause_s, exc.retry_after)
                next_try_s = time.monotonic() + max(interval_s, pause_s)
                failures += 1
            else:
                failures = 0

    async def _waited(self, interval_s: float) -> bool:
        """Sleep until there is something to do; True when somebody said so."""
        # In trouble a full batch is no reason to hurry, so the buffer is not asked to tell of it.
        if not self._in_trouble and not self._buffer.rest():
            return True
        try:
            async with asyncio.timeout(interval_s):
                await self._wake.wait()
        except TimeoutError:
            return False
        finally:
            self._wake.clear()
        return True

    async def flush(self) -> None:
        """Send everything that is in the buffer.

        Raises:
            BreakerTransportError: the gateway did not take it; what can be kept stays buffered.
        """
        lost_before = self._health.lost
        self._look_at_s = 0.0
        try:
            await self._drain()
        except GuardError as exc:
            self._trouble(exc)
            await self._shelter()
            left = len(self._buffer)
            if left or self._spool is None:
                raise BreakerTransportError(
                    f"{left} events are still buffered: {exc}",
                    events_lost=self._health.lost - lost_before,
                    buffer_size=left,
                ) from exc

    async def _drain(self) -> None:
        """Send until buffer and spool are empty; whoever goes on recording is not waited for."""
        most = len(self._buffer) + self._buffer.capacity
        while most > 0:
            sent = await self._send_buffered()
            if len(self._buffer) < self._settings.batch_size:  # what is new goes first
                sent += await self._send_spooled()
            if not sent:
                return
            most -= sent

    async def _send_buffered(self) -> int:
        async with self._one_flush:
            self._count_drops()
            most = self._settings.batch_size
            if len(self._buffer) > most * _BACKLOG_BATCHES:
                most = max(most, self.limits.max_batch_events)
            records = self._buffer.take(min(most, self.limits.max_batch_events))
            loss = self._loss_record()
            if loss is not None:
                records.append(loss)
            if not records:
                return 0
            taken = len(records)
            try:
                events, records, broken = encoded(records, self._ids)
                self._lose(broken, "an event cannot be encoded")
                fits = fitting(events, self.limits.max_batch_bytes)
                if fits < len(records):
                    self._return(records[fits:])
                    events, records = events[:fits], records[:fits]
                self._hands = [Parcel(events, records=records)]
                if records:
                    await self._deliver()
            except asyncio.CancelledError:
                self._return_hands()
                raise
            except Exception:
                await self._keep_hands()
                raise
            finally:
                self._hands = []
            return taken

    async def _send_spooled(self) -> int:
        spool = self._spool
        if spool is None:
            return 0
        async with self._one_flush:
            if not await self._has_spooled(spool):
                return 0
            try:
                claimed = await in_thread(spool.claim, self.limits.max_batch_events, finish=True)
            except SpoolError as exc:
                self._spool_failed(exc)
                return 0
            if not claimed:  # what is there, another process is delivering
                return 0
            events = [event.body for event in claimed]
            rows = [event.row for event in claimed]
            fits = fitting(events, self.limits.max_batch_bytes)
            self._hands = [Parcel(events[:fits], rows=rows[:fits])]
            try:
                await self._deliver()
            finally:
                left = rows[fits:]
                for parcel in self._hands:
                    left += parcel.rows
                self._hands = []
                if left:
                    try:
                        await in_thread(spool.release, left, finish=True)
                    except SpoolError as exc:  # the claims run out by themselves
                        self._spool_failed(exc)
            return fits

    async def _has_spooled(self, spool: Spool) -> bool:
        if not spool.pending and time.monotonic() < self._look_at_s:
            return False
        try:
            found = await in_thread(spool.look, finish=True)  # others may have left something
            self._look_at_s = time.monotonic() + _SPOOL_LOOK_S
            return found > 0
        except SpoolError as exc:
            self._spool_failed(exc)
            return False

    async def _deliver(self) -> None:
        """Send the parcels in hand; those that are done with leave it one by one.

        Raises:
            GuardError: the gateway does not take the rest now.
        """
        while self._hands:
            parcel = self._hands[-1]
            now_ms = time.time_ns() // 1_000_000
            batch_id = self._ids.uuid7(now_ms)
            body = batch_bytes(batch_id, now_ms, parcel.events)
            try:
                reply, over = await self._client.send(batch_id, body)
            except BodyRefusedError as exc:
                if len(parcel.events) > 1:  # too large, or one event spoils the batch: halve it
                    self._hands[-1:] = parcel.halves()
                    continue
                self._lose(1, f"the gateway cannot take an event: {exc}")
            else:
                self._count(len(parcel.events) - parcel.losses, reply.rejected)
                if over:
                    self._told(_over(reply))
                if self._in_trouble:
                    self._in_trouble = False
                    logger.warning("events are delivered again")
            self._hands.pop()
            if parcel.losses:
                self._loss = None
            if parcel.rows and self._spool is not None:
                try:
                    await in_thread(self._spool.settle, parcel.rows, finish=True)
                except SpoolError as exc:  # they are sent again, and charged once all the same
                    self._spool_failed(exc)

    # -- luggage of gate requests --------------------------------------------------------------

    def luggage(self, workflow_id: str | None) -> tuple[list[Record], list[wire.Event]]:
        """Take what is buffered for one workflow, to travel with its gate request.

        Returns:
            The records, for :meth:`arrived` or :meth:`came_back`, and their events.
        """
        records = self._buffer.take_if(
            lambda record: record.place[0] == workflow_id,
            _GATE_EVENTS_MAX,
            _GATE_LOOKED_AT_MAX,
        )
        if not records:
            return records, []
        events, records, broken = encoded(records, self._ids)
        self._lose(broken, "an event cannot be encoded")
        fits = fitting(events, _GATE_BYTES_MAX)
        self._buffer.put_back(records[fits:])
        del records[fits:]
        self._luggage[id(records)] = records
        return records, cast("list[wire.Event]", [msgspec.Raw(event) for event in events[:fits]])

    def arrived(self, records: list[Record], outcome: wire.EventsOutcome | None) -> None:
        """Report that a gate request delivered its luggage."""
        if self._luggage.pop(id(records), None) is not None:
            self._count(len(records), outcome.rejected if outcome is not None else [])

    def came_back(self, records: list[Record]) -> None:
        """Report that a gate request failed: its luggage is sent again (once on the ledger)."""
        if self._luggage.pop(id(records), None) is not None:
            self._buffer.put_back(records)

    # -- keeping ------------------------------------------------------------------------------

    def _return(self, records: Sequence[Record]) -> None:
        self._buffer.put_back(record for record in records if record is not self._loss)

    def _return_hands(self) -> None:
        for parcel in self._hands:
            self._return(parcel.records)

    async def _keep_hands(self) -> None:
        """Put what could not be delivered onto the disk, or else back into the buffer."""
        for parcel in self._hands:
            records = [record for record in parcel.records if record is not self._loss]
            try:
                kept = await self._spool_records(records)
            except asyncio.CancelledError:
                self._buffer.put_back(records)  # on disk too, perhaps: the event_id is the same
                raise
            if not kept:
                self._buffer.put_back(records)

    async def _shelter(self) -> None:
        """While the gateway is away: bring what is buffered onto the disk, if there is one."""
        if self._spool is None:
            return
        while len(self._buffer):
            async with self._one_flush:
                records = self._buffer.take(1000)
                self._hands = [Parcel([], records=records)]
                try:
                    kept = await self._spool_records(records)
                except asyncio.CancelledError:
                    self._buffer.put_back(records)
                    raise
                finally:
                    self._hands = []
                if not kept:
                    self._buffer.put_back(records)
                    return

    async def _spool_records(self, records: Sequence[Record]) -> bool:
        if self._spool is None or not records:
            return not records
        try:
            rows, broken = self._rows(records)
            self._lose(broken, "an event cannot be encoded")
            dropped = await in_thread(self._spool.append, rows, finish=True)
        except SpoolError as exc:
            self._spool_failed(exc)
            return False
        self._spool_works()
        self._lose(dropped, "the spool is full")
        return True

    def _rows(self, records: Sequence[Record]) -> tuple[list[Spooled], int]:
        events, good, broken = encoded(records, self._ids)
        rows = [
            Spooled(
                event_of(record, self._ids).event_id,
                LOSS_PRIORITY if record is self._loss else priority_of(record.kind),
                event,
            )
            for event, record in zip(events, good, strict=True)
        ]
        return rows, broken

    def close_spool(self) -> None:
        """Close the file; what is in it stays."""
        if self._spool is not None:
            self._spool.close()

    def give_up(self) -> int:
        """The end: put what is left onto the disk, or count it as lost. Blocking, off the loop.

        Returns:
            How many events were lost by it.
        """
        self._count_drops()
        left = self._buffer.take(len(self._buffer))
        for parcel in self._hands:  # the loop is stuck, or they would be back in the buffer
            left += (record for record in parcel.records if record is not self._loss)
        for records in self._luggage.values():
            left += records
        lost_before = self._health.lost
        loss = self._loss_record()
        if self._spool is not None and (left or loss is not None):
            self._spool.hurry()
            try:
                rows, broken = self._rows([*left, *([loss] if loss is not None else [])])
                self._lose(broken, "an event cannot be encoded")
                dropped = self._spool.append(rows)
            except SpoolError as exc:
                self._spool_failed(exc)
            else:
                self._lose(dropped, "the spool is full")
                left = []
        self._health.lose(len(left))
        return self._health.lost - lost_before

    # -- counting -----------------------------------------------------------------------------

    def _count(self, delivered: int, rejected: Sequence[wire.RejectedEvent]) -> None:
        self._health.sent += delivered - len(rejected)
        self._health.lose(len(rejected))
        if rejected:
            logger.warning(
                "the gateway refused %d events; the first: %s %s",
                len(rejected), rejected[0].error_code, rejected[0].detail,
            )  # fmt: skip

    def _lose(self, count: int, why: str) -> None:
        if count:
            self._health.lose(count)
            self._unreported += count
            logger.warning("%d events lost: %s", count, why)

    def _count_drops(self) -> None:
        dropped = self._buffer.dropped
        if dropped > self._drops_seen:
            if not self._drops_seen or not self._in_trouble:
                logger.warning("the event buffer is full; the least important events make room")
            self._unreported += dropped - self._drops_seen
            self._drops_seen = dropped

    def _loss_record(self) -> Record | None:
        """Return what tells the gateway of losses: one record at a time, kept until it arrives."""
        if self._loss is None and self._unreported:
            data = {"events": self._unreported}
            self._loss = Record("sdk.loss", time.time_ns(), self._ids.serial(), OUTSIDE.place, data)
            self._unreported = 0
        return self._loss

    def _trouble(self, exc: BaseException) -> None:
        if self._in_trouble:
            return
        self._in_trouble = True
        where = "in memory" if self._spool is None or self._spool_fails else "on disk"
        if isinstance(exc, GuardError):
            logger.warning("events are not delivered, they wait %s: %s", where, exc)
            self._told(exc)
        else:
            logger.error("events are not delivered, they wait %s", where, exc_info=exc)

    def _spool_failed(self, exc: SpoolError) -> None:
        if not self._spool_fails:
            self._spool_fails = True
            logger.warning("the spool cannot be used, events wait in memory: %s", exc)

    def _spool_works(self) -> None:
        if self._spool_fails:
            self._spool_fails = False
            logger.warning("the spool can be used again")


def _over(reply: wire.EventsReply) -> GuardConsumeOverbudgetError:
    details = {} if reply.budget is None else {"budget": reply.budget}
    return GuardConsumeOverbudgetError(
        reason="a reported cost went over what was reserved for its call",
        details=details,
        status_code=422,
    )
