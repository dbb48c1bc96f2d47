"""What calls and requests take from a lease while they are under way."""

from __future__ import annotations

import threading
from typing import Protocol

from msgspec import Struct

from guard.core.leases.lease import CallPool, Lease


class HoldKeeper(Protocol):
    """What a hold reports its end to: the book that it was taken from."""

    lock: threading.RLock

    def spent(self, lease: Lease, cost: int, over: int) -> None:
        """Count what a hold has cost, and by how much that was more than the hold."""


class Hold(Struct, eq=False):
    """What one call or request takes from a lease while it is under way; only its first end counts.

    Attributes:
        lease: what it was taken from.
        amount: the money.
    """

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
        with self._book.lock:
            self.lease.unseen += self.amount if self._is_open else 0
            return self.settle(self.amount)

    def grow(self, amount: int) -> bool:
        """Take more from what is free; False when there is too little, or it has ended."""
        with self._book.lock:
            lease = self.lease
            if not self._is_open or not lease.is_current or lease.free < amount:
                return False
            lease.free -= amount
            lease.held += amount
            self.amount += amount
        return True

    def grow_within(self, amount: int) -> int:
        """Take up to so much more from what is free; returns how much."""
        with self._book.lock:
            lease = self.lease
            if not self._is_open or not lease.is_current:
                return 0
            amount = max(0, min(amount, lease.free))
            lease.free -= amount
            lease.held += amount
            self.amount += amount
        return amount

    # A stream that was granted more has two holds; its event names one reservation.
    def absorb(self, other: Hold) -> bool:
        """Take over another hold of the same lease; False when that cannot be."""
        with self._book.lock:
            if not (self._is_open and other._is_open) or other.lease is not self.lease:
                return False
            other._is_open = False
            self.amount += other.amount
            self.lease.under_way -= 1
        return True


class CallHold(Hold):
    """The hold of a protected call, which goes back to its pool.

    Attributes:
        _pool: where it came from.
        _ends: popped by its first end, which is atomic.
    """

    _pool: CallPool = CallPool(0)
    _ends: list[bool] = []

    def give_back(self) -> bool:
        """Return all of it: nothing was spent; False when it has ended already."""
        try:
            self._ends.pop()
        except IndexError:
            return False
        pool = self._pool
        pool.ready.append(True)
        # The append comes first: a thread that closes the pool after this look drains it, and one
        # that closed it before is seen here. Either way the money is moved once.
        if pool.is_open:
            return True
        try:
            pool.ready.pop()
        except IndexError:  # the thread that closed it has drained it since
            return True
        with self._book.lock:
            self.lease.ended(self.amount)
        return True

    def settle(self, cost: int) -> bool:
        """Pay what the call cost and return the rest; False when it has ended already."""
        try:
            self._ends.pop()
        except IndexError:
            return False
        return super().settle(cost)

    def keep(self) -> bool:
        """Count all of it as spent, since its cost is not known; False when it has ended."""
        with self._book.lock:
            if not self.settle(self.amount):
                return False
            self.lease.unseen += self.amount
        return True
