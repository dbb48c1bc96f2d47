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
from guard.core.buffer import EventBuffer, Record
from guard.core.events import batch_bytes, fitting
from guard.core.ids import IdFactory
from guard.core.retry import Backoff
from guard.delivery.batch import Parcel, encoded
from guard.delivery.health import Health
from guard.delivery.loss_report import Losses
from guard.delivery.spool import Spool
from guard.delivery.spooler import Keeping
from guard.settings import Settings
from guard.transport.client import BodyRefusedError, GatewayClient

logger = logging.getLogger("guard.runtime.event_pipeline")

_GATE_EVENTS_MAX: Final = 200
"""Most events that travel with one gate request: it is a caller who waits for it."""

_GATE_LOOKED_AT_MAX: Final = 2000
"""Most events of each lane that are looked at for that."""

_GATE_BYTES_MAX: Final = 128 * 1024
_BACKLOG_BATCHES: Final = 4
"""From this many batches on the buffer backs up, and batches grow to what the gateway takes."""

_NAP_S: Final = 0.01
"""How long events are left to gather while they come thick and fast: callers need not wake the
loop for every batch, and batches are full."""

_AFTER_FAILURE: Final = Backoff(base_s=1.0, cap_s=15.0)


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
        self._losses = Losses(buffer, health, ids)
        self._keeping = Keeping(buffer, spool, ids, self._losses)
        self._wake = asyncio.Event()
        self._one_flush = asyncio.Lock()
        self._hands: list[Parcel] = []
        self._luggage: dict[int, list[Record]] = {}
        self._in_trouble = False
        self._busy = False
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
        return self._keeping.spooled

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
                self._busy = await self._drain(leaving_less=True) >= self._settings.batch_size
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
        if not self._in_trouble:
            if self._busy and await self._napped():
                return True
            if not self._buffer.rest():
                return True
        # In trouble a full batch is no reason to hurry, so the buffer is not asked to tell of it.
        return await self._woken(interval_s)

    async def _napped(self) -> bool:
        """Let events gather for a moment; True when they have become a batch."""
        if self._buffer.rest(max(self._settings.batch_size, self._buffer.capacity // 8)):
            await self._woken(_NAP_S)
        return len(self._buffer) >= self._settings.batch_size

    async def _woken(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
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
        self._keeping.look_soon()
        try:
            await self._drain()
        except GuardError as exc:
            self._trouble(exc)
            await self._shelter()
            left = len(self._buffer)
            if left or not self._keeping.has_disk:
                raise BreakerTransportError(
                    f"{left} events are still buffered: {exc}",
                    events_lost=self._health.lost - lost_before,
                    buffer_size=left,
                ) from exc

    async def _drain(self, *, leaving_less: bool = False) -> int:
        """Send until buffer and spool are empty; whoever goes on recording is not waited for.

        Args:
            leaving_less: what came meanwhile and is less than a batch may wait for more.

        Returns:
            How many events were sent.
        """
        due = len(self._buffer)
        most = due + self._buffer.capacity
        total = 0
        while total < most:
            sent = await self._send_buffered()
            left = len(self._buffer)
            if left < self._settings.batch_size:  # what is new goes first
                spooled = await self._send_spooled()
                if leaving_less and not spooled and total + sent >= due:
                    return total + sent
                sent += spooled
            if not sent:
                break
            total += sent
        return total

    async def _send_buffered(self) -> int:
        async with self._one_flush:
            self._losses.count_drops()
            most = self._settings.batch_size
            if len(self._buffer) > most * _BACKLOG_BATCHES:
                most = max(most, self.limits.max_batch_events)
            records = self._buffer.take(min(most, self.limits.max_batch_events))
            report = self._losses.report()
            if report is not None:
                records.append(report)
            if not records:
                return 0
            taken = len(records)
            try:
                events, records, broken = encoded(records, self._ids)
                self._losses.lose(broken, "an event cannot be encoded")
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
                for parcel in self._hands:
                    await self._keeping.keep(parcel.records)
                raise
            finally:
                self._hands = []
            return taken

    async def _send_spooled(self) -> int:
        if not self._keeping.has_disk:
            return 0
        async with self._one_flush:
            claimed = await self._keeping.claim(self.limits.max_batch_events)
            if not claimed:
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
                await self._keeping.release(left)
            return fits

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
                status, reply = await self._client.send(batch_id, body)
            except BodyRefusedError as exc:
                if len(parcel.events) > 1:  # too large, or one event spoils the batch: halve it
                    self._hands[-1:] = parcel.halves()
                    continue
                self._losses.lose(1, f"the gateway cannot take an event: {exc}")
            else:
                self._count(len(parcel.events) - parcel.losses, reply.rejected)
                if status == 422:
                    self._told(_over(reply))
                if self._in_trouble:
                    self._in_trouble = False
                    logger.warning("events are delivered again")
            self._hands.pop()
            if parcel.losses:
                self._losses.reported()
            await self._keeping.settle(parcel.rows)

    # -- luggage of gate requests --------------------------------------------------------------

    def luggage(self, workflow_id: str | None) -> tuple[list[Record], list[wire.Event]]:
        """Take what is buffered for one workflow, to travel with its gate request.

        Returns:
            The records, for :meth:`arrived` or :meth:`came_back`, and their events.
        """
        records = self._buffer.take_if(
            lambda record: record.event_fields[0] == workflow_id,
            _GATE_EVENTS_MAX,
            _GATE_LOOKED_AT_MAX,
        )
        if not records:
            return records, []
        events, records, broken = encoded(records, self._ids)
        self._losses.lose(broken, "an event cannot be encoded")
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
        self._buffer.put_back(record for record in records if not self._losses.is_report(record))

    def _return_hands(self) -> None:
        for parcel in self._hands:
            self._return(parcel.records)

    async def _shelter(self) -> None:
        """While the gateway is away: bring what is buffered onto the disk, if there is one."""
        if not self._keeping.has_disk:
            return
        while len(self._buffer):
            async with self._one_flush:
                records = self._buffer.take(1000)
                self._hands = [Parcel([], records=records)]
                try:
                    if not await self._keeping.keep(records):
                        return
                finally:
                    self._hands = []

    def give_up(self) -> int:
        """The end: put what is left onto the disk, or count it as lost. Blocking, off the loop.

        Returns:
            How many events were lost by it.
        """
        self._losses.count_drops()
        left = self._buffer.take(len(self._buffer))
        for parcel in self._hands:  # the loop is stuck, or they would be back in the buffer
            left += (each for each in parcel.records if not self._losses.is_report(each))
        for records in self._luggage.values():
            left += records
        lost_before = self._health.lost
        self._health.lose(self._keeping.keep_at_the_end(left))
        self._keeping.close()
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

    def _trouble(self, exc: BaseException) -> None:
        if self._in_trouble:
            return
        self._in_trouble = True
        where = self._keeping.where
        if isinstance(exc, GuardError):
            logger.warning("events are not delivered, they wait %s: %s", where, exc)
            self._told(exc)
        else:
            logger.error("events are not delivered, they wait %s", where, exc_info=exc)


def _over(reply: wire.EventsReply) -> GuardConsumeOverbudgetError:
    details = {} if reply.budget is None else {"budget": reply.budget}
    return GuardConsumeOverbudgetError(
        reason="a reported cost went over what was reserved for its call",
        details=details,
        status_code=422,
    )
