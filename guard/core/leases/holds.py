"""What calls and requests take from a lease while they are under way."""

from __future__ import annotations

import threading
from typing import Protocol

from msgspec import Struct

from guard.core.leases.lease import Lease


class HoldKeeper(Protocol):
    """The book that a hold was taken from; the hold reports its cost to it."""

    lock: threading.RLock

    def spent(self, lease: Lease, cost: int, over: int) -> None:
        """Count what a hold has cost, and by how much that was more than the hold."""


class Hold(Struct, eq=False):
    """What one call or request takes from a lease while it is under way; only its first end counts.

    Any thread may end it: the caller's, the one that reads the answer, or the background loop.
    Several may try at the same time (a stream that is closed while its last part is read), hence
    the flag. The hold never looks at whether its lease is still current: after a close or a fork
    it changes the figures of a lease that nothing reads, which is harmless.

    Attributes:
        lease: what it was taken from.
        amount: the money, in nano-dollars; it may grow while the hold is open.
    """

    # `amount` and `_is_open` change under the book's lock.
    _book: HoldKeeper
    lease: Lease
    amount: int
    _is_open: bool = True

    def settle(self, cost: int) -> bool:
        """Pay what the call cost and return the rest; False when it has ended already."""
        book = self._book
        with book.lock:
            if not self._is_open:
                return False
            self._is_open = False
            lease = self.lease
            lease.ended(self.amount)
            # All of the cost, even above the hold: the lease then owes the rest to its next grant.
            lease.free -= cost
            book.spent(lease, cost, max(0, cost - self.amount))
        return True

    def give_back(self) -> bool:
        """Return all of it: nothing was spent; False when it has ended already."""
        with self._book.lock:
            if not self._is_open:
                return False
            self._is_open = False
            self.lease.ended(self.amount)
        return True

    def keep(self) -> bool:
        """Count all of it as spent, since its cost is not known; False when it has ended."""
        # The lock is re-entrant: both changes are one step for other threads.
        with self._book.lock:
            self.lease.unseen += self.amount if self._is_open else 0
            return self.settle(self.amount)

    def grow(self, amount: int) -> bool:
        """Take more from the lease's free money; False if there is too little or it has ended."""
        with self._book.lock:
            lease = self.lease
            # Not from a retired lease: what it has free is about to be returned.
            if not self._is_open or not lease.is_current or lease.free < amount:
                return False
            lease.free -= amount
            lease.held += amount
            self.amount += amount
        return True

    def grow_within(self, amount: int) -> int:
        """Take up to ``amount`` more from the lease's free money; return how much was taken."""
        with self._book.lock:
            lease = self.lease
            if not self._is_open or not lease.is_current:
                return 0
            amount = max(0, min(amount, lease.free))
            lease.free -= amount
            lease.held += amount
            self.amount += amount
        return amount

    # A stream that was granted more has two holds; its event names one reservation. With both in
    # one hold, that event settles all of the money.
    def absorb(self, other: Hold) -> bool:
        """Take over another hold of the same lease; False when they differ or one has ended."""
        with self._book.lock:
            if not (self._is_open and other._is_open) or other.lease is not self.lease:
                return False
            other._is_open = False
            self.amount += other.amount
            self.lease.under_way -= 1  # `held` stays: the money is only in another hold
        return True
