"""A caller's question, and what lets its call go on."""

from __future__ import annotations

import math
from typing import Protocol

from msgspec import Struct

from guard.core.leases.costs import paid_output
from guard.core.leases.holds import Hold
from guard.core.leases.lease import LaneKey, Subject
from guard.core.request_bound import RequestBound
from guard.core.wire import GateReply, GateRequest, ModelRates


class Caller(Protocol):
    """The caller who waits for an answer: a concurrent future.

    Attributes:
        started: whether the question has had its turn.
    """

    started: bool

    def cancelled(self) -> bool:
        """Tell whether the caller has given up."""


class Question(Struct, eq=False):
    """What one caller asks, and which lease may cover it.

    Attributes:
        request: what the gateway is asked if no lease covers it.
        lane, subject: where a lease may cover it; None when only the gateway decides.
        bound: of an LLM request.
        calls: how many calls of the share of rate caps it is.
        ends_s: the caller's deadline, by the monotonic clock.
        ticket: takes the answer; set before the question is handed on.
        over: how the gateway is asked, for the debug log.
        answer_s: how long an answer of the gateway is waited for, in seconds.
        attempt: how often it was asked already, each time under another key.
        asked_s: when it was asked first; never, until it is.
        again_s: when it is asked again, while it waits in line; never, while it is asked.
        freed_s: when money came back last, as far as it is known here.
        outlasts_s: for so long it is asked again while the gateway cannot be reached, in seconds.
        unreached_s: since when the gateway cannot be reached; never, while it can.
    """

    request: GateRequest
    lane: LaneKey | None = None
    subject: Subject | None = None
    bound: RequestBound | None = None
    calls: int = 1
    ends_s: float = math.inf
    ticket: Caller | None = None
    over: str = "HTTP"
    answer_s: float = math.inf
    attempt: int = 0
    asked_s: float = math.inf
    again_s: float = math.inf
    freed_s: float = -math.inf
    outlasts_s: float = 0.0
    unreached_s: float = math.inf

    @property
    def key(self) -> str:
        """The idempotency key of this attempt."""
        call_id = self.request.call_id
        return call_id if not self.attempt else f"{call_id}-{self.attempt}"


class Grant(Struct, frozen=True):
    """What lets a call or a request go on: the gateway's reply, or a hold from a lease, or both.

    ``approved`` says that a person has allowed it.
    """

    reply: GateReply | None = None
    hold: Hold | None = None
    rates: ModelRates | None = None
    output_tokens: int | None = None
    approved: bool = False


def granted(question: Question, reply: GateReply, hold: Hold | None = None) -> Grant:
    """Return what a reply grants; of an LLM request also the largest output that it pays for."""
    rates = reply.rates or (None if reply.lease is None else reply.lease.rates)
    bound = question.bound
    paid = reply.max_output_tokens
    if paid is None and bound is not None:
        paid = paid_output(rates, bound, reply.reserved_nanousd)
    return Grant(reply, hold, rates, paid)
