"""What a process knows of its leases: money and calls granted in advance, spent without asking."""

from guard.core.leases.book import LeaseBook
from guard.core.leases.costs import cost_of, fitting_output, paid_output, worst_case
from guard.core.leases.desk import OUTLASTS_S, Desk
from guard.core.leases.effects import (
    Answer,
    AskGateway,
    Complete,
    Effect,
    Fail,
    NotGranted,
    Settle,
    TopUp,
    Wait,
    Withdraw,
)
from guard.core.leases.holds import Hold
from guard.core.leases.lease import LaneKey, Lease, Subject, request_subject
from guard.core.leases.question import Grant, Question
from guard.core.leases.records import LeaseRequest, Totals, Update

__all__ = [
    "OUTLASTS_S",
    "Answer",
    "AskGateway",
    "Complete",
    "Desk",
    "Effect",
    "Fail",
    "Grant",
    "Hold",
    "LaneKey",
    "Lease",
    "LeaseBook",
    "LeaseRequest",
    "NotGranted",
    "Question",
    "Settle",
    "Subject",
    "TopUp",
    "Totals",
    "Update",
    "Wait",
    "Withdraw",
    "cost_of",
    "fitting_output",
    "paid_output",
    "request_subject",
    "worst_case",
]
