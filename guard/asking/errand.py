"""A question on its way to the gateway, and the public errors for what can go wrong there."""

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
    """A question on its way. Used on the background loop only.

    Attributes:
        ask: the question, and the lease that is asked for with it.
        records: the events that go along; empty when there are none, or when the gateway refused
            the request because of one.
        has_left: whether the gateway may have decided it. From then on only the same request may
            be sent, with the same key and the same body. The one exception is ``detach``, after
            the gateway has refused to read the body and so has decided nothing.
    """

    ask: AskGateway
    records: list[Record]
    has_left: bool = False

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
