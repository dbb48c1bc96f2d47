"""Looks after the leases: the tick that renews, tops up and returns, and the gateway's recalls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Iterable
from typing import Final

from guard.asking import lease_clock
from guard.asking.courier import Courier
from guard.asking.renewals import Renewals
from guard.asking.updates import LeaseUpdates
from guard.core import wire
from guard.core.leases import Desk
from guard.instrumentation.unread_answers import UnreadAnswers
from guard.loop.quiet import until_pulse_s

logger = logging.getLogger("guard.leases")

_TICK_S: Final = 0.25
_IDLE_TICK_S: Final = 1.0
"""The tick while nothing is held and nobody waits; whatever begins ends it."""
_RETURN_TICK_S: Final = 0.05
"""The tick while others wait for what this process holds."""


class Keeper:
    """The service of a process's leases; implements ``guard.session.session.LeaseService``.

    Everything runs on the background loop; the properties are read from any thread.

    Args:
        desk: decides about the leases.
        courier: carries out the desk's effects.
        updates: sends lease updates to the gateway.
        unread: reads the LLM answers that are unread, so that their holds settle.
        renewals: renews what is held without a lease.
    """

    def __init__(
        self,
        desk: Desk,
        courier: Courier,
        updates: LeaseUpdates,
        unread: UnreadAnswers,
        renewals: Renewals,
    ) -> None:
        self._desk = desk
        self._courier = courier
        self._updates = updates
        self._unread = unread
        self._renewals = renewals

    @property
    def asking(self) -> int:
        """How many questions are under way over HTTP."""
        return self._courier.asking

    @property
    def waiting(self) -> int:
        """How many calls and requests wait in line."""
        return self._desk.waiting

    @property
    def renewing(self) -> int:
        """How many reservations are held without a lease."""
        return len(self._renewals)

    async def run(self) -> None:
        """Do what is due, until cancelled. No failure ends it: leases would run out unrenewed."""
        is_failing = False  # one log line when that begins
        while True:
            await self._next_tick()
            try:
                self._courier.tick()
                self._unread.expire(time.monotonic())
            except Exception:
                if not is_failing:
                    logger.exception("the leases could not be looked after")
                is_failing = True
            else:
                is_failing = False

    async def _next_tick(self) -> None:
        if self._desk.is_returning(lease_clock.now_s()):
            await asyncio.sleep(_RETURN_TICK_S)
        elif self._courier.is_idle and not self._unread.has_later_work:
            self._courier.begun.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_pulse_s(_IDLE_TICK_S)):
                    await self._courier.begun.wait()
        else:
            await asyncio.sleep(until_pulse_s(_TICK_S))

    def capable(self, features: frozenset[str]) -> None:
        """Note what the gateway can do."""
        self._desk.tops_up = wire.FEATURE_LEASE_AHEAD in features

    def recalled(self, lease_ids: list[str], returns_s: float) -> None:
        """Return the unused money of leases at once; called while the frame is being read.

        Args:
            lease_ids: the leases.
            returns_s: for how many seconds from now on unused money goes back at once.
        """
        self._unread.read()  # first: their holds then settle for what the answers cost
        until_s = lease_clock.now_s() + returns_s if returns_s else -math.inf
        self._updates.send(self._desk.recalled(lease_ids, until_s))

    def room(self, call_ids: list[str]) -> None:
        """Ask again for calls that wait in line: money has come back for them."""
        self._courier.room(call_ids)

    def pushed(self, messages: Iterable[wire.ControlMessage]) -> None:
        """Void the coverage that control messages may have changed."""
        self._desk.pushed(messages)

    def switched(self, is_open: bool, good_for_s: float) -> None:
        """Set for how long leases may be used after the socket has opened or was lost.

        Without it a kill arrives with the next poll at the latest, so leases stay usable for one
        poll interval and not longer.

        Args:
            is_open: whether pushes arrive.
            good_for_s: one poll interval, in seconds.
        """
        self._desk.switched(math.inf if is_open else lease_clock.now_s() + good_for_s)

    def socket_ready(self) -> None:
        """Send the questions that wait for HTTP over the socket, which is ready."""
        self._courier.leave_http()

    async def close(self) -> None:
        """End all leases. The caller has delivered the events before."""
        self._unread.read()
        await self._updates.close()

    async def stop(self) -> None:
        """Cancel the requests that are under way."""
        await self._updates.stop()
        await self._renewals.stop()
