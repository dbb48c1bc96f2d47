"""Fan-out of control messages to every open channel of this process."""

from __future__ import annotations

import asyncio
import collections
import random
from collections.abc import Mapping, Sequence
from typing import Final

from guard.core import wire
from guard.gateway.domain.commands import PostCommitEvent

QUEUE_MAX: Final = 1000
"""A channel that falls this far behind is closed; it reconnects and is replayed."""

SHARE: Final = 0.8
"""Share of all connections for one organisation's channels: sockets, and polls that wait."""

MOVE_S: Final = 0.001
"""Time in which one socket on average is to go to, or come from, another gateway."""


class Subscription:
    """One channel's queue of messages; read it with :meth:`next`.

    The hub fills it and the channel's task empties it, both on the loop.
    """

    def __init__(self, key_id: str, *, pushes: bool = True) -> None:
        # Recalls, and messages for one key only, go to the channels of that key.
        self.key_id = key_id
        # Whether the client has a socket; else it polls, and a recall would come too late.
        self.pushes = pushes
        # Set by the hub, never cleared: the channel fell too far behind. Its task closes it, and
        # the client gets what it missed by a replay of the stored messages.
        self.overrun = False
        # Set by the hub, never cleared: the gateway is shutting down, or it is this channel's turn
        # to move.
        self.ended = False
        # Without a bound of its own, so that :meth:`end` always fits.
        self._queue: asyncio.Queue[wire.ControlMessage | None] = asyncio.Queue()

    def offer(self, message: wire.ControlMessage | None) -> None:
        """Queue a message, or ``None`` to have the channel check its key again."""
        if self._queue.qsize() >= QUEUE_MAX:
            self.overrun = True
        else:
            self._queue.put_nowait(message)

    def end(self) -> None:
        """Have the channel end."""
        self.ended = True
        self._queue.put_nowait(None)

    def offer_unstored(self, message: wire.ControlMessage) -> bool:
        """Queue a message that is of no use later; ``False`` if the channel polls or is behind."""
        if not self.pushes or self._queue.qsize() >= QUEUE_MAX:
            return False
        self._queue.put_nowait(message)
        return True

    async def next(self, timeout_s: float) -> wire.ControlMessage | None:
        """Return the next message; ``None`` asks the channel to check its key.

        Raises:
            TimeoutError: nothing came in time.
        """
        async with asyncio.timeout(timeout_s):
            return await self._queue.get()


class Hub:
    """Hands committed messages to the subscriptions of their organisation, on the loop.

    Args:
        connections_max: of the server, of which each organisation's channels may use a share.
    """

    def __init__(self, connections_max: int = 2000) -> None:
        self.channels_max = max(1, int(connections_max * SHARE))
        # By organisation; one without channels has no entry.
        self._subscriptions: dict[str, set[Subscription]] = {}
        # The number of all channels, and of those that are sockets by organisation. Kept, since
        # they are read often.
        self._count = 0
        self._sockets: collections.Counter[str] = collections.Counter()
        # From the first :meth:`close` on; a channel that opens now ends at once.
        self.closing = False

    def subscribe(self, organisation_id: str, key_id: str, *, pushes: bool = True) -> Subscription:
        """Open a subscription; everything committed from now on reaches it.

        Args:
            organisation_id: whose messages.
            key_id: of the client.
            pushes: whether messages are pushed to the client; else it polls for stored ones.
        """
        subscription = Subscription(key_id, pushes=pushes)
        subscription.ended = self.closing
        self._subscriptions.setdefault(organisation_id, set()).add(subscription)
        self._count += 1
        self._sockets[organisation_id] += pushes
        return subscription

    def unsubscribe(self, organisation_id: str, subscription: Subscription) -> None:
        """Close a subscription."""
        group = self._subscriptions.get(organisation_id, set())
        if subscription in group:
            group.remove(subscription)
            self._count -= 1
            self._sockets[organisation_id] -= subscription.pushes
        if not group:
            self._subscriptions.pop(organisation_id, None)
            self._sockets.pop(organisation_id, None)

    def publish(self, events: Sequence[PostCommitEvent]) -> None:
        """Queue committed messages for the channels that they concern.

        Called after the commit and before any answer of it, in the order of the commits.
        """
        for event in events:
            if event.kind == "control" and event.organisation_id is not None:
                for subscription in self._subscriptions.get(event.organisation_id, ()):
                    if event.key_id in (None, subscription.key_id):
                        subscription.offer(event.message)
            elif event.kind == "catalogue":
                owner = event.organisation_id
                groups = self._subscriptions if owner is None else (owner,)
                for each in groups:
                    for subscription in self._subscriptions.get(each, ()):
                        subscription.offer(None)

    def recall(
        self, organisation_id: str, leases: Mapping[str, Sequence[str]], returns_ms: int = 0
    ) -> int:
        """Ask holders for what they do not use, over every socket of their keys.

        It is never stored: a channel that is away or far behind does not get it.

        Args:
            organisation_id: of the leases.
            leases: lease ids by the key that holds them.
            returns_ms: how long they are to give back at once what they do not use.

        Returns:
            The number of sockets that it is queued for.
        """
        asked = 0
        for subscription in self._subscriptions.get(organisation_id, ()):
            held = leases.get(subscription.key_id)
            if held:
                message = wire.ControlMessage(
                    seq=0, type="recall", leases=list(held), returns_ms=returns_ms
                )
                asked += subscription.offer_unstored(message)
        return asked

    def wake(self, organisation_id: str, key_id: str, calls: Sequence[str]) -> None:
        """Ask calls that wait in line to ask again, over every socket of their key."""
        message = wire.ControlMessage(seq=0, type="room", calls=list(calls))
        for subscription in self._subscriptions.get(organisation_id, ()):
            if subscription.key_id == key_id:
                subscription.offer_unstored(message)

    def close(self, spread_s: float = 0.0) -> None:
        """End every channel: polls at once, sockets within a time.

        Args:
            spread_s: sockets end at random moments of it, and serve until then, so that their
                clients do not all come to another gateway at the same one.
        """
        self.closing = True
        loop = asyncio.get_running_loop()
        for group in self._subscriptions.values():
            for subscription in group:
                if subscription.pushes and spread_s:
                    loop.call_later(random.uniform(0, spread_s), subscription.end)
                else:
                    subscription.end()

    def has_room(self, organisation_id: str) -> bool:
        """Return whether an organisation may open one more channel, within its share."""
        return len(self._subscriptions.get(organisation_id, ())) < self.channels_max

    def count(self) -> int:
        """Return how many channels are open."""
        return self._count

    def sockets(self) -> int:
        """Return how many of the open channels are sockets, and not polls."""
        return self._sockets.total()

    def sockets_of(self, organisation_id: str) -> int:
        """Return how many of them are an organisation's."""
        return self._sockets[organisation_id]

    def spread_s(self) -> float:
        """Return the time over which to move all sockets, so that no other gateway is flooded."""
        return self._sockets.total() * MOVE_S
