"""What the desk wants done: its outputs. Carried out by ``guard.asking.courier``."""

from __future__ import annotations

from msgspec import Struct

from guard.core.leases.question import Grant, Question
from guard.core.leases.records import Asked, Update
from guard.core.wire import GateReply, GateRequest


class Complete(Struct, frozen=True):
    """A question is answered: its caller goes on."""

    question: Question
    grant: Grant


class Fail(Struct, frozen=True):
    """A question is refused, or cannot be answered."""

    question: Question
    error: BaseException


class AskGateway(Struct, frozen=True):
    """A question goes to the gateway.

    Attributes:
        question: whose.
        asked: what is asked for its lane; None when only this question is decided.
        waiting: how many others of the lane waited when it was asked.
    """

    question: Question
    asked: Asked | None = None
    waiting: int = 0


class TopUp(Struct, frozen=True):
    """A lease is to be topped up before a call has to wait for it.

    Attributes:
        asked: what is asked for.
        like: what the lease was granted for last.
    """

    asked: Asked
    like: GateRequest


class Wait(Struct, frozen=True):
    """A question waits in line for money that is only set aside; the desk asks it again.

    Attributes:
        question: whose.
        place: in the gateway's line; 1 is the first, 0 is unknown.
        asks: whether it waits for an operator to raise a budget.
    """

    question: Question
    place: int = 0
    asks: bool = False


class Withdraw(Struct, frozen=True):
    """The caller of a question has given up, so it needs its place in line no longer."""

    question: Question


Effect = Complete | Fail | AskGateway | TopUp | Wait | Withdraw | Update


class NotGranted(Struct, frozen=True):
    """A question that was not granted.

    Attributes:
        error: what its caller gets.
        for_money: whether the money did not suffice, so that who needs as much gets the same.
        is_unanswered: whether the gateway may have decided otherwise: its answer is not known.
        for_all: whether the gateway wants to be left alone, so that whoever asks gets the same.
    """

    error: BaseException
    for_money: bool = False
    is_unanswered: bool = False
    for_all: bool = False


Answer = GateReply | NotGranted
