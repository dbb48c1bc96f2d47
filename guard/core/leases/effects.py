"""The desk's outputs: what is to be done next. ``guard.asking.courier`` carries them out."""

from __future__ import annotations

from msgspec import Struct

from guard.core.leases.question import Grant, Question
from guard.core.leases.records import LeaseRequest, Update
from guard.core.wire import GateReply, GateRequest


class Complete(Struct, frozen=True):
    """A question is granted: complete its ticket."""

    question: Question
    grant: Grant


class Fail(Struct, frozen=True):
    """A question is refused, or cannot be answered: fail its ticket."""

    question: Question
    error: BaseException


class AskGateway(Struct, frozen=True):
    """Send a question to the gateway; the outcome goes to ``Desk.answered``.

    Attributes:
        question: the question.
        asked: the lease that is asked for with it; None when only this question is decided.
        waiting: how many others of the lane waited at that moment. A refusal for lack of money
            applies to those, not to questions that came later.
        is_repeat: whether it was sent before, and its answer has not come: with the same key and
            the same body.
    """

    question: Question
    asked: LeaseRequest | None = None
    waiting: int = 0
    is_repeat: bool = False


class TopUp(Struct, frozen=True):
    """Top up a lease before a call has to wait for it; the outcome goes to ``Desk.topped_up``.

    Attributes:
        asked: the money that is asked for.
        like: the question of the lease's newest grant, which is repeated for the top-up.
    """

    asked: LeaseRequest
    like: GateRequest


class Wait(Struct, frozen=True):
    """A question waits in line for money that others hold; the desk sends it again by itself.

    Attributes:
        question: the question.
        place: in the gateway's line; 1 is the first, 0 is unknown.
        asks: whether it waits for an operator to raise a budget.
    """

    question: Question
    place: int = 0
    asks: bool = False


class Withdraw(Struct, frozen=True):
    """Give up a question's place in the gateway's line: its caller has given up."""

    question: Question


class Settle(Struct, frozen=True):
    """Learn what was decided about a question that nobody waits for any more, and give it back."""

    ask: AskGateway


Effect = Complete | Fail | AskGateway | TopUp | Wait | Withdraw | Settle | Update


class NotGranted(Struct, frozen=True):
    """A question that was not granted.

    Attributes:
        error: what its caller gets.
        for_money: whether the money did not suffice: questions that need as much get the same.
        is_unanswered: whether the answer is not known.
        has_left: whether the gateway may have granted it, or may do so yet.
        for_all: whether the gateway asked not to be called for a while: all questions get the
            same.
    """

    error: BaseException
    for_money: bool = False
    is_unanswered: bool = False
    has_left: bool = False
    for_all: bool = False


Answer = GateReply | NotGranted
