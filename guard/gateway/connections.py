"""The connections of one server: their deadlines, and which one is closed for another.

All of it runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from guard.gateway.reading import ReadQuotas

logger = logging.getLogger(__name__)

_SCAN_INTERVAL_S: Final = 0.25
_OF_ONE: Final = 0.9
"""The share of all connections, WebSockets included, that one organisation may have. Its channels
may have less, so that its calls find a place beside them."""

_OF_STRANGERS: Final = 0.2
"""The share of those that have shown no key yet, which they have before others: a neighbour's new
connections are among them."""

_TRICKLES_S: Final = 1.0
"""How long a request may take to arrive where another connection needs the room."""


class HttpConnection(Protocol):
    """One connection; see ``GuardedHttpProtocol``."""

    waiting_since: float | None
    organisation_id: str | None

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight."""

    @property
    def is_held(self) -> bool:
        """Whether the gateway itself has paused reading."""

    def evict(self) -> None:
        """Close the connection to make room for another."""

    def end_stalled(self) -> None:
        """Answer 408 if an answer is still possible, and close."""


class HttpConnections:
    """The connections of one server.

    One timer scans them all for stalled requests. When the server is full, one is closed to make
    room for another.

    Args:
        deadline_s: how long a request may take to arrive.
        connections_max: how many there may be at once, WebSockets included.
        sockets_of: returns how many WebSockets an organisation has.

    Attributes:
        strangers: connections that have not authenticated yet, oldest first.
        known: authenticated connections by organisation, oldest first.
    """

    def __init__(
        self,
        deadline_s: float,
        connections_max: int,
        sockets_of: Callable[[str], int] = lambda _: 0,
    ) -> None:
        self.deadline_s = deadline_s
        self.connections_max = connections_max
        self._sockets_of = sockets_of
        # All HTTP connections. Weak, so that a connection that uvicorn has dropped without
        # ``forget`` does not stay in memory.
        self.protocols: weakref.WeakSet[HttpConnection] = weakref.WeakSet()
        # Dictionaries in place of sets, for their order. A connection is in at most one of the two;
        # ``known`` has no empty groups. Each connection adds, moves and removes itself.
        self.strangers: dict[HttpConnection, None] = {}
        self.known: dict[str, dict[HttpConnection, None]] = {}
        # Of WebSockets too.
        self.accounts = ReadQuotas()

    def evict_one(self) -> bool:
        """Close one connection that is worth less than a new one; return whether there was one.

        A flood of strangers must not end connections with a key, and one organisation must not end
        those of another, nor leave others no place.
        """
        largest = max(self.known.values(), key=len, default={})
        # 1. Few strangers: new ones do not end each other while an organisation has many places.
        if len(self.strangers) < self.connections_max * _OF_STRANGERS and self._end_one(largest):
            return True
        # 2. The oldest stranger: it had the most time to show a key. ``evict`` changes the
        # dictionary, so the loop ends there.
        for protocol in self.strangers:
            protocol.evict()
            return True
        return self._end_one(largest)

    def has_place(self, owner: str, protocol: HttpConnection) -> bool:
        """Return whether there is a place for an owner's connection, which is counted already.

        If there is none, another one of the owner's that is worth less makes room.
        """
        group = self.known[owner]
        if len(group) + self._sockets_of(owner) <= max(1, self.connections_max * _OF_ONE):
            return True
        return self._end_one({each: None for each in group if each is not protocol})

    def _end_one(self, group: Mapping[HttpConnection, None]) -> bool:
        """Close a connection of one owner, if one is worth less than a new one."""
        # 1. The longest known idle one.
        for protocol in group:
            if protocol.is_idle:
                protocol.evict()
                return True
        # 2. One whose request arrives slowly. Requests that are being served are never ended:
        # their effect may be committed already.
        latest = asyncio.get_running_loop().time() - _TRICKLES_S
        for protocol in group:
            if protocol.waiting_since is not None and protocol.waiting_since < latest:
                protocol.evict()
                return True
        return False

    def forget(self, protocol: HttpConnection) -> None:
        """Stop watching a connection. Idempotent."""
        self.protocols.discard(protocol)
        self.strangers.pop(protocol, None)
        owner = protocol.organisation_id
        if owner is not None and owner in self.known:
            group = self.known[owner]
            group.pop(protocol, None)
            if not group:
                del self.known[owner]

    async def run(self) -> None:
        """Scan until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SCAN_INTERVAL_S)
            try:
                self.scan(loop.time())
            except Exception:  # one failed scan does not end the deadlines
                logger.exception("connections were not scanned")

    def scan(self, now: float) -> None:
        """End connections whose request has not arrived in time."""
        self.accounts.drop_clear()
        # A request that the gateway itself does not read is not late.
        for protocol in list(self.protocols):
            if (
                protocol.waiting_since is not None
                and now - protocol.waiting_since > self.deadline_s
                and not protocol.is_held
            ):
                protocol.end_stalled()
