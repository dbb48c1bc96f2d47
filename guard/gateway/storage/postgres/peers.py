"""Questions to other replicas that are stored nowhere: one that is away has nothing to answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from guard.gateway.domain.errors import StoreError
from guard.gateway.storage.postgres.connection import PostgresReadConnection

logger = logging.getLogger(__name__)

LEASES_MAX: Final = 100
"""Leases in one notification, which has to stay below eight thousand bytes."""

LookUp = Callable[[Callable[[PostgresReadConnection], Any]], Awaitable[Any]]


class PostgresPeers:
    """Implements :class:`guard.gateway.services.recalls.Peers` with notifications.

    Args:
        look_up: runs a query.
        sender: returns the channel and the name under which this replica writes.

    Attributes:
        are_there: whether other replicas were seen lately.
    """

    def __init__(self, look_up: LookUp, sender: Callable[[], tuple[str, str]]) -> None:
        self._look_up = look_up
        self._sender = sender
        self._tasks: set[asyncio.Task[None]] = set()
        self.are_there = False

    def ask_peers(self, organisation_id: str, leases: Mapping[str, Sequence[str]]) -> bool:
        """Have other replicas recall leases too; ``False`` when there are none."""
        if self.are_there:
            for key_id, lease_ids in leases.items():
                for start in range(0, len(lease_ids), LEASES_MAX):
                    some = list(lease_ids[start : start + LEASES_MAX])
                    self._send("recall", organisation_id, {key_id: some})
        return self.are_there

    def tell_peers(self, organisation_id: str, lease_id: str) -> None:
        """Tell them that a lease has given back what it does not use."""
        self._send("answered", organisation_id, {"": [lease_id]})

    def _send(self, kind: str, organisation_id: str, leases: dict[str, list[str]]) -> None:
        channel, replica = self._sender()
        payload = f"{replica} {kind} {organisation_id} {json.dumps(leases)}"
        task = asyncio.create_task(self._notify(channel, payload), name="guard-gateway-peers")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self, channel: str, payload: str) -> None:
        try:
            await self._look_up(
                lambda reading: reading.psycopg.execute(
                    "SELECT pg_notify(%s, %s)", (channel, payload)
                )
            )
        except StoreError as exc:
            logger.warning("other replicas were not asked: %s", exc)
