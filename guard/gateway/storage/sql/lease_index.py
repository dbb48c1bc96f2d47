"""Open leases by the balances that they hold money on, for refusals."""

from __future__ import annotations

import itertools

from guard.gateway.domain.ledger import Reservation


class LeaseIndex:
    """Kept beside the cached leases, so that a refusal looks at those of its balance only."""

    def __init__(self) -> None:
        self._of: dict[int, dict[str, Reservation]] = {}

    def add(self, lease: Reservation) -> None:
        """Note an open lease."""
        for balance_id in lease.balance_ids:
            self._of.setdefault(balance_id, {})[lease.reservation_id] = lease

    def drop(self, lease: Reservation) -> None:
        """Forget a lease."""
        for balance_id in lease.balance_ids:
            found = self._of.get(balance_id)
            if found is not None:
                found.pop(lease.reservation_id, None)
                if not found:
                    del self._of[balance_id]

    def clear(self) -> None:
        """Forget all."""
        self._of.clear()

    def turn(self, balance_id: int, limit: int) -> list[Reservation]:
        """Return at most so many leases of a balance; the next call begins after them."""
        known = self._of.get(balance_id, {})
        found = list(itertools.islice(known.values(), limit))
        if len(found) < len(known):
            for lease in found:
                known[lease.reservation_id] = known.pop(lease.reservation_id)
        return found
