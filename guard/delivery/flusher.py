"""Delivers the buffered events: in their own batches, and along with gate requests.

While the gateway is unreachable the events wait in memory, or on disk when there is a spool. At any
moment each event is in the buffer, in flight (a batch or attached to a gate request), on disk,
delivered, or counted in ``events_lost``. Where a failure leaves it open whether an event arrived,
it stays and is sent again: the gateway charges it once, by its id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
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
from guard.core.buffer import Record
from guard.core.events import batch_bytes, fitting, settled
from guard.core.retry import Backoff
from guard.delivery.batch import Batch, encoded
from guard.delivery.loss_report import Losses
from guard.delivery.outbox import Outbox
from guard.delivery.spool import Spool
from guard.delivery.spooler import Spooler
from guard.loop.quiet import until_pulse_s
from guard.settings import Settings
from guard.transport.client import GatewayClient
from guard.transport.replies import BodyRefusedError, UnreadableReplyError

logger = logging.getLogger("guard.events")

_GATE_EVENTS_MAX: Final = 200
"""Maximum events that go along with one gate request: a caller is waiting for its answer."""

_GATE_LOOKED_AT_MAX: Final = 2000
"""Maximum events of each lane that are searched for them."""

_GATE_BYTES_MAX: Final = 128 * 1024
"""Maximum size of them together."""

_BACKLOG_BATCHES: Final = 4
"""Above this many batches in the buffer, batches grow to the gateway's limit."""

_NAP_S: Final = 0.01
"""How long events gather while many are recorded, so that batches fill up and callers need not wake
the loop for each event."""

_AFTER_FAILURE: Final = Backoff(base_s=1.0, cap_s=15.0)


Deliver = Callable[[], Awaitable[GuardError | None]]
OnDecision = Callable[[str | None, str | None, wire.EventsReply], None]


class Flusher:
    """Sends the events in the buffer and the spool, one batch at a time.

    Runs on the background loop, except :meth:`store_rest` and :meth:`give_up`, which the thread
    that ends the process calls. :attr:`in_flight` is read by any thread.

    Args:
        outbox: where callers put their records; makes ids, and counts what is sent and lost.
        client: the gateway.
        settings: batch size and flush interval.
        on_error: called with errors for the hooks.
        on_decision: called with the workflow, run and decision of a reply while there is no
            control channel to deliver it.
        spool: events on disk, if there is a directory for them.
    """

    def __init__(
        self,
        outbox: Outbox,
        client: GatewayClient,
        settings: Settings,
        *,
        on_error: Callable[[BaseException], None],
        on_decision: OnDecision = lambda workflow_id, run_id, reply: None,
        spool: Spool | None = None,
    ) -> None:
        self._buffer = buffer = outbox.buffer
        self._client = client
        self._settings = settings
        self._ids = ids = outbox.ids
        self._health = health = outbox.health
        self._on_error = on_error
        self._on_decision = on_decision
        self._losses = Losses(buffer, health, ids)
        self._spooler = Spooler(spool, ids, self._losses)
        # Ends a sleep of `run`. Set on the loop: callers' threads schedule `wake` there.
        self._wake = asyncio.Event()
        # Held for each batch: `run`, `flush` and the last delivery take turns. Only its holder uses
        # `_in_flight`, and leaves it empty.
        self._one_flush = asyncio.Lock()
        # Batches that were taken from the buffer or the spool and are not settled, the next one
        # last. Other threads read it (`in_flight`, `_take_all`).
        self._in_flight: list[Batch] = []
        # Records that go along with gate requests, by the `id` of their list. Taking the entry out
        # is the right to settle or requeue them. Written on the loop, read by any thread.
        self._attached: dict[int, list[Record]] = {}
        # Upper bound of the records that are moving from the buffer into one of the two above. A
        # thread that counts at that moment may find a record twice, which is harmless; if it found
        # a record nowhere, everything would seem delivered, and a signal would end the process
        # without it.
        self._being_taken = 0
        # Serial numbers of events whose newest answer says success and cannot be read. They are
        # sent again; at the end they do not count as lost.
        self._in_doubt: set[int] = set()
        # Whether the newest delivery failed: one log line when that begins, and one when it ends.
        self._in_trouble = False
        # Whether the newest flush sent a batch or more: then events gather for a moment.
        self._busy = False
        # The gateway's limits; the session replaces them by those in its capabilities.
        self.limits = wire.Limits()

    @property
    def in_flight(self) -> int:
        """How many events have left the buffer and are not known to be at the gateway.

        Never too few; while records are being taken, too many.
        """
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
        # Failures in a row, and when the next try is due after one, by `time.monotonic()`.
        failures = 0
        next_try_s = 0.0
        while True:
            woken = await self._waited(interval_s)
            # 1. In an outage, before the next try: only move events to the disk, if there is one,
            #    which keeps room in the buffer. A wake-up (the gateway is back) ends the pause.
            if self._in_trouble and not woken and time.monotonic() < next_try_s:
                await self._spill()
                continue
            # 2. Send. A failure leaves the events in the buffer or on disk.
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
        """Sleep until there is something to do; False if the interval is over without a wake-up."""
        if not self._in_trouble:
            # `park` asks the buffer to wake this, unless enough has arrived already: checked under
            # the buffer's lock, so that no wake-up is lost.
            if self._busy and await self._napped():
                return True
            if not self._buffer.park():
                return True
        # After a failure a full batch is not urgent, so the buffer is not asked to wake this.
        return await self._woken(until_pulse_s(interval_s))

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
            # Cleared here, before the next look at the buffer: a wake-up after it ends the next
            # sleep.
            self._wake.clear()
        return True

    async def flush(self, deliver: Deliver | None = None) -> None:
        """Send everything in the buffer and on disk.

        Args:
            deliver: tries as often as it wants; once, if None.

        Raises:
            BreakerTransportError: the gateway did not accept it, and it is not on disk either; the
                events stay buffered.
            TimeoutError: ``deliver`` raised it.
        """
        lost_before = self._health.lost
        failure = await (deliver or self.deliver)()
        left = len(self._buffer)
        if failure is not None and (left or not self._spooler.has_disk):
            raise BreakerTransportError(
                f"{left} events are still buffered: {failure}",
                events_lost=self._health.lost - lost_before,
                buffer_size=left,
            ) from failure

    def belongs_to(self, account: bytes) -> None:
        """Deliver the events on disk of all secrets of an account (:attr:`Spool.account`)."""
        self._spooler.belongs_to(account)

    async def deliver(self) -> GuardError | None:
        """Send everything in the buffer and on disk; what cannot be sent goes to disk, if possible.

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
        # Callers may record as fast as this sends; the bound ends it nevertheless.
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
        """Send one batch from the buffer; return how many records were taken for it."""
        async with self._one_flush:
            self._losses.count_drops()
            # 1. Out of the buffer and into `_in_flight`. No `await` until the `try`, so that no
            #    cancellation falls in between.
            with self._taking():
                records = self._next_records()
                report = self._losses.report()
                if report is not None:
                    # First, because the reply's decision is about the last event's workflow.
                    records.insert(0, report)
                self._in_flight = [Batch([], records=records)]
            taken = len(records)
            try:
                if not records:
                    return 0
                # 2. Encode. Events beyond the gateway's limit go back, for the next batch.
                events, records, broken = encoded(records, self._ids)
                self._losses.lose(broken, "an event cannot be encoded")
                fits = fitting(events, self.limits.max_batch_bytes)
                # Into the buffer before it leaves `_in_flight`: twice for a moment, never nowhere.
                self._requeue(records[fits:])
                # 3. Send.
                self._in_flight = [Batch(events[:fits], records=records[:fits])]
                if fits:
                    await self._deliver()
            except Exception:
                # To disk at once: the process may be killed. Not when this is cancelled, as there
                # is no time for the disk then: the batches go back to the buffer.
                await self._store_in_flight()
                raise
            finally:  # also when cancelled, at any point
                for batch in self._in_flight:
                    self._requeue(batch.records)
                self._in_flight = []
            return taken

    @contextlib.contextmanager
    def _taking(self) -> Iterator[None]:
        """Count all buffered records as in flight too, while some of them are being taken."""
        self._being_taken = len(self._buffer)
        try:
            yield
        finally:
            self._being_taken = 0

    def _next_records(self) -> list[Record]:
        """Take the records of the next batch out of the buffer."""
        most = self._settings.batch_size
        if len(self._buffer) > most * _BACKLOG_BATCHES:
            most = max(most, self.limits.max_batch_events)
        most = min(most, self.limits.max_batch_events)
        records = self._buffer.take(most)
        if records and self._health.channel == "none":
            # A reply has the decision for the workflow of the batch's last event. Without a control
            # channel that is the only way to learn of a kill, so each workflow gets its own
            # batches.
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
        while self._in_flight:
            left = await self._spooler.store(self._in_flight[-1].records)
            if left:
                self._in_flight[-1] = Batch([], records=left)
                return
            self._in_flight.pop()

    async def _send_spooled(self) -> int:
        """Claim one batch from the spool and send it; return how many events it had."""
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
            finally:  # also when cancelled
                # Claimed but not sent, or not settled: any process may deliver these rows.
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
            # Taken off the list once it is settled: until then the caller puts it back, whatever
            # happens in here.
            batch = self._in_flight[-1]
            # The id is the idempotency key of the client's retries. A batch that is put together
            # again later has a new one; its events are recognised by their own ids.
            now_ms = time.time_ns() // 1_000_000
            batch_id = self._ids.uuid7(now_ms)
            body = batch_bytes(batch_id, now_ms, batch.events)
            try:
                status, reply = await self._client.send(batch_id, body)
            except BodyRefusedError as exc:
                # 1. Too large, or one event cannot be read: halve it until that event is alone.
                if len(batch.events) > 1:
                    self._in_flight[-1:] = batch.halves()
                    continue
                # 2. That one: it will never be accepted, and must not hold up the others.
                self._losses.lose(1 - batch.losses, f"the gateway cannot take an event: {exc}")
            except UnreadableReplyError:
                if len(self._in_doubt) > self._buffer.capacity:  # most of them were shed since
                    self._in_doubt.clear()
                self._in_doubt.update(record.serial for record in batch.records)
                raise
            else:
                # 3. Accepted, perhaps without some events, or over a reservation (422).
                self._count(len(batch.events) - batch.losses, reply.rejected)
                self._in_doubt.difference_update(record.serial for record in batch.records)
                if status == 422:
                    self._on_error(_over(reply))
                if batch.records and self._health.channel == "none":
                    workflow_id, run_id = batch.records[-1].event_fields[:2]
                    self._on_decision(workflow_id, run_id, reply)
                if self._in_trouble:
                    self._in_trouble = False
                    logger.warning("events are delivered again")
            # Off the list before the `await`: if that is cancelled, the delivered rows stay on disk
            # and are sent again when their claim expires, and charged once.
            self._in_flight.pop()
            settled(batch.records)
            if batch.records:
                self._health.settled_s = time.monotonic()
            if batch.losses:
                self._losses.reported()
            await self._spooler.settle(batch.rows)

    # -- along with gate requests --------------------------------------------------------------

    def attach(self, request: wire.GateRequest) -> list[Record]:
        """Put the buffered events of a request's workflow into it.

        So the gateway decides with these costs charged.

        Returns:
            The records; the caller passes them to :meth:`delivered` or :meth:`requeue`.
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
            # By the list's identity, which stays unique as long as the entry keeps the list alive.
            self._attached[id(records)] = records
        request.events = cast("list[wire.Event]", [msgspec.Raw(event) for event in events[:fits]])
        return records

    def delivered(self, records: list[Record], outcome: wire.EventsOutcome | None) -> None:
        """Count attached records as delivered, and wake the delivery of the others.

        Does nothing to records that :meth:`take_back` has put back meanwhile.
        """
        if id(records) in self._attached:
            self._count(len(records), outcome.rejected if outcome is not None else [])
            settled(records)
            del self._attached[id(records)]
        if len(self._buffer) and not self._in_trouble:
            self._wake.set()

    def requeue(self, records: list[Record]) -> None:
        """Put attached records back into the buffer: their request failed, or its answer is lost.

        The gateway may have them already; it charges a repeated event once.
        """
        if id(records) in self._attached:
            self._buffer.put_back(records)
            del self._attached[id(records)]

    def take_back(self) -> bool:
        """Put the records of unanswered requests back into the buffer; False if there are none.

        They may arrive twice then, and are charged once.
        """
        attached = list(self._attached.values())
        for records in attached:
            self.requeue(records)
        return bool(attached)

    # -- undelivered events -------------------------------------------------------------------

    def _requeue(self, records: Sequence[Record]) -> None:
        """Put records back into the buffer, except the loss report, which waits in ``Losses``."""
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
        """Store all undelivered events in the spool; blocks, and runs off the loop.

        For a signal handler: the process may end at any moment, or continue. Then batches that are
        under way are delivered as well, and charged once.

        Returns:
            Whether everything is on disk.
        """
        if not self._spooler.has_disk:
            return False
        left = self._spooler.store_last(self._take_all())
        self._spooler.note_losses()
        self._buffer.put_back(left)
        return not left

    def _take_all(self) -> list[Record]:
        """Take everything out of the buffer, and a copy of what is in flight; from any thread.

        The loop may move records between the two meanwhile, so the buffer is read twice, and a
        record that was found twice is returned once.
        """
        left = self._buffer.take(len(self._buffer))
        for batch in self._in_flight:  # the loop is stuck, or they would be back in the buffer
            left += (each for each in batch.records if not self._losses.is_report(each))
        for records in list(self._attached.values()):
            left += records
        # A stuck loop may have resumed: take the records that it has requeued since the first look.
        left += self._buffer.take(len(self._buffer))
        return list({id(record): record for record in left}.values())

    def give_up(self) -> tuple[int, int]:
        """Store what is left in the spool, or count it as lost; the end of delivery.

        Blocks. Called once the session is closed, or the loop does not answer.

        Returns:
            How many events were lost, and how many more were accepted with an answer that cannot
            be read.
        """
        self._losses.count_drops()
        left = self._take_all()
        lost_before = self._health.lost
        unstored = self._spooler.store_last(left)
        in_doubt = sum(record.serial in self._in_doubt for record in unstored)
        self._health.sent += in_doubt
        lost = len(unstored) - in_doubt
        if self._spooler.has_disk:
            self._losses.lose(lost, "neither the gateway nor the disk has taken them")
        else:
            self._health.lose(lost)
        # The report under way, and one of what was lost since.
        self._losses.count_drops()
        self._spooler.note_losses()
        self._losses.reported()
        self._spooler.note_losses()
        self._spooler.close()
        return self._health.lost - lost_before, in_doubt

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
            return  # `shutdown` counts and reports lost events itself
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
