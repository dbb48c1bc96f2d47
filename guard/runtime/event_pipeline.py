"""The events of one process: recorded by callers, delivered to the gateway or written to disk."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import copy
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from guard.breaker.exceptions import (
    SHUT_DOWN,
    BreakerTransportError,
    GuardError,
    GuardTransportError,
    was_shut_down,
)
from guard.core.buffer import EventBuffer, Record
from guard.core.ids import IdFactory
from guard.core.leases import LeaseBook
from guard.delivery.health import Health
from guard.loop import BackgroundLoop, LoopClosedError
from guard.loop.threads import ServiceLoop
from guard.runtime.exit_hooks import ExitHooks
from guard.scope.scope import Scope, current_scope
from guard.settings import Settings

if TYPE_CHECKING:  # the session imports httpx and websockets, which `import guard` must not
    from guard.runtime.session import Session

logger = logging.getLogger("guard.runtime.event_pipeline")

T = TypeVar("T")
Work = Callable[["Session"], Coroutine[Any, Any, T]]
"""Something to do with the session, on the background loop."""

_CLOSE_SHARE: Final = 0.2
"""Share of a shutdown's time reserved for closing the connections and the thread."""

_inherited: list[object] = []
"""Its parent's connections and spool, which a forked child must neither use nor close."""


class EventPipeline:
    """Takes events from any thread; each is delivered, written to disk or counted as lost.

    Args:
        settings: sizes and intervals.
        background: the loop that runs everything slow.
        make_session: creates the session with the gateway.
        exits: hooks the end of the process once there is something to deliver.
        leases: told of what is spent without a hold.
    """

    def __init__(
        self,
        settings: Settings,
        background: BackgroundLoop,
        make_session: Callable[[], Session],
        exits: ExitHooks,
        leases: LeaseBook,
    ) -> None:
        self._leases = leases
        self._settings = settings
        self._background = background
        self._make_session = make_session
        self._exits = exits
        self._fresh_process()

    def _fresh_process(self) -> None:
        self.ids = IdFactory()
        self.buffer = EventBuffer(self._settings.buffer_size, self._settings.batch_size, self._wake)
        self.health = Health(self._dropped)
        self.session: Session | None = None
        self._connecting = False
        self._attempt: asyncio.Task[Session] | None = None
        self._closed = False

    def after_fork(self) -> None:
        """Reset in a forked child; keep references so that the parent's finalisers never run."""
        _inherited.append((self.session, self.buffer))
        self._fresh_process()

    # -- recording ----------------------------------------------------------------------------

    def record(
        self, kind: str, payload: Any, scope: Scope | None = None, at_ns: int | None = None
    ) -> int:
        """Put an event into the buffer; never blocks. Returns the event's serial number."""
        serial = next(self.ids.count)
        if self._closed:
            self.health.lose(1)  # nobody is left to deliver it
            return serial
        if scope is None:
            scope = current_scope.get()
        self.buffer.append(
            Record(kind, at_ns or time.time_ns(), serial, scope.event_fields, payload)
        )
        if kind == "llm" and getattr(payload, "reservation_id", None) is None:
            self._leases.metered.add(scope.workflow_id)
            if scope.call is not None:
                scope.call.metered = True
        return serial

    def record_call(self, function: str, scope: Scope, duration_ms: float) -> None:
        """Put the closing event of a protected call that ended well into the buffer.

        The same as :meth:`record` with a ``span`` payload, in half of the time.
        """
        ids = self.ids
        record = Record(
            "span",
            time.time_ns(),
            next(ids.count),
            scope._event_fields or scope.event_fields,
            function,
            -1,
            0,
            duration_ms,
        )
        buffer = self.buffer
        lane = buffer.droppable
        # After the end it stays there, and is counted as lost.
        lane.append(record)
        if len(lane) >= lane.high_watermark:
            buffer.on_high_watermark()

    def _wake(self) -> bool:
        """Wake the flusher; in a fresh process, start it first. Does not wait for the gateway."""
        if self.session is not None:
            return self._background.call_soon(self.session.flusher.wake)
        if self._connecting or self._closed:
            return True
        self._connecting = True
        try:
            self._exits.install()
            self._background.submit(self.connect)
        except RuntimeError:
            self._connecting = False
            logger.debug("the background loop cannot start now", exc_info=True)
            return False
        return True

    async def connect(self) -> Session:
        """Open the session, probe the gateway and read its current directives.

        A gateway that cannot be reached is not an error. Concurrent callers share one
        attempt.

        Raises:
            GuardError: the key is refused, or the protocol is incompatible.
        """
        attempt = self._attempt
        if attempt is None or attempt.done():
            loop = asyncio.get_running_loop()
            attempt = loop.create_task(self._connect(), context=contextvars.Context())
            attempt.add_done_callback(_seen)
            self._attempt = attempt
        try:
            return await asyncio.shield(attempt)
        except GuardError as exc:
            raise copy.copy(exc) from exc.__cause__  # each caller gets its own traceback

    async def _connect(self) -> Session:
        session = await self.open_session()
        try:
            await session.probe()
        except GuardTransportError as exc:
            if exc.error_code == SHUT_DOWN:
                raise
            logger.warning("the gateway cannot be used yet: %s", exc)
        else:
            await session.caught_up()
        return session

    async def open_session(self) -> Session:
        """Return the session of this process; created on the loop, so there is no race."""
        if self.session is None:
            self._exits.install()  # a forked child may ask for a request before it has an event
            self.session = self._make_session()
            self.session.start_services(self._background)
        return self.session

    # -- delivering ---------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Deliver everything that is buffered now and wait for it.

        Args:
            timeout: total time in seconds; None waits for the gateway's own deadlines.

        Raises:
            BreakerTransportError: some events were neither delivered nor written to disk.
            RuntimeError: called on the background loop's thread, which cannot wait for itself.
        """
        try:
            self._background.run(self._flush, timeout_s=timeout)
        except TimeoutError:
            raise BreakerTransportError(
                "the events were not delivered in time", buffer_size=self.waiting
            ) from None
        except (LoopClosedError, concurrent.futures.CancelledError):
            raise BreakerTransportError("guard was shut down") from None

    async def _flush(self) -> None:
        await (await self.open_session()).flusher.flush()

    async def _flush_at_last(self) -> None:
        session = await self.open_session()
        # The gateway may be back, and there is no later.
        session.client.circuit.end_cooldown(now_s=time.monotonic())
        await session.flusher.flush()

    # -- asking -------------------------------------------------------------------------------

    def ask(self, question: Work[T], timeout_s: float) -> T:
        """Deliver what is buffered, then put a question to the gateway; blocks the thread.

        What cannot be delivered stays in ``waiting``, and the question is put all the same.

        Args:
            question: what to do with the session.
            timeout_s: total time for the delivery, and again for the question, in seconds.

        Raises:
            GuardError: no answer, or guard was shut down.
        """
        try:
            answer: T = self._background.run(
                self._ask, question, timeout_s, timeout_s=3 * timeout_s
            )
        except (LoopClosedError, concurrent.futures.CancelledError):
            raise was_shut_down() from None
        except TimeoutError:
            raise GuardTransportError(f"no answer within {3 * timeout_s:g} s") from None
        return answer

    async def ask_async(self, question: Work[T], timeout_s: float) -> T:
        """Like :meth:`ask`; the caller's loop goes on meanwhile."""
        try:
            return await self._background.run_async(self._ask, question, timeout_s)
        except LoopClosedError:
            raise was_shut_down() from None

    async def _ask(self, question: Work[T], timeout_s: float) -> T:
        session = await self.open_session()
        with contextlib.suppress(GuardError, BreakerTransportError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                await session.flusher.flush()
        return await question(session)

    @property
    def waiting(self) -> int:
        """Events in memory: buffered, or in flight and not yet acknowledged."""
        session = self.session
        return len(self.buffer) + (0 if session is None else session.flusher.in_flight)

    def _dropped(self) -> int:
        # Events recorded after the end stay in the buffer for ever.
        return self.buffer.dropped + (len(self.buffer) if self._closed else 0)

    # -- the end ------------------------------------------------------------------------------

    def finish(self, ends_s: float, *, flush: bool) -> BreakerTransportError | None:
        """Deliver, close the connections and end the thread; the rest goes to disk.

        Args:
            ends_s: the deadline, by ``time.monotonic()``.
            flush: whether to deliver; without it, and without a spool, the events are lost.

        Returns:
            The exception to raise if events were lost, else None.
        """
        start_s = time.monotonic()
        reserve_s = _CLOSE_SHARE * max(0.0, ends_s - start_s)
        failure: BaseException | None = None
        waiting = 0
        lost = 0
        try:
            if flush and (self.waiting or (self.session and self.session.flusher.spooled)):
                failure = self._last_flush(ends_s - reserve_s)
            waiting = self.waiting
            self._close_session(ends_s - reserve_s / 2)
        finally:
            self._background.close(max(0.05, ends_s - time.monotonic()))
            lost = self._give_up()
            self._closed = True
        if not lost or not flush:
            return None
        error = BreakerTransportError(
            f"{lost} events could not be delivered" + (f": {failure}" if failure else ""),
            events_lost=lost,
            buffer_size=waiting,
        )
        error.__cause__ = failure
        return error

    def _last_flush(self, ends_s: float) -> BaseException | None:
        left_s = max(0.0, ends_s - time.monotonic())
        try:
            self._background.run(self._flush_at_last, timeout_s=left_s)
        except BreakerTransportError as exc:
            return exc
        except TimeoutError:
            return TimeoutError("no answer in time")
        except (LoopClosedError, concurrent.futures.CancelledError):
            return None
        except RuntimeError:  # no thread can be started any more: the interpreter is ending
            return self._flush_here(left_s)
        return None

    def _flush_here(self, left_s: float) -> BaseException | None:
        """Deliver on a loop in the calling thread."""

        async def deliver() -> None:
            async with asyncio.timeout(left_s):
                session = self.session = self._make_session()
                try:
                    await session.flusher.flush()
                finally:
                    await session.close()

        loop = ServiceLoop()
        delivering = deliver()
        try:
            loop.run_until_complete(delivering)
        except (BreakerTransportError, TimeoutError, RuntimeError) as exc:
            return exc
        finally:
            delivering.close()
            loop.close()
        return None

    def _close_session(self, ends_s: float) -> None:
        if self.session is None or not self._background.is_running:
            return
        left_s = max(0.05, ends_s - time.monotonic())
        try:
            self._background.run(self.session.close, left_s, timeout_s=left_s)
        except (TimeoutError, RuntimeError, concurrent.futures.CancelledError):
            logger.debug("the connections did not close in time")

    def _give_up(self) -> int:
        session = self.session
        if session is None:
            if not self.waiting:
                return 0
            session = self._make_session()
        return session.flusher.give_up()


def _seen(attempt: asyncio.Task[Session]) -> None:
    """Retrieve an attempt's exception, even when nobody waits for it any more."""
    if not attempt.cancelled():
        attempt.exception()
