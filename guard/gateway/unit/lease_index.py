"""Open leases by the balances that they hold money on, for refusals, and by key."""

from __future__ import annotations

import itertools
from collections.abc import Collection

from guard.gateway.domain.key_hierarchy import top_key
from guard.gateway.domain.ledger import Reservation


class LeaseIndex:
    """Kept beside the cached leases, so that a refusal looks at those of its balance only."""

    def __init__(self) -> None:
        # By balance, then by id, in the order in which ``turn`` returns them.
        self._of: dict[int, dict[str, Reservation]] = {}
        # By organisation and the root of the holder's key, then by id.
        self._of_key: dict[tuple[str, str], dict[str, Reservation]] = {}

    def add(self, lease: Reservation) -> None:
        """Note an open lease."""
        for balance_id in lease.balance_ids:
            self._of.setdefault(balance_id, {})[lease.reservation_id] = lease
        self._of_key.setdefault(_owner(lease), {})[lease.reservation_id] = lease

    def drop(self, lease: Reservation) -> None:
        """Forget a lease."""
        for balance_id in lease.balance_ids:
            found = self._of.get(balance_id)
            if found is not None:
                found.pop(lease.reservation_id, None)
                if not found:
                    del self._of[balance_id]
        own = self._of_key.get(_owner(lease))
        if own is not None:
            own.pop(lease.reservation_id, None)
            if not own:
                del self._of_key[_owner(lease)]

    def clear(self) -> None:
        """Forget all."""
        self._of.clear()
        self._of_key.clear()

    def of_key(self, organisation_id: str, root_id: str) -> Collection[Reservation]:
        """Return the leases of a key and of those below it."""
        return self._of_key.get((organisation_id, root_id), {}).values()

    def turn(self, balance_id: int, limit: int) -> list[Reservation]:
        """Return at most so many leases of a balance; the next call begins after them."""
        known = self._of.get(balance_id, {})
        found = list(itertools.islice(known.values(), limit))
        # Dictionaries keep the order of insertion: these go to the end. Not undone with a failed
        # command, since the order decides nothing but who is asked first.
        if len(found) < len(known):
            for lease in found:
                known[lease.reservation_id] = known.pop(lease.reservation_id)
        return found


def _owner(lease: Reservation) -> tuple[str, str]:
    return lease.organisation_id, top_key(lease.key_id)
