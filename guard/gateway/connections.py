"""The connections of one server: which are watched, and which one makes room for another."""

from __future__ import annotations

import asyncio
import weakref
from typing import Final, Protocol

from guard.gateway.reading import Accounts

_SCAN_INTERVAL_S: Final = 0.25
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
        """Whether it is the gateway that reads no further."""

    def evict(self) -> None:
        """Close the connection to make room for another."""

    def end_stalled(self) -> None:
        """Answer 408 where an answer is still possible, and close."""


class HttpConnections:
    """The connections of one server.

    One timer scans them all for stalled requests. When the server is full, one is closed to make
    room for another.

    Args:
        deadline_s: how long a request may take to arrive.
        connections_max: how many there are at once.

    Attributes:
        strangers: connections that have not authenticated yet, oldest first.
        known: authenticated connections by organisation, oldest first.
    """

    def __init__(self, deadline_s: float, connections_max: int) -> None:
        self.deadline_s = deadline_s
        self.connections_max = connections_max
        # All that may stall. Weak, so that a connection that uvicorn has let go of is gone at once.
        self.protocols: weakref.WeakSet[HttpConnection] = weakref.WeakSet()
        self.strangers: dict[HttpConnection, None] = {}
        self.known: dict[str, dict[HttpConnection, None]] = {}
        self.accounts = Accounts()

    def make_room(self) -> bool:
        """Close the oldest stranger, else a connection of the organisation with the most.

        An idle one, else one whose request trickles in.
        """
        for protocol in self.strangers:
            protocol.evict()
            return True
        largest = max(self.known.values(), key=len, default={})
        for protocol in largest:
            if protocol.is_idle:
                protocol.evict()
                return True
        latest = asyncio.get_running_loop().time() - _TRICKLES_S
        for protocol in largest:
            if protocol.waiting_since is not None and protocol.waiting_since < latest:
                protocol.evict()
                return True
        return False

    def forget(self, protocol: HttpConnection) -> None:
        """Stop watching a connection."""
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
            self.scan(loop.time())

    def scan(self, now: float) -> None:
        """End connections whose request has not arrived in time."""
        self.accounts.drop_clear()
        for protocol in list(self.protocols):
            if (
                protocol.waiting_since is not None
                and now - protocol.waiting_since > self.deadline_s
                and not protocol.is_held
            ):
                protocol.end_stalled()
