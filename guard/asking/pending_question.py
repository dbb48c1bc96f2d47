"""A question on its way to the gateway, and the public errors for what can go wrong there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from guard.asking import lease_clock
from guard.breaker.exceptions import GuardTransportError, was_shut_down
from guard.core import wire
from guard.core.buffer import Record
from guard.core.leases import AskGateway
from guard.loop import PATIENCE_S, AdmissionError, LoopClosedError

if TYPE_CHECKING:  # the session imports httpx and websockets, which `import guard` must not
    from guard.session.session import Session

_AGAIN_SHARE: Final = 0.4
"""Too short to count against the gateway (`GatewayClient`), which had the rest before."""


class PendingQuestion(Struct, eq=False):
    """A question on its way. Used on the background loop only.

    Attributes:
        ask: the question, and the lease that is asked for with it.
        records: the events that go along for the first time; empty when there are none, or when
            the gateway refused the request because of one.
        has_left: whether the gateway may have decided it. From then on only the same request may
            be sent, with the same key and the same body. The one exception is ``detach``, after
            the gateway has refused to read the body and so has decided nothing.
        latest_s: the latest end of the wait for its answer, whatever this process does meanwhile.
    """

    ask: AskGateway
    records: list[Record]
    has_left: bool = False
    latest_s: float = math.inf

    def sets_out(self) -> None:
        """Begin the gateway's time for an answer: the question is sent now.

        If it has left before, over the other channel, it has what is left of that time, or a share
        of a new one when this process noticed too late that it has to be sent again.
        """
        question, now_s = self.ask.question, lease_clock.now_s()
        answer_s = question.answer_s
        if self.latest_s == math.inf:
            self.latest_s = now_s + answer_s + PATIENCE_S
        else:
            answer_s *= _AGAIN_SHARE
        question.ends_s = max(question.ends_s, min(now_s + answer_s, self.latest_s))

    def detach(self, session: Session) -> None:
        """Take the events out of the request: the gateway cannot read one of them.

        That is no reason to refuse the call. They are delivered in a batch, where the bad one is
        found and left out.
        """
        session.flusher.requeue(self.records)
        self.records, self.ask.question.request.events = [], []


def as_public(exc: BaseException) -> BaseException:
    """Return the error that a caller gets for an internal one."""
    if isinstance(exc, AdmissionError):
        return GuardTransportError(
            f"this process asks for too many decisions at once: {exc}", endpoint=wire.GATE_PATH
        )
    if isinstance(exc, LoopClosedError):
        return was_shut_down()
    if isinstance(exc, wire.WireError):
        return GuardTransportError(str(exc), retryable=False)
    return exc
