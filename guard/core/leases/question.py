"""A caller's question to the gateway, and the grant that answers it."""

from __future__ import annotations

import math
from typing import Final, Protocol

from msgspec import Struct

from guard.core.leases.costs import paid_output
from guard.core.leases.holds import Hold
from guard.core.leases.lease import LaneKey, Subject
from guard.core.request_bound import RequestBound
from guard.core.wire import GateReply, GateRequest, ModelRates

PARKING_S: Final = 2.0
"""How much longer its caller waits where a question without an answer is asked again: its deadline
is moved as it passes."""


class Caller(Protocol):
    """The caller's end of a question: a concurrent future.

    Attributes:
        started: whether the question was sent; a caller whose deadline passes reports it.
    """

    started: bool

    def cancelled(self) -> bool:
        """Return whether the caller has given up."""


class Question(Struct, eq=False):
    """One caller's question, and the lane whose lease may cover it.

    All times are by the clock of the leases; ``math.inf`` stands for "never".

    Attributes:
        request: the body that is sent to the gateway if no lease covers the call.
        lane, subject: where a lease may cover it; None when only the gateway decides.
        bound: the most that an LLM request can use; None for a call.
        calls: how many calls it counts as in a lease's share of rate caps.
        ends_s: the caller's deadline. The desk moves it while the question waits in line.
        ticket: receives the answer; set before the question is handed over.
        over: the channel by which the gateway was asked, for the debug log.
        answer_s: how long the gateway may take for an answer, in seconds.
        attempt: how many answers have sent it back into line; part of its idempotency key.
        asked_s, sent_s: when it was first sent, and last.
        again_s: when it is sent again, while it waits in line; never, while it is under way.
        freed_s: when money last came back to its budgets, as far as this process knows.
        outlasts_s: for how long it is sent again while the gateway cannot be reached, in seconds.
            One that is told to wait in line outlasts an absence by itself.
        unreached_s: since when the gateway cannot be reached; never, while it can.
    """

    # Made by the caller's thread. From `Courier.put` on only the background loop changes it; the
    # waiting thread reads `ends_s`.
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
    sent_s: float = -math.inf
    again_s: float = math.inf
    freed_s: float = -math.inf
    outlasts_s: float = 0.0
    unreached_s: float = math.inf

    @property
    def gives_up_s(self) -> float:
        """When its caller gives up: at its deadline, if it is not going to be asked again then."""
        return self.ends_s + (PARKING_S if self.outlasts_s else 0.0)

    @property
    def key(self) -> str:
        """The idempotency key of this attempt.

        A repeat of the same attempt, such as over HTTP after the socket was lost, or once the
        gateway is back, has the same key and gets the stored answer. A new attempt needs a new key,
        to be decided anew.
        """
        call_id = self.request.call_id
        return call_id if not self.attempt else f"{call_id}-{self.attempt}"


class Grant(Struct, frozen=True):
    """Permission for one call or request: the gateway's reply, or a hold from a lease, or both.

    Attributes:
        reply: the gateway's answer; None if a lease covers the call without one.
        hold: the money taken from a lease; None if the gateway holds it, or nothing is held.
        rates: the rates by which the cost of a request is computed here; None if unknown.
        output_tokens: the largest output that the money pays for; None if unknown.
        approved: whether a person has allowed it.
    """

    reply: GateReply | None = None
    hold: Hold | None = None
    rates: ModelRates | None = None
    output_tokens: int | None = None
    approved: bool = False


def granted(question: Question, reply: GateReply, hold: Hold | None = None) -> Grant:
    """Return the grant in a reply, with the largest output of an LLM request that it pays for."""
    rates = reply.rates or (None if reply.lease is None else reply.lease.rates)
    bound = question.bound
    paid = reply.max_output_tokens
    if paid is None and bound is not None:
        paid = paid_output(rates, bound, reply.reserved_nanousd)
    return Grant(reply, hold, rates, paid)
