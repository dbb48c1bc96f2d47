"""What a process knows of its leases: money and calls granted in advance, spent without asking."""

from guard.core.leases.book import LeaseBook
from guard.core.leases.lease import (
    Hold,
    LaneKey,
    Lease,
    Subject,
    cost_of,
    paid_output,
    request_subject,
    worst_case,
)
from guard.core.leases.records import Asked, Totals, Update

__all__ = [
    "Asked",
    "Hold",
    "LaneKey",
    "Lease",
    "LeaseBook",
    "Subject",
    "Totals",
    "Update",
    "cost_of",
    "paid_output",
    "request_subject",
    "worst_case",
]
