"""Requests about leases, reservations and waits: over the control socket, else over HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from guard.breaker.exceptions import GuardTransportError
from guard.control.ask_channel import AskChannel
from guard.core import wire
from guard.core.ids import IdFactory
from guard.transport.client import GatewayClient
from guard.transport.replies import Reply

_ANSWER_S: Final = 2.0
"""How long to wait for an answer over the socket before a request goes over HTTP."""
_HTTP_AT_ONCE: Final = 16
"""How many requests go over HTTP at once: the client's pool would compare all that wait in it."""


class LeaseRequests:
    """Renews, reduces and closes what the gateway holds for this process; on the background loop.

    Args:
        client: the gateway over HTTP, for when there is no socket.
        asks: requests over the control socket.
        ids: makes the keys of requests.
    """

    def __init__(self, client: GatewayClient, asks: AskChannel, ids: IdFactory) -> None:
        self._client = client
        self._asks = asks
        self._ids = ids
        self._http_places = asyncio.Semaphore(_HTTP_AT_ONCE)

    def new_key(self) -> str:
        """Make the key of an update; a repeat under the same one does not return money twice."""
        return self._ids.uuid7(time.time_ns() // 1_000_000)

    async def update(
        self, update: wire.LeaseUpdate, key: str | None = None
    ) -> wire.LeaseState | None:
        """Send an update; return the new state, or None when the gateway holds no such thing.

        Args:
            update: the update.
            key: the same for each repeat; a new one if None.

        Raises:
            GuardError: refused, or no usable answer in time.
        """
        key = key or self.new_key()
        told = await self._asks.request("gate/lease", key, wire.encode(update), _ANSWER_S)
        if told is None:
            return await self._by_http(update, key)
        if told.status == 404:
            return None
        reply = Reply(wire.LEASE_PATH, told.status, bytes(told.body), now_s=time.time())
        return self._client.read(reply, wire.LeaseState)

    async def _by_http(self, update: wire.LeaseUpdate, key: str) -> wire.LeaseState | None:
        try:
            async with self._http_places:
                return await self._client.update_lease(update, key)
        except GuardTransportError as exc:
            # A definite answer of the gateway, not a failure on the way to it: it has ended.
            if exc.source == "GATEWAY_ERROR" and not exc.retryable:
                return None
            raise
