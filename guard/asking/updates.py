"""Sends updates of leases to the gateway: renewals, unused money, closes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from guard.asking import lease_clock
from guard.breaker.exceptions import BreakerTransportError, GuardError
from guard.core.leases import Desk, Update
from guard.loop import Tasks
from guard.session.link import Link

if TYPE_CHECKING:  # the session imports httpx and websockets, which `import guard` must not
    from guard.session.session import Session

logger = logging.getLogger("guard.leases")

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
        desk: takes in the answers.
    """

    def __init__(self, link: Link, desk: Desk) -> None:
        self._link = link
        self._desk = desk
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the parent's updates."""
        self._tasks = Tasks()

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
                self._tasks.start(self._send(session, update))
        if closing:
            self._tasks.start(self._close(session, closing))

    async def close(self) -> None:
        """End all leases, and wait for the answers to each update that is under way.

        Also to those of leases that were being closed already: cancelled, their money would be
        missing to others until they expire. The caller has delivered the events before.
        """
        session, updates = self._link.session, self._desk.close()
        if session is not None:
            for update in updates:
                self._tasks.start(self._send(session, update))
        await self._tasks.wait()

    async def stop(self) -> None:
        """Cancel the updates that are under way."""
        await self._tasks.stop()

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
        sent_s = lease_clock.now_s()  # the renewed lifetime counts from here, not from the answer
        try:
            state = await session.lease_requests.update(update.body)
        except GuardError as exc:  # the gateway lets it expire
            logger.debug("a lease could not be updated: %s", exc)
        else:
            self._desk.updated(update, state, sent_s)
