"""Sends updates of leases to the gateway: renewals, unused money, closes."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from guard.asking import lease_clock
from guard.breaker.exceptions import BreakerTransportError, GuardError, GuardTransportError
from guard.core import wire
from guard.core.leases import Desk, Update
from guard.session.event_pipeline import EventPipeline
from guard.session.link import Link
from guard.transport.replies import Reply

if TYPE_CHECKING:  # the session imports httpx and websockets, which `import guard` must not
    from guard.session.session import Session

logger = logging.getLogger("guard.leases")

_ANSWER_S: Final = 2.0
"""How long to wait for an answer over the socket before an update goes over HTTP."""
_HTTP_AT_ONCE: Final = 16
"""How many updates go over HTTP at once: the client's pool would compare all that wait in it."""

_FLUSH_S: Final = 1.0
"""How long one delivery of events before a close may take."""
_RETRY_S: Final = 2.0
_KEPT_S: Final = 600.0
"""How long a lease is kept open whose costs cannot be delivered; afterwards they are on disk, or
lost."""


class LeaseUpdates:
    """Sends updates of leases in tasks on the background loop.

    An update that fails is not repeated: the next renewal is a third of a lifetime away, and money
    whose return was lost is released when the lease is closed or expires.

    Args:
        link: to the gateway.
        events: makes the keys of requests.
        desk: takes in the answers.
    """

    def __init__(self, link: Link, events: EventPipeline, desk: Desk) -> None:
        self._link = link
        self._events = events
        self._desk = desk
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the parent's updates."""
        # Referenced here, or the garbage collector could end a task that is under way. On the
        # loop only.
        self._tasks: set[asyncio.Task[None]] = set()
        self._http_places = asyncio.Semaphore(_HTTP_AT_ONCE)

    def send(self, updates: Iterable[Update]) -> None:
        """Send updates without waiting for their answers."""
        session = self._link.session
        if session is None:
            return
        closing: list[Update] = []
        for update in updates:
            if update.closes:
                closing.append(update)
            else:
                self._start(self._send(session, update))
        if closing:
            self._start(self._close(session, closing))

    async def close(self) -> None:
        """End all leases, and wait for the answers to each update that is under way.

        Also to those of leases that were being closed already: cancelled, their money would be
        missing to others until they expire. The caller has delivered the events before.
        """
        session, updates = self._link.session, self._desk.close()
        if session is not None:
            for update in updates:
                self._start(self._send(session, update))
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Cancel the updates that are under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- one update -------------------------------------------------------------------------------

    async def _close(self, session: Session, updates: list[Update]) -> None:
        """Deliver the events, then close leases that they were paid from.

        In this order: a closed lease pays for late events only for a short time. Afterwards the
        gateway grants its money to others although it is spent. So as long as the events cannot be
        delivered, the leases are renewed instead.
        """
        until_s = time.monotonic() + _KEPT_S
        while not await self._delivered(session) and time.monotonic() < until_s:
            for update in updates:
                lease = update.lease
                await self._send(session, self._desk.renewal(lease))
            await asyncio.sleep(_RETRY_S)
        await asyncio.gather(*(self._send(session, update) for update in updates))

    @staticmethod
    async def _delivered(session: Session) -> bool:
        """Deliver the buffered events; return whether none is left, in memory or on disk."""
        try:
            async with asyncio.timeout(_FLUSH_S):
                await session.flusher.flush()
        except (GuardError, BreakerTransportError, TimeoutError):
            return False
        return not session.flusher.spooled

    async def _send(self, session: Session, update: Update) -> None:
        key = self._events.ids.uuid7(time.time_ns() // 1_000_000)
        sent_s = lease_clock.now_s()  # the renewed lifetime counts from here, not from the answer
        body = wire.encode(update.body)
        answer = await session.asks.request("gate/lease", key, body, _ANSWER_S)
        place = self._http_places if answer is None else contextlib.nullcontext()
        try:
            async with place:
                state = await state_of(session, update.body, key, answer)
        except GuardError as exc:  # the gateway lets it expire
            logger.debug("a lease could not be updated: %s", exc)
        else:
            self._desk.updated(update, state, sent_s)


async def state_of(
    session: Session, update: wire.LeaseUpdate, key: str, told: wire.Told | None
) -> wire.LeaseState | None:
    """Return the state of a lease after an update; None when the gateway has no such lease.

    Args:
        session: with the gateway.
        update: the update.
        key: its idempotency key: a repeat over HTTP does not return the money twice.
        told: the answer over the socket; without one the update is sent over HTTP.
    """
    if told is not None:
        if told.status == 404:
            return None
        reply = Reply(wire.LEASE_PATH, told.status, bytes(told.body), now_s=time.time())
        return session.client.read(reply, wire.LeaseState)
    try:
        return await session.client.update_lease(update, key)
    except GuardTransportError as exc:
        # A definite answer of the gateway, not a failure on the way to it: the lease has ended.
        if exc.source == "GATEWAY_ERROR" and not exc.retryable:
            return None
        raise
