"""The requests under way in a process that cannot write them down.

The gateway is told of them instead (:mod:`guard.core.leases`), and charges what it was told last
when their lease expires.
"""

from __future__ import annotations

from typing import TypeAlias

from guard.core.leases import LeaseBook
from guard.delivery.journal import JournalEntry


class UnwrittenEntry:
    """One request, from its hold to its event; as a :class:`JournalEntry`, but in memory."""

    __slots__ = ("_open", "_reservation_id", "begun_ms", "serial")

    def __init__(
        self, leases: LeaseBook, reservation_id: str, amount: int, begun_ms: int, serial: int
    ) -> None:
        self._open = leases.unwritten  # a forked child has another one
        self._reservation_id = reservation_id
        self.begun_ms = begun_ms
        self.serial = serial
        self._open[serial] = reservation_id, amount

    def hold(self, amount: int) -> None:
        """More is held: that is what it can cost now."""
        if self.serial in self._open:
            self._open[self.serial] = self._reservation_id, amount

    cost = hold
    """What it cost is known; its event is not delivered yet."""

    def clear(self) -> None:
        """Its event is delivered, or there is nothing to charge. Idempotent."""
        self._open.pop(self.serial, None)


BegunRequest: TypeAlias = JournalEntry | UnwrittenEntry
