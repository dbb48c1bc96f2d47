"""Messages to other replicas that are not stored: a replica that misses them loses little.

They make leases give money back sooner, and calls that wait for money ask sooner. If one is lost,
both happen later by themselves.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from guard.gateway.domain.errors import StoreError
from guard.gateway.storage.postgres.connection import PostgresReadConnection

logger = logging.getLogger(__name__)

LEASES_MAX: Final = 100
"""Leases in one notification, which has to stay below eight thousand bytes."""

BALANCES_MAX: Final = 500
"""Balances in one notification."""
GATHER_S: Final = 0.05
"""Balances to which money returns within so long go into one notification: a busy budget settles
all the time."""
RETURNS: Final = ""
"""In place of a key: for how long leases are to give back; older replicas know no such key."""

LookUp = Callable[[Callable[[PostgresReadConnection], Any]], Awaitable[Any]]


class PostgresPeers:
    """Implements ``recalls.Peers`` and ``waiting_line.LinePeers`` with notifications.

    Args:
        look_up: runs a query.
        sender: returns the channel and the name under which this replica writes.

    Attributes:
        are_there: whether other replicas were seen lately.
    """

    def __init__(self, look_up: LookUp, sender: Callable[[], tuple[str, str]]) -> None:
        self._look_up = look_up
        self._sender = sender
        # All state belongs to the loop.
        # Notifications that are being sent; the loop itself refers to its tasks weakly.
        self._tasks: set[asyncio.Task[None]] = set()
        # Balances to which money has returned since the last notification, by organisation. An
        # entry exists exactly while a timer runs that sends it.
        self._freed: dict[str, set[int]] = {}
        # Written by the sweep, from the table of replicas.
        self.are_there = False

    def ask_peers(
        self, organisation_id: str, leases: Mapping[str, Sequence[str]], returns_ms: int
    ) -> bool:
        """Ask other replicas to recall leases too; return ``False`` if there are none."""
        if self.are_there:
            for key_id, lease_ids in leases.items():
                for start in range(0, len(lease_ids), LEASES_MAX):
                    some = list(lease_ids[start : start + LEASES_MAX])
                    asked = {key_id: some}
                    if returns_ms:
                        asked[RETURNS] = [str(returns_ms)]
                    self._send("recall", organisation_id, asked)
        return self.are_there

    def tell_peers(self, organisation_id: str, lease_id: str) -> None:
        """Notify them that a lease has given back its unused money."""
        self._send("answered", organisation_id, {"": [lease_id]})

    def tell_waiting(self, organisation_id: str, balance_ids: Iterable[int]) -> None:
        """Notify them that calls wait here for money of some balances."""
        if self.are_there:
            self._send("waits", organisation_id, sorted(balance_ids)[:BALANCES_MAX])

    def announce_room(self, organisation_id: str, balance_ids: Iterable[int]) -> None:
        """Notify them, after a moment, that money has returned to some balances."""
        if not self.are_there:
            return
        if organisation_id not in self._freed:
            asyncio.get_running_loop().call_later(GATHER_S, self._send_room, organisation_id)
        self._freed.setdefault(organisation_id, set()).update(balance_ids)

    def _send_room(self, organisation_id: str) -> None:
        freed = sorted(self._freed.pop(organisation_id))
        self._send("room", organisation_id, freed[:BALANCES_MAX])

    def _send(
        self, kind: str, organisation_id: str, told: dict[str, list[str]] | list[int]
    ) -> None:
        channel, replica = self._sender()
        payload = f"{replica} {kind} {organisation_id} {json.dumps(told)}"
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
