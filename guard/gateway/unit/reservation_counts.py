"""Counts of leases and of expired reservations, kept while rows are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from guard.gateway.domain.ledger import Reservation


class ReservationCounts:
    """Follows the rows that each commit changes, so that reading a count costs nothing.

    Attributes:
        leases: open leases.
        leased_nanousd: the money that they hold.
        expired: reservations that have expired since the file was opened, leases included.
    """

    # Written by the side that runs the unit of work; metrics read the attributes on the loop,
    # without a lock, and may see a number that is a moment old.

    def __init__(self) -> None:
        # What each open lease holds according to its row, by id.
        self._held: dict[str, int] = {}
        # Of this unit; added to ``expired`` by the commit. The other two are corrected by ``start``
        # after a rollback.
        self._expired_now = 0
        self.leases = 0
        self.leased_nanousd = 0
        self.expired = 0

    def start(self, leases: Iterable[Reservation]) -> None:
        """Count anew: at the start, and after a rollback."""
        self._held = {each.reservation_id: each.held for each in leases if each.state == "open"}
        self._expired_now = 0
        self.leases, self.leased_nanousd = len(self._held), sum(self._held.values())

    def written(
        self, changed: Mapping[str, Reservation], open_before: Mapping[str, Reservation]
    ) -> None:
        """Count rows that are being written.

        Args:
            changed: new and changed reservations.
            open_before: those that were open before this unit of work, and the new ones. A late
                charge changes the row of an expired reservation, which has not expired again.
        """
        held = self._held
        for key, reservation in changed.items():
            if reservation.state == "expired" and key in open_before:
                self._expired_now += 1
            if reservation.is_lease:
                self.leased_nanousd -= held.pop(key, 0)
                if reservation.state == "open":
                    held[key] = reservation.held
                    self.leased_nanousd += reservation.held
        self.leases = len(held)

    def committed(self) -> None:
        """Publish the number of expired reservations."""
        if self._expired_now:
            self.expired += self._expired_now
            self._expired_now = 0
