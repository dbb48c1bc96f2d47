"""Sends what goes back to the gateway of leases: renewals, unused money, their end."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

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
_FLUSH_S: Final = 1.0
_RETRY_S: Final = 2.0
_KEPT_S: Final = 600.0
"""A lease whose costs cannot be delivered is kept for so long; what stays is on disk, or lost."""


class LeaseUpdates:
    """Updates of leases under way; on the background loop.

    Args:
        link: to the gateway.
        events: makes the keys of requests.
        desk: takes in the answers.
    """

    def __init__(self, link: Link, events: EventPipeline, desk: Desk) -> None:
        self._link = link
        self._events = events
        self._desk = desk
        self._tasks: set[asyncio.Task[None]] = set()

    def after_fork(self) -> None:
        """Forget the parent's updates."""
        self._tasks = set()

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
        """End all leases; what was spent has been delivered before."""
        session, updates = self._link.session, self._desk.close()
        if session is not None and updates:
            await asyncio.gather(*(self._send(session, update) for update in updates))

    async def stop(self) -> None:
        """End the updates that are under way."""
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
        """Deliver what was spent, then close its leases: they pay for late events only briefly.

        What is not delivered would become room for others: until then the leases are renewed.
        """
        until_s = time.monotonic() + _KEPT_S
        while not await self._delivered(session) and time.monotonic() < until_s:
            for update in updates:
                lease = update.lease
                await self._send(session, self._desk.renewal(lease))
            await asyncio.sleep(_RETRY_S)
        for update in updates:
            await self._send(session, update)

    @staticmethod
    async def _delivered(session: Session) -> bool:
        """Deliver what was spent; tell whether nothing is left, here or on disk."""
        try:
            async with asyncio.timeout(_FLUSH_S):
                await session.flusher.flush()
        except (GuardError, BreakerTransportError, TimeoutError):
            return False
        return not session.flusher.spooled

    async def _send(self, session: Session, update: Update) -> None:
        key = self._events.ids.uuid7(time.time_ns() // 1_000_000)
        sent_s = time.monotonic()
        body = wire.encode(update.body)
        answer = await session.asks.request("gate/lease", key, body, _ANSWER_S)
        try:
            state = await state_of(session, update.body, key, answer)
        except GuardError as exc:  # the gateway lets it expire
            logger.debug("a lease could not be updated: %s", exc)
        else:
            self._desk.updated(update, state, sent_s)


async def state_of(
    session: Session, update: wire.LeaseUpdate, key: str, told: wire.Told | None
) -> wire.LeaseState | None:
    """Return what became of a lease; None when the gateway does not know it.

    Args:
        session: with the gateway.
        update: what was sent.
        key: its idempotency key.
        told: the answer over the socket; None without one: it is sent over HTTP.
    """
    if told is not None:
        if told.status == 404:
            return None
        reply = Reply(wire.LEASE_PATH, told.status, bytes(told.body), now_s=time.time())
        return session.client.read(reply, wire.LeaseState)
    try:
        return await session.client.update_lease(update, key)
    except GuardTransportError as exc:
        if exc.source == "GATEWAY_ERROR" and not exc.retryable:
            return None
        raise
