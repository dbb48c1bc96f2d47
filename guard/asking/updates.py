"""Sends updates of leases to the gateway: renewals, unused money, closes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from guard.asking import lease_clock
from guard.breaker.exceptions import (
    BreakerTransportError,
    GuardError,
    GuardInfrastructureError,
    GuardTransportError,
    WorkflowKilledInterrupt,
)
from guard.core.leases import AskGateway, Desk, Update
from guard.loop import Tasks
from guard.session.link import Link

if TYPE_CHECKING:  # the session imports httpx and websockets, which `import guard` must not
    from guard.session.session import Session

logger = logging.getLogger("guard.leases")

_FLUSH_S: Final = 1.0
"""How long one delivery of events before a close may take."""
_RETRY_S: Final = 2.0
_SETTLE_S: Final = 60.0
"""How long the gateway is asked what it has decided for a caller that has gone; it is a lease's
lifetime, after which the gateway charges what nobody has given back."""
_SETTLES_AT_ONCE: Final = 4
_SETTLES_MAX: Final = 1000
"""With so many updates under way, what was decided for a caller that has gone is left to expire."""
_KEPT_S: Final = 600.0
"""How long a lease is kept open whose costs cannot be delivered; afterwards they are on disk, or
lost."""


class LeaseUpdates:
    """Sends updates of leases in tasks on the background loop.

    A renewal that fails is not repeated: the next one is a third of a lifetime away. What returns
    money is: others wait for it, and the lease may last as long as its longest request.

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
        self._settling = asyncio.Semaphore(_SETTLES_AT_ONCE)

    def settle(self, ask: AskGateway) -> None:
        """Learn what was decided about a question, and give it back, without waiting."""
        session = self._link.session
        if session is not None and len(self._tasks) < _SETTLES_MAX:
            self._tasks.start(self._settle(session, ask))

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
        # Until it arrives: one that is not closed is charged what it held, as a dead holder's.
        while updates:
            sent = await asyncio.gather(*(self._tell(session, update) for update in updates))
            updates = [each for each, is_told in zip(updates, sent, strict=True) if not is_told]
            if not updates or time.monotonic() >= until_s:
                return
            await asyncio.sleep(_RETRY_S)

    @staticmethod
    async def _delivered(session: Session) -> bool:
        """Deliver the buffered events; return whether none is left, in memory or on disk."""
        try:
            async with asyncio.timeout(_FLUSH_S):
                await session.flusher.flush()
        except (GuardError, BreakerTransportError, TimeoutError):
            return False
        return not session.flusher.spooled

    async def _settle(self, session: Session, ask: AskGateway) -> None:
        """Repeat a question whose caller has gone, until there is an answer; give that back."""
        request, until_s = ask.question.request, time.monotonic() + _SETTLE_S
        while time.monotonic() < until_s:
            try:
                async with self._settling:
                    reply = await session.client.gate(request, ask.question.key)
            except (GuardTransportError, GuardInfrastructureError) as exc:
                if not exc.retryable:
                    return
                await asyncio.sleep(_RETRY_S)
                continue
            except (GuardError, WorkflowKilledInterrupt):  # refused: nothing is set aside
                return
            if reply.decision == "waiting":
                session.release_soon(request.call_id)
            elif reply.lease is None:
                session.give_back(reply)
            self.send(self._desk.unwanted(ask, reply))
            return

    async def _send(self, session: Session, update: Update) -> None:
        key, until_s = session.lease_requests.new_key(), time.monotonic() + _KEPT_S
        while not await self._tell(session, update, key):
            if not update.body.unused_nanousd or time.monotonic() >= until_s:
                return
            await asyncio.sleep(_RETRY_S)

    async def _tell(self, session: Session, update: Update, key: str | None = None) -> bool:
        """Send an update; return whether it was answered."""
        sent_s = lease_clock.now_s()  # the renewed lifetime counts from here, not from the answer
        try:
            state = await session.lease_requests.update(update.body, key)
        except GuardError as exc:  # the gateway lets it expire
            logger.debug("a lease could not be updated: %s", exc)
            return False
        self._desk.updated(update, state, sent_s)
        return True
