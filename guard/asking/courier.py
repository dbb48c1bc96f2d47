"""Carries questions to the gateway and answers back: over the control socket, else over HTTP.

The one place where buffered events are attached to a question, and where the desk's effects are
carried out. Everything but :meth:`Courier.put` runs on the background loop.

A question can be lost in many ways: the socket closes, the answer is late, the loop ends, the
caller gives up. Each way ends in :meth:`Courier._conclude` exactly once, because the desk holds the
questions of a lane back until the one under way has an outcome. Only a shutdown skips the desk.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from guard.asking import decision_log, lease_clock
from guard.asking.pending_question import PendingQuestion, as_public
from guard.asking.renewals import Renewals
from guard.asking.updates import LeaseUpdates
from guard.breaker.exceptions import (
    GuardBudgetError,
    GuardChainError,
    GuardError,
    GuardInfrastructureError,
    GuardTransportError,
    RateLimitError,
    was_shut_down,
)
from guard.control.last_decision import Decisions
from guard.core import wire
from guard.core.leases import (
    AskGateway,
    Complete,
    Desk,
    Effect,
    Fail,
    Grant,
    LeaseRequest,
    NotGranted,
    Question,
    Settle,
    TopUp,
    Update,
    Wait,
    Withdraw,
)
from guard.instrumentation.unread_answers import UnreadAnswers
from guard.loop import Admission, AdmissionError, LoopClosedError, Ticket
from guard.session.event_pipeline import EventPipeline
from guard.session.link import Link
from guard.transport.replies import BodyRefusedError, Reply

if TYPE_CHECKING:  # the session imports httpx and websockets, which `import guard` must not
    from guard.session.session import Session

_HEDGE_SHARE: Final = 0.5
"""Share of a caller's remaining time after which a question that is unanswered over the socket is
repeated over HTTP, under the same key."""
_TOP_UP_S: Final = 2.0
"""How long to wait for the answer to a top-up; no caller waits for it."""


class Courier:
    """Takes callers' questions to the desk, and carries out what the desk decides.

    Args:
        link: to the gateway.
        events: its buffered events go along with a question.
        desk: decides which questions are sent, and which are answered.
        updates: sends lease updates to the gateway.
        admission: bounds the questions over HTTP.
        decisions: receives the budgets that replies carry.
        unread: the LLM answers that are unread, whose holds are larger than what they cost.
        renewals: renews what is held without a lease.

    Attributes:
        inbox: new questions, put there by callers' threads.
        asking: how many questions are under way over HTTP.
    """

    def __init__(
        self,
        link: Link,
        events: EventPipeline,
        desk: Desk,
        updates: LeaseUpdates,
        admission: Admission,
        decisions: Decisions,
        unread: UnreadAnswers,
        renewals: Renewals,
    ) -> None:
        self._link = link
        self._events = events
        self._desk = desk
        self._updates = updates
        self._admission = admission
        self._decisions = decisions
        self._unread = unread
        self._renewals = renewals
        # Appended to by callers' threads, emptied on the loop; both operations are atomic.
        self.inbox: deque[Question] = deque()
        # Changed on the loop only. The session waits until it is 0 before it closes.
        self.asking = 0
        # Effects still to be carried out, and whether a frame further up the stack is doing so.
        # On the loop only.
        self._effects: deque[Effect] = deque()
        self._is_carrying_out = False
        # Set when something was decided: from then on things may become due by the clock.
        self.begun = asyncio.Event()
        self._wait_warning = decision_log.BudgetWaitWarning()

    def after_fork(self) -> None:
        """Forget the parent's callers."""
        self.inbox = deque()
        self.asking = 0
        self._effects = deque()
        self._is_carrying_out = False
        self.begun = asyncio.Event()
        self._desk.after_fork()
        self._updates.after_fork()
        self._renewals.after_fork()
        self._admission.after_fork()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held and nobody waits, so that nothing can become due by the clock."""
        session = self._link.session
        return self._desk.is_still and not self._renewals and not (session and session.asks)

    # -- callers ----------------------------------------------------------------------------------

    def put(self, question: Question, ticket: Ticket[Grant]) -> None:
        """Hand over a question; from any thread, without waiting.

        Args:
            question: the question.
            ticket: receives the answer. The caller may cancel it at any time.

        Raises:
            LoopClosedError: guard was shut down.
        """
        background = self._link.background
        background.start()
        # Tracked before the loop can know of it: if the loop ends, it cancels the ticket, and the
        # caller does not wait for ever.
        background.track(ticket)
        # Append first: a callback that runs at once must find the question. One callback per
        # question, since an earlier one may be past its last look at the inbox.
        self.inbox.append(question)
        if not background.call_soon(self._take_in):
            raise LoopClosedError("the background loop is closed")

    def _take_in(self) -> None:
        """Take all questions in the inbox to the desk in one batch."""
        inbox, questions = self.inbox, list[Question]()
        while inbox:
            questions.append(inbox.popleft())
        if questions:  # else an earlier call has taken them all
            now_s = self._look()
            for question in questions:  # from here on the loop is not late for it any more
                question.ends_s = max(question.ends_s, now_s + question.answer_s)
            self.carry_out(self._desk.asked(questions, now_s))

    def _look(self) -> float:
        """Update what the desk decides by, before each event for it; return the time."""
        session = self._link.session
        self._desk.can_lease = session is not None and session.asks.can_lease
        # An unread answer holds its worst case. Reading it may free enough for this question.
        if self._unread.calls:
            self._unread.read()
        return lease_clock.now_s()

    def tick(self) -> None:
        """Do what is due by the clock."""
        session = self._link.session
        now_s = self._look()
        # Before the desk: questions that are given up here are repeated over HTTP.
        if session is not None:
            session.asks.sweep(time.monotonic())
        decision_log.is_on()  # refreshes `was_on`, which covered calls look at
        self.carry_out(self._desk.tick(now_s))
        self._renewals.tick(now_s)

    def room(self, call_ids: Iterable[str]) -> None:
        """Ask again for calls that wait in line: money has come back for them."""
        now_s = self._look()
        self.carry_out(self._desk.room(call_ids, now_s))

    def has_lapsed(self, grant: Grant) -> bool:
        """Return whether what a grant holds was not renewed in time; from any thread."""
        now_s = lease_clock.now_s()
        if grant.hold is not None:
            return now_s >= grant.hold.lease.expires_s
        return grant.reply is not None and now_s >= self._renewals.until_s(grant.reply)

    def give_back(self, grant: Grant, *, stays: bool = False) -> None:
        """Give back what a grant has set aside and no call uses.

        Args:
            grant: the grant.
            stays: leave its approval request open: the person may still answer, and the same call
                may come again.
        """
        session = self._link.session
        # Money of a lease goes back to the lease; without one, the gateway holds it.
        if grant.hold is not None:
            grant.hold.give_back()
        elif session is not None and grant.reply is not None:
            session.give_back(grant.reply, stays=stays)

    # -- what the desk decides --------------------------------------------------------------------

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out effects; all requests over the socket go in one frame.

        An effect may end a question at once, which has effects of its own. They are queued behind
        the present ones instead of being carried out by a nested call: a line of thousands of
        questions that are refused one after the other would overflow the stack.
        """
        self._effects.extend(effects)
        if self._effects:
            self.begun.set()
        if self._is_carrying_out:
            return
        session = self._link.session
        # `hold` collects what is sent below; the flush follows in `finally`, unless the caller is
        # inside of another one that will flush.
        is_first = session is not None and session.asks.hold()
        updates: list[Update] = []
        self._is_carrying_out = True
        try:
            while self._effects:
                effect = self._effects.popleft()
                if isinstance(effect, Complete):
                    self._complete(effect)
                elif isinstance(effect, AskGateway):
                    self._ask(effect)
                elif isinstance(effect, Fail):
                    _fail(effect)
                elif isinstance(effect, TopUp):
                    self._top_up(effect)
                elif isinstance(effect, Wait):
                    decision_log.waits(effect.question.request, effect.place)
                    if effect.asks:
                        self._wait_warning.note(effect.question.request)
                elif isinstance(effect, Settle):
                    self._updates.settle(effect.ask)
                elif isinstance(effect, Withdraw):
                    if session is not None:
                        session.release_soon(effect.question.request.call_id)
                else:
                    updates.append(effect)
            # Together: closes of several leases wait for one delivery of events.
            if updates:
                self._updates.send(updates)
        finally:
            # Also after an exception: effects that are left are carried out with the next ones.
            self._is_carrying_out = False
            if is_first and session is not None:
                session.asks.flush()

    def _complete(self, effect: Complete) -> None:
        ticket: Any = effect.question.ticket
        # From here on the caller cannot cancel; one that gives up now finds the result and gives
        # it back itself (`Gate._abandon`). So exactly one of the two gives it back.
        if ticket.set_running_or_notify_cancel():
            if effect.grant.reply is not None:
                self._renewals.add(effect.grant.reply, effect.question.sent_s)
            ticket.set_result(effect.grant)
        else:  # cancelled meanwhile: what was granted must not stay set aside
            self.give_back(effect.grant)

    def _ask(self, ask: AskGateway) -> None:
        """Send a question to the gateway."""
        question, session = ask.question, self._link.session
        request = question.request
        request.lease = None if ask.asked is None else ask.asked.ask
        pending = PendingQuestion(ask, [], has_left=ask.is_repeat)
        if session is None or not session.asks.is_open:
            self._by_http(pending)
        else:
            self._by_socket(session, pending)

    def _by_socket(self, session: Session, pending: PendingQuestion) -> None:
        """Ask over the socket."""
        question = pending.ask.question
        request = question.request
        # The gateway has asked not to be called for a while: fail at once.
        silence = session.client.left_alone(wire.GATE_PATH)
        if silence is not None:
            self._conclude(pending, silence)
            return
        # Once. A repeat has the body that was sent first, see `PendingQuestion.has_left`.
        if not pending.has_left:
            pending.records = session.flusher.attach(request)
        try:
            body = wire.encode(request)
        except wire.WireError as exc:
            self._conclude(pending, exc)
            return
        pending.sets_out()
        # From here on the gateway may decide it, even if the socket is lost in this moment.
        pending.has_left = True
        question.over = "the socket"
        if question.ticket is not None:
            question.ticket.started = True
        answered = functools.partial(self._answered, session, pending)
        wait_s = _HEDGE_SHARE * _left_s(question.ends_s)
        session.asks.ask("gate", question.key, body, answered, wait_s)

    def _top_up(self, effect: TopUp) -> None:
        """Repeat a lease's last question without its call, to add money to the lease."""
        session = self._link.session
        assert session is not None  # leases are granted over its socket
        call_id = self._events.ids.uuid7(time.time_ns() // 1_000_000)
        # Without all that belongs to one call: its events, its place in line, its approval, and the
        # money that it held already.
        request = structs.replace(
            effect.like, call_id=call_id, lease=effect.asked.ask, events=[], within=None,
            held=None, note=None, wait_ms=0, waited_ms=0, idle_ms=None, grows=False,
            around=[], reads={},
        )  # fmt: skip
        answered = functools.partial(self._topped_up, session, effect.asked)
        session.asks.ask("gate", call_id, wire.encode(request), answered, _TOP_UP_S)

    # -- answers over the socket ------------------------------------------------------------------

    def _answered(
        self, session: Session, pending: PendingQuestion, told: wire.SocketAnswer | None
    ) -> None:
        """Take the answer to a question; None when the socket was lost, or no answer came.

        1. No answer: it may have been decided. The same body under the same key, over HTTP: if it
           was decided, the gateway returns that decision.
        2. The gateway cannot read the body: without the events, if there are any.
        3. An error that HTTP may not have: over HTTP, except for a rate limit, which is a decision.
        4. Any other error belongs to the caller.
        5. A decision.
        """
        # 1.
        if told is None:
            self._by_http(pending)
            return
        reply = Reply(wire.GATE_PATH, told.status, bytes(told.body), now_s=time.time())
        request = pending.ask.question.request
        try:
            answer = session.client.read(reply, wire.GateReply)
            # The answer to another call would let this one run on that one's money.
            if answer.call_id != request.call_id:
                raise GuardTransportError(
                    "the gateway answered another call",
                    source="GATEWAY_ERROR",
                    endpoint=wire.GATE_PATH,
                    retryable=False,
                )
        # 2.
        except BodyRefusedError as exc:
            if request.events:
                pending.detach(session)
                self._by_http(pending)
            else:
                self._conclude(pending, exc)
        except BaseException as exc:  # noqa: BLE001  # a refusal belongs to the caller
            # 3.
            if (
                isinstance(exc, GuardTransportError)
                and exc.retryable
                and not isinstance(exc, RateLimitError)
            ):
                self._by_http(pending)
            # 4.
            else:
                self._conclude(pending, exc)
        # 5.
        else:
            self._conclude(pending, answer)

    def _topped_up(
        self, session: Session, asked: LeaseRequest, told: wire.SocketAnswer | None
    ) -> None:
        """Take the answer to a top-up; None when the socket was lost, or no answer came.

        It is never repeated over HTTP: the next call that needs money asks for itself.
        """
        answer, is_known = None, told is not None
        if told is not None and told.status == 200:  # a refusal is not reported: a call will ask
            reply = Reply(wire.GATE_PATH, told.status, bytes(told.body), now_s=time.time())
            try:
                answer = session.client.read(reply, wire.GateReply)
            except GuardError:
                is_known = False
        now_s = self._look()
        self.carry_out(self._desk.topped_up(asked, answer, now_s, is_known=is_known))

    # -- over HTTP --------------------------------------------------------------------------------

    def _by_http(self, pending: PendingQuestion) -> None:
        """Ask over HTTP, at once or when the admission has room."""
        try:
            turn = self._admission.submit(functools.partial(self._post, pending))
        except (AdmissionError, LoopClosedError) as exc:
            self._conclude(pending, exc)
            return
        turn.add_done_callback(functools.partial(self._posted, pending))

    def _posted(self, pending: PendingQuestion, turn: Future[wire.GateReply]) -> None:
        # 1. It has an outcome.
        if not turn.cancelled():
            self._conclude(pending, turn.exception() or turn.result())
        # 2. The loop ends and cancels what its callers wait for. They are cancelled by it too, so
        #    only the events are put back; the desk is not served any more.
        elif self._link.background.is_closed:
            self._noted(pending, was_shut_down())
        # 3. `leave_http` has taken it out of the line.
        else:
            self._dismissed(pending)

    def leave_http(self) -> None:
        """Send the questions in line for HTTP over the socket, which has opened."""
        self._admission.dismiss()  # calls `_dismissed` for each of them, which fills the inbox
        self._take_in()

    def _dismissed(self, pending: PendingQuestion) -> None:
        ask, session = pending.ask, self._link.session
        if pending.has_left or ask.asked is not None or ask.question.attempt:
            # The desk waits for the outcome of this question, or the gateway may have decided it.
            assert session is not None  # its socket has opened
            self._by_socket(session, pending)
        else:  # nothing was sent yet: one lease may cover it together with others
            ask.question.asked_s = math.inf
            self.inbox.append(ask.question)

    async def _post(self, pending: PendingQuestion) -> wire.GateReply:
        """Ask over HTTP; runs when the admission has given the question its turn."""
        question = pending.ask.question
        request, key = question.request, question.key
        if question.ticket is not None:
            # While it waited for its turn. One that may be decided is asked about to the end.
            if question.ticket.cancelled() and not pending.has_left:
                raise was_shut_down()
            question.ticket.started = True
        self.asking += 1
        try:
            session = await self._link.open()
            # What was sent over the socket keeps its events: another body under the same key
            # would be refused, and without them the ledger could decide by less than is spent.
            if not pending.has_left:
                pending.records = session.flusher.attach(request)
            pending.sets_out()
            has_left, pending.has_left = pending.has_left, True
            deadline_s = _left_s(question.ends_s)
            try:
                return await session.client.gate(request, key, deadline_s=deadline_s)
            except GuardTransportError as exc:
                if exc.source == "BREAKER_OPEN":  # nothing was sent this time
                    pending.has_left = has_left
                if not (isinstance(exc, BodyRefusedError) and request.events):
                    raise
                pending.detach(session)
                pending.sets_out()
                deadline_s = _left_s(question.ends_s)
                return await session.client.gate(request, key, deadline_s=deadline_s)
        finally:
            self.asking -= 1

    # -- the end of a question --------------------------------------------------------------------

    def _conclude(self, pending: PendingQuestion, outcome: wire.GateReply | BaseException) -> None:
        """Take the outcome of a question to the desk: an answer, or why there is none."""
        answer = self._noted(pending, outcome)
        now_s = self._look()
        self.carry_out(self._desk.answered(pending.ask, answer, now_s))

    def _noted(
        self, pending: PendingQuestion, outcome: wire.GateReply | BaseException
    ) -> wire.GateReply | NotGranted:
        """Settle the events that went along, and take in what the outcome says besides.

        An answer means that the gateway has the events. After an error it may have them or not:
        they go back into the buffer, and the ledger charges a repeated event once. The question
        keeps them too: it may be repeated, as it was.
        """
        session, request = self._link.session, pending.ask.question.request
        if isinstance(outcome, wire.GateReply):
            assert session is not None
            self._events.health.gate_unavailable = False
            self._decisions.learned(request.workflow_id, outcome.budget, outcome.warnings)
            session.flusher.delivered(pending.records, outcome.events)
            request.events = []
            # Before the caller learns of it: a person's answer may arrive before the caller waits.
            if outcome.approval_id is not None:
                session.approvals.opened(outcome.approval_id)
            return outcome
        error = as_public(outcome)
        self._events.health.gate_ended(error)
        if session is not None:
            session.flusher.requeue(pending.records)
        return NotGranted(
            error,
            for_money=isinstance(error, GuardBudgetError | GuardChainError),
            is_unanswered=isinstance(error, GuardTransportError),
            # A store that has failed may have committed the decision all the same.
            has_left=pending.has_left
            and isinstance(error, GuardTransportError | GuardInfrastructureError),
            for_all=session is not None and session.client.left_alone(wire.GATE_PATH) is not None,
        )


def _left_s(ends_s: float) -> float:
    return max(0.0, ends_s - lease_clock.now_s())


def _fail(effect: Fail) -> None:
    ticket: Any = effect.question.ticket
    if ticket.set_running_or_notify_cancel():  # False: the caller has given up
        ticket.set_exception(effect.error)
