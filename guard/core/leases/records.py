"""What the book of leases hands out: what to ask, what to update, and sums."""

from __future__ import annotations

from msgspec import Struct

from guard.core.leases.lease import LaneKey, Lease
from guard.core.wire import LeaseAsk, LeaseUpdate


class Asked(Struct, frozen=True):
    """A lease that has been asked for.

    Attributes:
        lane: the lane.
        sent_s: when; the lease lasts from then on.
        voided: how often coverage had been voided by then: an answer that was decided earlier
            covers nothing later.
        ask: what the request says of it.
    """

    lane: LaneKey
    sent_s: float
    voided: int
    ask: LeaseAsk


class Update(Struct, frozen=True):
    """A renewal, or money that goes back; ``closes`` when nothing more is taken from the lease."""

    lease: Lease
    body: LeaseUpdate

    @property
    def closes(self) -> bool:
        """Whether it is the lease's last one."""
        return self.body.close


class Totals(Struct, frozen=True):
    """All leases together: how many, their money, and how many calls and requests are under way."""

    leases: int = 0
    nanousd: int = 0
    under_way: int = 0
