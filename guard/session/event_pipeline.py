"""The events of one process: recorded by callers, delivered to the gateway or written to disk."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import threading
import time
from pathlib import Path
from typing import Any, Final

from guard.breaker.exceptions import BreakerTransportError, GuardError
from guard.core.buffer import EventBuffer, Record
from guard.core.events import InstrumentedCall
from guard.core.ids import IdFactory
from guard.core.leases import LeaseBook
from guard.delivery.health import Health
from guard.delivery.journal import Journal, JournalEntry
from guard.delivery.last_delivery import Patience, deliver_until
from guard.delivery.outbox import Outbox
from guard.delivery.spool import owner_of
from guard.loop import LoopClosedError
from guard.loop.threads import ServiceLoop
from guard.scope.scope import Scope, current_scope
from guard.session.exit_hooks import ExitHooks
from guard.session.link import Link
from guard.settings import Settings

logger = logging.getLogger("guard.events")

_CLOSE_SHARE: Final = 0.2
"""Share of a shutdown's time reserved for closing the connections and the thread."""
_CLOSE_MAX_S: Final = 2.0
"""The most that is reserved, in seconds."""


def _for_closing_s(timeout_s: float) -> float:
    """Return how much of a shutdown's time is kept for closing the connections and the thread."""
    return min(_CLOSE_MAX_S, _CLOSE_SHARE * timeout_s)


_OPEN_AGAIN_S: Final = 5.0
"""How long a journal that could not be opened is not tried again: the disk may be full."""

_inherited: list[Outbox] = []
"""The parent's events in a forked child, which must neither deliver them nor count them as lost."""


class EventPipeline:
    """Takes events from any thread; each is delivered, written to disk or counted as lost.

    Args:
        settings: sizes and intervals.
        link: to the gateway.
        exits: installs the exit hooks once there is something to deliver.
        leases: notified of spending without a hold.

    Attributes:
        outbox: the events that are not delivered yet.
        ids, buffer, health: the outbox's, for callers that cannot afford another lookup.
    """

    def __init__(self, settings: Settings, link: Link, exits: ExitHooks, leases: LeaseBook) -> None:
        self._leases = leases
        self._settings = settings
        self._link = link
        self._background = link.background
        self._exits = exits
        self._fresh_process()

    def _fresh_process(self) -> None:
        self.outbox = Outbox(self._settings, self._wake)
        self.ids: IdFactory = self.outbox.ids
        self.buffer: EventBuffer = self.outbox.buffer
        self.health: Health = self.outbox.health
        # Whether the first event of this process has begun to open the session. Set by any thread
        # without a lock: two first events connect twice, and `Link.connect` shares one attempt.
        self._connecting = False
        # Guards the opening of the journal, so that one process has one file.
        self._opening = threading.Lock()
        # Set once, under `_opening`; any thread reads it without.
        self._journal: Journal | None = None
        # Why the last delivery failed, for an account that ends before its loop: `end` sets it on
        # the loop, `conclude` reads it afterwards.
        self._failure: BaseException | None = None
        # When to try again to open it, by `time.monotonic()`: not before each request.
        self._open_again_s = 0.0
        # The journal's state: `open`, `none` without a spool, `failed` when it cannot be written.
        self.journal_state = "none"

    def after_fork(self) -> None:
        """Reset in a forked child; keep references so that the parent's finalisers never run."""
        _inherited.append(self.outbox)
        if self._journal is not None:
            self._journal.forget()
        self._link.after_fork()
        self._fresh_process()

    # -- recording ----------------------------------------------------------------------------

    def record(
        self, kind: str, payload: Any, scope: Scope | None = None, at_ns: int | None = None
    ) -> int:
        """Put an event into the buffer; never blocks. Returns the event's serial number."""
        entry = payload.entry if type(payload) is InstrumentedCall else None
        serial = next(self.ids.count) if entry is None else entry.serial
        if self.health.is_closed:
            self.health.lose(1)  # delivery has ended
            return serial
        if scope is None:
            scope = current_scope.get()
        self.buffer.append(
            Record(kind, at_ns or time.time_ns(), serial, scope.event_fields, payload)
        )
        # Spent without a hold: the workflow's next call asks, and takes this event along. The mark
        # comes after the event: `LeaseBook.ask` removes the mark and then takes the events, so it
        # cannot remove the mark of an event that it does not find.
        if kind == "llm" and getattr(payload, "reservation_id", None) is None:
            self._leases.metered.add(scope.workflow_id)
            if scope.call is not None:
                scope.call.metered = True
        return serial

    def begin(self, reservation_id: str, amount: int, model: str | None) -> JournalEntry | None:
        """Note in the journal that a request is about to be sent; None where there is none.

        Args:
            reservation_id: the reservation or lease that pays for it.
            amount: what it can cost, in nano-dollars.
            model: the model that was asked for.
        """
        directory = self._settings.spool_dir
        if self._journal is None and directory is not None:
            self._open_journal(directory)
        journal = self._journal
        if journal is None:
            return None
        # None also if all of its slots are in use, or it is closed.
        now_ms, serial = time.time_ns() // 1_000_000, next(self.ids.count)
        return journal.begin(reservation_id, amount, model, now_ms, serial)

    def _open_journal(self, directory: Path) -> None:
        if time.monotonic() < self._open_again_s:
            return
        owner = owner_of(self._settings.api_url, self._settings.owner_key)
        with self._opening:
            # Another thread has opened it, or has just tried.
            if self._journal is not None or time.monotonic() < self._open_again_s:
                return
            try:
                self._journal = Journal(directory, owner, self.ids)
                self.journal_state = "open"
            except OSError as exc:
                self._open_again_s = time.monotonic() + _OPEN_AGAIN_S
                if self.journal_state != "failed":
                    self.journal_state = "failed"
                    logger.warning("open requests cannot be written down: %s", exc.strerror)

    def _wake(self) -> bool:
        """Wake the flusher; in a fresh process, start it first. Does not wait for the gateway.

        Called by the thread whose event fills the buffer up to its watermark. False means that the
        buffer should try again later.
        """
        session = self._link.session
        if session is not None:
            return self._background.call_soon(session.flusher.wake)
        if self._connecting or self.health.is_closed:
            return True
        self._connecting = True
        try:
            self._exits.install()
            self._background.submit(self._link.connect)
        except RuntimeError:
            # Such as no thread can be started. The event stays buffered.
            self._connecting = False
            logger.debug("the background loop cannot start now", exc_info=True)
            return False
        return True

    # -- delivering ---------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Deliver everything that is buffered now and wait for it.

        Args:
            timeout: how long to try while no batch is accepted, in seconds; once, if None.

        Raises:
            BreakerTransportError: some events were neither delivered nor written to disk.
            RuntimeError: called on the background loop's thread, which cannot wait for itself.
        """
        patience = None if timeout is None else Patience(timeout, self.health)
        try:
            left_s = None if patience is None else patience.left_s
            self._background.run(self._flush, patience, timeout_s=left_s)
        except TimeoutError:
            raise BreakerTransportError(
                "the events were not delivered in time", buffer_size=self.waiting
            ) from None
        except (LoopClosedError, concurrent.futures.CancelledError):
            raise BreakerTransportError("guard was shut down") from None

    async def _flush(self, patience: Patience | None) -> None:
        session = await self._link.open()
        deliver = functools.partial(self.deliver, patience, is_last=False) if patience else None
        await session.flusher.flush(deliver)

    async def deliver(self, patience: Patience, *, is_last: bool = True) -> GuardError | None:
        """Deliver everything while there is time; on the background loop.

        Args:
            patience: how much time there is.
            is_last: whether also events are sent that wait for the answer to a question.

        Returns:
            Why not everything could be delivered; None when it was.

        Raises:
            TimeoutError: no time is left.
        """
        session = await self._link.open()
        tries = deliver_until(patience, session.flusher, session.client, is_last=is_last)
        return await patience.during(tries)

    @property
    def waiting(self) -> int:
        """Events in memory: buffered, or in flight and not yet acknowledged."""
        session = self._link.session
        return len(self.buffer) + (0 if session is None else session.flusher.in_flight)

    # -- the end ------------------------------------------------------------------------------

    def finish(self, timeout_s: float, *, flush: bool) -> BreakerTransportError | None:
        """Deliver, close the connections and end the thread; the rest goes to disk.

        What cannot be delivered at once is tried again while there is time. The order: events
        before the session, because closing the session closes the leases that pay for them; the
        loop after the session, which runs on it; the disk last, when no task can take an event any
        more.
        Whatever fails on the way, the loop is closed and each event ends up on disk or is counted.

        Args:
            timeout_s: how long all of it may take while no batch is accepted, in seconds.
            flush: whether to deliver; without it, and without a spool, the events are lost.

        Returns:
            The exception to raise if events were lost, else None.
        """
        patience = Patience(timeout_s, self.health)
        is_connected = self._link.session is not None and self._background.is_running
        try:
            if is_connected or (flush and self._has_events):
                self._end_in_time(patience, flush=flush)
        finally:
            self._background.close(max(0.05, patience.left_s()))
            error = self.conclude(flush=flush)
        return error

    def _end_in_time(self, patience: Patience, *, flush: bool) -> None:
        """Run :meth:`end` on the loop, and wait while there is time for it."""
        ending = functools.partial(self.end, patience, flush=flush)
        kept_s = _for_closing_s(patience.seconds) / 2  # the thread has to end as well
        try:
            self._background.run(ending, timeout_s=lambda: patience.left_s() - kept_s)
        except TimeoutError:
            self._failure = self._failure or TimeoutError("no answer in time")
        except (LoopClosedError, concurrent.futures.CancelledError):
            logger.debug("the loop has ended before the session")
        except RuntimeError:  # no thread can be started: the interpreter is ending
            self._failure = self._deliver_here(patience)

    @property
    def _has_events(self) -> bool:
        session = self._link.session
        return bool(self.waiting or (session is not None and session.flusher.spooled))

    async def end(self, patience: Patience, *, flush: bool) -> None:
        """Deliver and close the session, but not the loop; :meth:`conclude` must follow.

        Args:
            patience: how long both may go on.
            flush: whether to deliver.
        """
        for_closing_s = _for_closing_s(patience.seconds)
        if flush and self._has_events:
            try:
                tries = Patience(patience.seconds - for_closing_s, self.health)
                self._failure = await self.deliver(tries)
            except TimeoutError as exc:
                self._failure = exc
        session = self._link.session
        if session is not None:
            await session.close(max(0.05, patience.left_s() - for_closing_s / 2))

    def conclude(self, *, flush: bool) -> BreakerTransportError | None:
        """Store or count what :meth:`end` could not deliver; return what to raise for it."""
        failure, waiting = self._failure, self.waiting
        lost, in_doubt = self._give_up()
        # From here on `record` counts events as lost. One that was appended in between stays in the
        # buffer and is counted with its rest.
        self.health.is_closed = True
        # After the events: what is on disk or delivered has cleared its slots. Those still open are
        # charged by the next process.
        if self._journal is not None:
            self._journal.close()
        if not flush or not (lost or in_doubt):
            return None
        text = f"{lost} events could not be delivered"
        if in_doubt:
            text += f", {in_doubt} were accepted with an answer that cannot be read"
        error = BreakerTransportError(
            text + (f": {failure}" if failure else ""),
            events_lost=lost,
            buffer_size=waiting,
        )
        error.__cause__ = failure
        return error

    def _deliver_here(self, patience: Patience) -> BaseException | None:
        """Deliver on a loop in the calling thread, where none can be started in another."""

        async def deliver() -> BaseException | None:
            session = self._link.session = self._link.make_session()
            try:
                return await self.deliver(patience)
            finally:
                await session.close()

        loop = ServiceLoop()
        delivering = deliver()
        try:
            return loop.run_until_complete(delivering)
        except (TimeoutError, RuntimeError) as exc:
            return exc
        finally:
            delivering.close()
            loop.close()

    def _give_up(self) -> tuple[int, int]:
        """Write what is left to disk; return as :meth:`Flusher.give_up`."""
        session = self._link.session
        if session is None:
            if not self.waiting:
                return 0, 0
            session = self._link.make_session()
        return session.flusher.give_up()
