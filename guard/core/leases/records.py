"""Records that the book of leases hands out: questions, updates and totals."""

from __future__ import annotations

from msgspec import Struct

from guard.core.leases.lease import LaneKey, Lease
from guard.core.wire import LeaseAsk, LeaseUpdate


class LeaseRequest(Struct, frozen=True):
    """A question for a lane's lease.

    Attributes:
        lane: the lane.
        sent_s: when it was sent, by the monotonic clock. The lease's lifetime counts from here:
            the gateway starts it later, so the lease ends here before it ends there.
        voided: how often coverage had been voided by then. If the count has changed when the
            answer comes, the answer covers no later call.
        ask: the part of the request about the lease.
    """

    lane: LaneKey
    sent_s: float
    voided: int
    ask: LeaseAsk


class Update(Struct, frozen=True):
    """A renewal, a return of money, or the close of a lease (``closes``)."""

    lease: Lease
    body: LeaseUpdate

    @property
    def closes(self) -> bool:
        """Whether it closes the lease, so that it is the last one."""
        return self.body.close


class Totals(Struct, frozen=True):
    """Sums over all leases: their number, their money, and the calls and requests under way."""

    leases: int = 0
    nanousd: int = 0
    under_way: int = 0
