"""Renews the reservations that calls and requests of this process hold without a lease."""

from __future__ import annotations

import logging
import math
import weakref
from typing import TYPE_CHECKING, Final

from guard.asking import lease_clock
from guard.breaker.exceptions import GuardError
from guard.core import wire
from guard.loop import Tasks
from guard.session.link import Link

if TYPE_CHECKING:  # the session imports httpx and websockets, which `import guard` must not
    from guard.session.session import Session

logger = logging.getLogger("guard.leases")

_SHARE: Final = 1 / 3
"""Share of a reservation's lifetime between two renewals."""


class Renewals:
    """The reservations of this process that end unless they are renewed; on the background loop.

    Each is renewed as long as its call or request keeps a reference to the gateway's reply. So a
    call that is dropped without an end (a generator that is never closed) lets its reservation
    expire.

    Args:
        link: to the gateway.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.after_fork()

    def after_fork(self) -> None:
        """Forget what the parent holds."""
        # The replies by reservation. Weak: an entry disappears with the last reference to its
        # reply, in whichever thread that is; so it is copied before it is iterated over.
        self._held: weakref.WeakValueDictionary[str, wire.GateReply] = weakref.WeakValueDictionary()
        # How long each lasts, by the clock of the leases. Read by any thread.
        self._until_s: dict[str, float] = {}
        # Seconds between two renewals, the shortest of all that are held, and when the next is
        # due. All are renewed together, so a new one may be renewed early.
        self._every_s = math.inf
        self._due_s = math.inf
        self._tasks = Tasks()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, reply: wire.GateReply, sent_s: float) -> None:
        """Renew a reply's reservation from now on, if it has one that must be renewed.

        Args:
            reply: the answer.
            sent_s: when its question was sent: the gateway counts the reservation's life later.
        """
        if reply.reservation_id is None or not reply.renew_ms:
            return
        every_s = _SHARE * reply.renew_ms / 1000
        now_s = lease_clock.now_s()
        self._until_s[reply.reservation_id] = sent_s + reply.renew_ms / 1000
        self._every_s = every_s if not self._held else min(self._every_s, every_s)
        self._due_s = now_s + every_s if not self._held else min(self._due_s, now_s + every_s)
        self._held[reply.reservation_id] = reply

    def until_s(self, reply: wire.GateReply) -> float:
        """Return how long a reply's reservation lasts; from any thread."""
        name = reply.reservation_id
        if name is None or not reply.renew_ms:
            return math.inf
        # The second look: it may have ended at the gateway, long before its time.
        return self._until_s.get(name, -math.inf) if name in self._held else -math.inf

    def tick(self, now_s: float) -> None:
        """Renew all that is held, when it is due. Starts tasks and does not wait for them."""
        session = self._link.session
        if now_s < self._due_s or session is None:
            return
        # Set before the tasks run: a renewal that fails is repeated a period later.
        self._due_s = now_s + self._every_s
        held = list(self._held)
        self._until_s = {name: self._until_s[name] for name in held}
        for start in range(0, len(held), wire.RENEWED_MAX):
            names = held[start : start + wire.RENEWED_MAX]
            self._tasks.start(self._renew(session, names))

    async def _renew(self, session: Session, names: list[str]) -> None:
        update = wire.LeaseUpdate(names[0], also=names[1:])
        sent_s = lease_clock.now_s()
        try:
            state = await session.lease_requests.update(update)
        except GuardError as exc:  # the next one may arrive
            logger.debug("reservations could not be renewed: %s", exc)
            return
        if state is None:
            return
        # Those that have ended at the gateway. Their calls go on: events charge what they cost.
        for name in state.over:
            self._held.pop(name, None)
        for name in names:
            reply = self._held.get(name)
            if reply is not None:
                self._until_s[name] = max(self._until_s[name], sent_s + reply.renew_ms / 1000)

    async def stop(self) -> None:
        """Cancel the renewals that are under way."""
        await self._tasks.stop()
