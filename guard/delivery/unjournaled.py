"""The requests under way in a process that has no journal to write them to.

They are reported to the gateway instead (:mod:`guard.core.leases`). If the process dies, the
gateway charges the amounts that were reported last when the lease expires.
"""

from __future__ import annotations

from typing import TypeAlias

from guard.core.leases import LeaseBook
from guard.delivery.journal import JournalEntry


class UnjournaledRequest:
    """One request, from its hold to its event: like :class:`JournalEntry`, but in memory."""

    __slots__ = ("_is_over", "_open", "_reservation_id", "begun_ms", "serial")

    def __init__(
        self, leases: LeaseBook, reservation_id: str, amount: int, begun_ms: int, serial: int
    ) -> None:
        # The dict itself: in a forked child the book gets a new one, and the entries that the child
        # has inherited stay out of it.
        self._open = leases.unwritten
        self._reservation_id = reservation_id
        self.begun_ms = begun_ms
        self.serial = serial
        self._is_over = False
        self._open[serial] = reservation_id, amount

    def hold(self, amount: int) -> None:
        """Set what the request can cost, after a further hold."""
        if not self._is_over:
            self._open[self.serial] = self._reservation_id, amount
        # After the write: a `clear` in another thread has either removed it, or is seen here.
        if self._is_over:
            self._open.pop(self.serial, None)

    cost = hold
    """Set what the request cost; its event is not delivered yet."""

    def clear(self) -> None:
        """Remove the request: its event is delivered, or there is nothing to charge. Idempotent."""
        self._is_over = True
        self._open.pop(self.serial, None)


BegunRequest: TypeAlias = JournalEntry | UnjournaledRequest
