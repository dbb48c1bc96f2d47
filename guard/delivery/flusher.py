"""Delivers the buffered events: in their own batches, and along with gate requests.

While the gateway is unreachable the events wait in memory, or on disk when there is a spool. Each
event ends up delivered, in the buffer, on disk or in ``events_lost``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

import msgspec

from guard.breaker.exceptions import (
    SHUT_DOWN,
    BreakerTransportError,
    GuardConsumeOverbudgetError,
    GuardError,
    RateLimitError,
)
from guard.core import wire
from guard.core.buffer import EventBuffer, Record
from guard.core.events import batch_bytes, fitting, settled
from guard.core.ids import IdFactory
from guard.core.retry import Backoff
from guard.delivery.batch import Batch, encoded
from guard.delivery.health import Health
from guard.delivery.loss_report import Losses
from guard.delivery.spool import Spool
from guard.delivery.spooler import Spooler
from guard.settings import Settings
from guard.transport.client import GatewayClient
from guard.transport.replies import BodyRefusedError

logger = logging.getLogger("guard.events")

_GATE_EVENTS_MAX: Final = 200
"""Maximum events that go along with one gate request: a caller is waiting for its answer."""

_GATE_LOOKED_AT_MAX: Final = 2000
"""Maximum events of each lane that are searched for them."""

_GATE_BYTES_MAX: Final = 128 * 1024
_BACKLOG_BATCHES: Final = 4
"""Above this many batches in the buffer, batches grow to the gateway's limit."""

_NAP_S: Final = 0.01
"""How long events gather while many are recorded: batches fill up, and callers need not wake the
loop for each one."""

_AFTER_FAILURE: Final = Backoff(base_s=1.0, cap_s=15.0)


OnDecision = Callable[[str | None, str | None, wire.EventsReply], None]


class Flusher:
    """Sends what the buffer and the spool hold; runs on the background loop, one batch in flight.

    Args:
        buffer: where callers put their records.
        client: the gateway.
        settings: batch size and flush interval.
        ids: event and batch ids.
        health: where sent and lost events are counted.
        on_error: called with errors for the hooks.
        on_decision: called with the workflow, run and decision of a reply while there is no
            control channel to deliver it.
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
        on_error: Callable[[BaseException], None],
        on_decision: OnDecision = lambda workflow_id, run_id, reply: None,
        spool: Spool | None = None,
    ) -> None:
        self._buffer = buffer
        self._client = client
        self._settings = settings
        self._ids = ids
        self._health = health
        self._on_error = on_error
        self._on_decision = on_decision
        self._losses = Losses(buffer, health, ids)
        self._spooler = Spooler(spool, ids, self._losses)
        # Ends a sleep of `run`.
        self._wake = asyncio.Event()
        # Held for each batch: `run` and `flush` take turns, and `_in_flight` has one owner.
        self._one_flush = asyncio.Lock()
        # What was taken from the buffer or the spool and is not settled; sent from the end.
        self._in_flight: list[Batch] = []
        self._attached: dict[int, list[Record]] = {}
        # At most how many records are on their way out of the buffer. A thread that counts just
        # then may find a record twice, which is harmless; if it found it nowhere, everything would
        # seem delivered, and a signal would end the process without it.
        self._being_taken = 0
        # Whether the newest delivery failed.
        self._in_trouble = False
        # Whether the newest flush sent a batch or more: then events gather for a moment.
        self._busy = False
        self.limits = wire.Limits()

    @property
    def in_flight(self) -> int:
        """How many events are not in the buffer and not known to be at the gateway."""
        in_batches = sum(len(batch.records) for batch in self._in_flight)
        attached = sum(len(records) for records in list(self._attached.values()))
        return self._being_taken + in_batches + attached

    @property
    def spooled(self) -> int:
        """How many events wait on disk."""
        return self._spooler.spooled

    def wake(self) -> None:
        """Flush now instead of at the end of the interval, or of the delay after a failure."""
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
                # Until the next try only the disk, if there is one: memory stays free.
                await self._spill()
                continue
            try:
                self._busy = await self._drain(leaving_less=True) >= self._settings.batch_size
            except Exception as exc:  # noqa: BLE001  # logged, counted and retried
                self._trouble(exc)
                pause_s = _AFTER_FAILURE.delay_s(failures, random.random())
                if isinstance(exc, RateLimitError) and exc.retry_after is not None:
                    pause_s = max(pause_s, exc.retry_after)
                next_try_s = time.monotonic() + max(interval_s, pause_s)
                failures += 1
            else:
                failures = 0

    async def _waited(self, interval_s: float) -> bool:
        """Sleep until there is something to do; True when woken for it."""
        if not self._in_trouble:
            if self._busy and await self._napped():
                return True
            if not self._buffer.park():
                return True
        # After a failure a full batch is not urgent, so the buffer is not asked to signal it.
        return await self._woken(interval_s)

    async def _napped(self) -> bool:
        """Let events gather for a moment; True when they amount to a batch."""
        if self._buffer.park(max(self._settings.batch_size, self._buffer.capacity // 8)):
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
        """Send everything in the buffer.

        Raises:
            BreakerTransportError: the gateway did not accept it; what can be kept stays buffered.
        """
        lost_before = self._health.lost
        failure = await self.deliver()
        left = len(self._buffer)
        if failure is not None and (left or not self._spooler.has_disk):
            raise BreakerTransportError(
                f"{left} events are still buffered: {failure}",
                events_lost=self._health.lost - lost_before,
                buffer_size=left,
            ) from failure

    async def deliver(self) -> GuardError | None:
        """Send everything in the buffer and on disk; what cannot be sent goes to disk, if there is.

        Returns:
            Why the gateway did not accept everything; None when it did.
        """
        self._spooler.look_soon()
        try:
            await self._drain()
        except GuardError as exc:
            self._trouble(exc)
            await self._spill()
            return exc
        return None

    async def _drain(self, *, leaving_less: bool = False) -> int:
        """Send until buffer and spool are empty, without waiting for callers that keep recording.

        Args:
            leaving_less: leave events that arrive meanwhile if they are less than a batch.

        Returns:
            How many events were sent.
        """
        due = len(self._buffer)
        # Callers may record as fast as this sends; there is an end to it nevertheless.
        most = due + self._buffer.capacity
        total = 0
        while total < most:
            sent = await self._send_buffered()
            left = len(self._buffer)
            if left < self._settings.batch_size:  # new events go first
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
            with self._taking():
                records = self._next_records()
                report = self._losses.report()
                if report is not None:
                    records.append(report)
                self._in_flight = [Batch([], records=records)]
            taken = len(records)
            try:
                if not records:
                    return 0
                events, records, broken = encoded(records, self._ids)
                self._losses.lose(broken, "an event cannot be encoded")
                fits = fitting(events, self.limits.max_batch_bytes)
                self._requeue(records[fits:])
                self._in_flight = [Batch(events[:fits], records=records[:fits])]
                if fits:
                    await self._deliver()
            except Exception:
                # Not when cancelled: there is no time for the disk then, and the buffer has room.
                await self._store_in_flight()
                raise
            finally:  # also when cancelled, at any point
                for batch in self._in_flight:
                    self._requeue(batch.records)
                self._in_flight = []
            return taken

    @contextlib.contextmanager
    def _taking(self) -> Iterator[None]:
        """Count all that is buffered as in flight too, until what is taken is noted somewhere."""
        self._being_taken = len(self._buffer)
        try:
            yield
        finally:
            self._being_taken = 0

    def _next_records(self) -> list[Record]:
        most = self._settings.batch_size
        if len(self._buffer) > most * _BACKLOG_BATCHES:
            most = max(most, self.limits.max_batch_events)
        most = min(most, self.limits.max_batch_events)
        records = self._buffer.take(most)
        if records and self._health.channel == "none":
            # A reply decides about the workflow of its last event. Without a control channel it is
            # the only way to learn of a kill, so each workflow gets batches of its own.
            workflow_id = records[0].event_fields[0]
            own = [each for each in records if each.event_fields[0] == workflow_id]
            if len(own) < len(records):
                self._buffer.put_back(
                    each for each in records if each.event_fields[0] != workflow_id
                )
                return own
        return records

    async def _store_in_flight(self) -> None:
        """Store the undelivered batches in the spool, if there is one."""
        while self._in_flight and await self._spooler.store(self._in_flight[-1].records):
            self._in_flight.pop()

    async def _send_spooled(self) -> int:
        if not self._spooler.has_disk:
            return 0
        async with self._one_flush:
            claimed = await self._spooler.claim(self.limits.max_batch_events)
            if not claimed:
                return 0
            events = [event.body for event in claimed]
            rows = [event.row for event in claimed]
            fits = fitting(events, self.limits.max_batch_bytes)
            self._in_flight = [Batch(events[:fits], rows=rows[:fits])]
            try:
                await self._deliver()
            finally:
                left = rows[fits:]
                for batch in self._in_flight:
                    left += batch.rows
                self._in_flight = []
                await self._spooler.release(left)
            return fits

    async def _deliver(self) -> None:
        """Send the batches in flight; each leaves the list once it is settled.

        Raises:
            GuardError: the gateway does not accept the rest now.
        """
        while self._in_flight:
            # Popped once it is settled: until then the caller puts it back, whatever happens here.
            batch = self._in_flight[-1]
            now_ms = time.time_ns() // 1_000_000
            batch_id = self._ids.uuid7(now_ms)
            body = batch_bytes(batch_id, now_ms, batch.events)
            try:
                status, reply = await self._client.send(batch_id, body)
            except BodyRefusedError as exc:
                if len(batch.events) > 1:  # too large, or one event spoils the batch: halve it
                    self._in_flight[-1:] = batch.halves()
                    continue
                self._losses.lose(1, f"the gateway cannot take an event: {exc}")
            else:
                self._count(len(batch.events) - batch.losses, reply.rejected)
                if status == 422:
                    self._on_error(_over(reply))
                if batch.records and self._health.channel == "none":
                    workflow_id, run_id = batch.records[-1].event_fields[:2]
                    self._on_decision(workflow_id, run_id, reply)
                if self._in_trouble:
                    self._in_trouble = False
                    logger.warning("events are delivered again")
            # If this is cancelled from here on, rows that were delivered stay on disk and are sent
            # again; the gateway charges an event once.
            self._in_flight.pop()
            settled(batch.records)
            if batch.losses:
                self._losses.reported()
            await self._spooler.settle(batch.rows)

    # -- along with gate requests --------------------------------------------------------------

    def attach(self, request: wire.GateRequest) -> list[Record]:
        """Put what is buffered for a request's workflow into it, so that it counts there already.

        Returns:
            The records, for :meth:`delivered` or :meth:`requeue`.
        """
        request.events = []
        if not len(self._buffer):
            return []
        workflow_id = request.workflow_id
        # No `await` in here, so no lock: nothing else on the loop takes records meanwhile.
        with self._taking():
            records = self._buffer.take_if(
                lambda record: record.event_fields[0] == workflow_id,
                _GATE_EVENTS_MAX,
                _GATE_LOOKED_AT_MAX,
            )
            if not records:
                return records
            events, records, broken = encoded(records, self._ids)
            self._losses.lose(broken, "an event cannot be encoded")
            fits = fitting(events, _GATE_BYTES_MAX)
            if fits < len(records):
                self._buffer.put_back(records[fits:])
                del records[fits:]
            self._attached[id(records)] = records
        request.events = cast("list[wire.Event]", [msgspec.Raw(event) for event in events[:fits]])
        return records

    def delivered(self, records: list[Record], outcome: wire.EventsOutcome | None) -> None:
        """Count attached records as delivered, and deliver what the request did not take along."""
        if id(records) in self._attached:
            self._count(len(records), outcome.rejected if outcome is not None else [])
            settled(records)
            del self._attached[id(records)]
        if len(self._buffer) and not self._in_trouble:
            self._wake.set()

    def requeue(self, records: list[Record]) -> None:
        """Put attached records back into the buffer; the ledger charges a repeated one once."""
        if id(records) in self._attached:
            self._buffer.put_back(records)
            del self._attached[id(records)]

    def take_back(self) -> bool:
        """Put what goes along with unanswered requests back into the buffer; False if nothing does.

        It may arrive twice then, and is charged once.
        """
        attached = list(self._attached.values())
        for records in attached:
            self.requeue(records)
        return bool(attached)

    # -- undelivered events -------------------------------------------------------------------

    def _requeue(self, records: Sequence[Record]) -> None:
        self._buffer.put_back(record for record in records if not self._losses.is_report(record))

    async def _spill(self) -> None:
        """Move buffered events to the spool, if there is one, while the gateway is unreachable."""
        if not self._spooler.has_disk:
            return
        while len(self._buffer):
            async with self._one_flush:
                with self._taking():
                    self._in_flight = [Batch([], records=self._buffer.take(1000))]
                try:
                    await self._store_in_flight()
                    if self._in_flight:
                        return
                finally:
                    for batch in self._in_flight:
                        self._requeue(batch.records)
                    self._in_flight = []

    def store_rest(self) -> bool:
        """Store in the spool what is in memory; blocks, and runs off the loop.

        The process may end at any moment, or go on: what is under way is delivered then, too, and
        is charged once.

        Returns:
            Whether everything is on disk.
        """
        if not self._spooler.has_disk:
            return False
        left = self._take_all()
        if self._spooler.store_last(left):
            self._buffer.put_back(left)
            return False
        return True

    def _take_all(self) -> list[Record]:
        """Take everything out of the buffer, and a copy of what is under way; from any thread."""
        left = self._buffer.take(len(self._buffer))
        for batch in self._in_flight:  # the loop is stuck, or they would be back in the buffer
            left += (each for each in batch.records if not self._losses.is_report(each))
        for records in list(self._attached.values()):
            left += records
        # A stuck loop may have resumed: take what it has requeued since the first take.
        left += self._buffer.take(len(self._buffer))
        return list({id(record): record for record in left}.values())

    def give_up(self) -> int:
        """Store what is left in the spool, or count it as lost; blocks, and runs off the loop.

        Returns:
            How many events were lost.
        """
        self._losses.count_drops()
        left = self._take_all()
        lost_before = self._health.lost
        self._health.lose(self._spooler.store_last(left))
        self._spooler.close()
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
        if self._in_trouble or getattr(exc, "error_code", None) == SHUT_DOWN:
            return  # `shutdown` counts and reports what is lost
        self._in_trouble = True
        where = self._spooler.where
        if isinstance(exc, GuardError):
            logger.warning("events are not delivered, they wait %s: %s", where, exc)
            self._on_error(exc)
        else:
            logger.error("events are not delivered, they wait %s", where, exc_info=exc)


def _over(reply: wire.EventsReply) -> GuardConsumeOverbudgetError:
    details = {} if reply.budget is None else {"budget": reply.budget}
    return GuardConsumeOverbudgetError(
        reason="a reported cost went over what was reserved for its call",
        details=details,
        status_code=422,
    )
