"""Sends the questions of callers to the gateway: over the control socket, else over HTTP."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import attrs
from msgspec import Struct

from guard.breaker.exceptions import GuardError, GuardTransportError, RateLimitError
from guard.core import wire
from guard.core.buffer import Record
from guard.core.leases import Hold, LaneKey, Subject, paid_output
from guard.core.request_bound import RequestBound
from guard.loop import Admission, Ticket
from guard.loop.admission import AdmissionError
from guard.runtime.event_pipeline import EventPipeline
from guard.transport.replies import BodyRefusedError, Reply

if TYPE_CHECKING:  # the session imports httpx and websockets, which `import guard` must not
    from guard.runtime.session import Session

Decided = Callable[["wire.GateReply | BaseException"], object]

_HEDGE_SHARE: Final = 0.5
"""Share of a caller's deadline after which a question without an answer is asked over HTTP."""


class Grant(Struct, frozen=True):
    """What lets a call or a request go on: the gateway's reply, or a hold from a lease, or both.

    ``approved`` says that a person has allowed it.
    """

    reply: wire.GateReply | None = None
    hold: Hold | None = None
    rates: wire.ModelRates | None = None
    output_tokens: int | None = None
    approved: bool = False


@attrs.frozen
class Asking:
    """What is asked, and which lease may cover it.

    Attributes:
        request: the question.
        lane, subject: where a lease may cover it; None when only the gateway decides.
        bound: of an LLM request.
        calls: how many calls of the share of rate caps it is.
    """

    request: wire.GateRequest
    lane: LaneKey | None = None
    subject: Subject | None = None
    bound: RequestBound | None = None
    calls: int = 1


def granted(asking: Asking, reply: wire.GateReply, hold: Hold | None = None) -> Grant:
    """Return what a reply grants; of an LLM request also the largest output that it pays for."""
    rates = reply.rates or (None if reply.lease is None else reply.lease.rates)
    bound = asking.bound
    paid = None if bound is None else paid_output(rates, bound, reply.reserved_nanousd)
    return Grant(reply, hold, rates, paid)


@attrs.define(eq=False)
class Question:
    """One caller's question.

    Attributes:
        asking: what is asked.
        ends_s: the caller's deadline, by the monotonic clock.
        ticket: takes the answer.
        over: how it is asked, for the debug log.
    """

    asking: Asking
    ends_s: float
    ticket: Ticket[Grant]
    over: str = "HTTP"


class Questions:
    """Asks the gateway; on the background loop.

    Args:
        events: has the session; its buffered events go with a question.
        admission: bounds the questions over HTTP.
        learned: takes each reply.
    """

    def __init__(
        self,
        events: EventPipeline,
        admission: Admission,
        learned: Callable[[wire.GateRequest, wire.GateReply], None],
    ) -> None:
        self._events = events
        self._admission = admission
        self._learned = learned

    @contextlib.contextmanager
    def in_one_frame(self) -> Iterator[None]:
        """Send what is asked inside over the socket at the end, at once."""
        session = self._events.session
        if session is None:
            yield
            return
        asks = session.asks
        asks.hold()
        try:
            yield
        finally:
            asks.flush()

    def ask(self, request: wire.GateRequest, ends_s: float, decided: Decided) -> None:
        """Ask; ``decided`` is called once, with the reply or with what it means for the caller.

        Args:
            request: what is asked.
            ends_s: the caller's deadline, by the monotonic clock.
            decided: takes the outcome.
        """
        decided = functools.partial(self._end, request, decided)
        session = self._events.session
        if session is None or not session.asks.is_open:
            self._over_http(lambda: self._ask_session(request, ends_s), decided)
            return
        unwanted = session.client.left_alone(wire.GATE_PATH)
        if unwanted is not None:
            decided(unwanted)
            return
        records, request.events = session.flusher.piggyback(request.workflow_id)
        try:
            body = wire.encode(request)
        except wire.WireError as exc:
            session.flusher.requeue(records)
            decided(GuardTransportError(str(exc), retryable=False))
            return
        told = functools.partial(self._told, session, request, records, ends_s, decided)
        wait_s = _HEDGE_SHARE * max(0.0, ends_s - time.monotonic())
        session.asks.ask("gate", request.call_id, body, told, wait_s)

    def _told(
        self,
        session: Session,
        request: wire.GateRequest,
        records: list[Record],
        ends_s: float,
        decided: Decided,
        told: wire.Told | None,
    ) -> None:
        if told is None:  # whether it was decided is not known: the same again, with the same key
            again = functools.partial(self._ask_again, session, request, records, ends_s)
            self._over_http(again, decided)
            return
        reply = Reply(wire.GATE_PATH, told.status, bytes(told.body), now_s=time.time())
        try:
            answer = session.client.read(reply, wire.GateReply)
            if answer.call_id != request.call_id:
                raise GuardTransportError(
                    "the gateway answered another call",
                    source="GATEWAY_ERROR",
                    endpoint=wire.GATE_PATH,
                    retryable=False,
                )
        except BodyRefusedError as exc:
            session.flusher.requeue(records)
            if records:  # one of the events cannot be read: that is no reason to refuse the call
                self._over_http(lambda: self._ask_session(request, ends_s), decided)
            else:
                decided(exc)
        except GuardTransportError as exc:
            if exc.retryable and not isinstance(exc, RateLimitError):
                again = functools.partial(self._ask_again, session, request, records, ends_s)
                self._over_http(again, decided)
            else:
                session.flusher.requeue(records)
                decided(exc)
        except BaseException as exc:  # noqa: BLE001  # a refusal belongs to the caller
            session.flusher.requeue(records)
            decided(exc)
        else:
            session.flusher.acknowledge(records, answer.events)
            request.events = []
            session.flusher.flush_rest()
            decided(answer)

    async def _ask_again(
        self,
        session: Session,
        request: wire.GateRequest,
        records: list[Record],
        ends_s: float,
    ) -> wire.GateReply:
        """Ask over HTTP what was asked over the socket: the same key, so the same body."""
        try:
            left_s = max(0.0, ends_s - time.monotonic())
            reply = await session.client.gate(request, deadline_s=left_s)
        except BaseException:
            session.flusher.requeue(records)
            raise
        session.flusher.acknowledge(records, reply.events)
        request.events = []
        return reply

    async def _ask_session(self, request: wire.GateRequest, ends_s: float) -> wire.GateReply:
        session = await self._events.open_session()
        return await session.ask(request, max(0.0, ends_s - time.monotonic()))

    def _over_http(
        self, start: Callable[[], Coroutine[Any, Any, wire.GateReply]], decided: Decided
    ) -> None:
        try:
            ticket = self._admission.submit(start)
        except AdmissionError as exc:
            error = GuardTransportError(
                f"this process asks for too many decisions at once: {exc}", endpoint=wire.GATE_PATH
            )
            decided(error)
            return
        ticket.add_done_callback(functools.partial(self._ended, decided))

    def _ended(self, decided: Decided, ticket: Future[wire.GateReply]) -> None:
        if ticket.cancelled():  # the loop is closing, and so are its callers' tickets
            return
        decided(ticket.exception() or ticket.result())

    def _end(
        self,
        request: wire.GateRequest,
        decided: Decided,
        outcome: wire.GateReply | BaseException,
    ) -> None:
        self._events.health.gate_ended(outcome if isinstance(outcome, GuardError) else None)
        if isinstance(outcome, wire.GateReply):
            self._learned(request, outcome)
        decided(outcome)
