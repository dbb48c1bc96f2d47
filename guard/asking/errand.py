"""A question on its way to the gateway, and what its caller gets for an error on that way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from guard.breaker.exceptions import GuardTransportError, was_shut_down
from guard.core import wire
from guard.core.buffer import Record
from guard.core.leases import AskGateway
from guard.loop import AdmissionError, LoopClosedError

if TYPE_CHECKING:  # the session imports httpx and websockets, which `import guard` must not
    from guard.session.session import Session


class Errand(Struct, eq=False):
    """A question on its way.

    Attributes:
        ask: the question, and what is asked for its lane.
        records: the events that go along; empty when there are none, or they spoilt the request.
        has_left: whether the gateway may have decided it. From then on only the very same request
            may be sent, with the same key and the same body.
    """

    ask: AskGateway
    records: list[Record]
    has_left: bool = False

    def detach(self, session: Session) -> None:
        """Ask without the events: one cannot be read, which is no reason to refuse the call.

        They are delivered in a batch, where the bad one is found and left out.
        """
        session.flusher.requeue(self.records)
        self.records, self.ask.question.request.events = [], []


def as_public(exc: BaseException) -> BaseException:
    """Return what a caller gets for an error on the way."""
    if isinstance(exc, AdmissionError):
        return GuardTransportError(
            f"this process asks for too many decisions at once: {exc}", endpoint=wire.GATE_PATH
        )
    if isinstance(exc, LoopClosedError):
        return was_shut_down()
    if isinstance(exc, wire.WireError):
        return GuardTransportError(str(exc), retryable=False)
    return exc
