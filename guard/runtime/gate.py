"""Gets a decision for a protected call or an LLM request, for sync and async callers.

Where no lease covers it, the gateway is asked: over the control socket when that is open, else over
HTTP.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from guard.breaker.exceptions import (
    GuardBlockedException,
    GuardError,
    GuardToolBlockedError,
    GuardTransportError,
    was_shut_down,
)
from guard.control.bodies import TaskBody
from guard.control.enforcement import Enforcement
from guard.control.last_decision import Decisions
from guard.core import wire
from guard.core.leases import LaneKey, LeaseBook
from guard.loop import (
    Admission,
    AdmissionError,
    Arrival,
    BackgroundLoop,
    Concurrency,
    LoopClosedError,
    Ticket,
)
from guard.runtime import decision_log
from guard.runtime.event_pipeline import EventPipeline
from guard.runtime.lanes import Lanes
from guard.runtime.questions import Asking, Grant, Question, Questions, granted
from guard.scope.scope import Scope
from guard.settings import GATE_CONCURRENCY

_Submit = Callable[[Question], None]

_WAITING_MAX: Final = 20_000
_WAITING_SHARE: Final = 0.8
"""Share of a caller's deadline after which its request is no longer sent."""


class Gate:
    """Asks the gateway whether a call may run; a kill ends the wait.

    Args:
        background: the loop that runs the session.
        events: opens the session with the gateway.
        enforcement: ends the wait when the workflow, or a call around this one, is killed.
        decisions: learns the budgets that replies carry.
        timeout_s: total time for an answer.
        leases: what this process may spend without asking.
        read_answers: reads the LLM answers that are unread, so that their holds settle.
        waits_for_people: whether a call that needs an approval waits for it, or is refused.
    """

    def __init__(
        self,
        background: BackgroundLoop,
        events: EventPipeline,
        enforcement: Enforcement,
        decisions: Decisions,
        timeout_s: float,
        *,
        leases: LeaseBook,
        read_answers: Callable[[], None] = lambda: None,
        waits_for_people: bool = True,
    ) -> None:
        self._waits_for_people = waits_for_people
        self._background = background
        self._events = events
        self._enforcement = enforcement
        self._decisions = decisions
        self._timeout_s = timeout_s
        self._admission = Admission(
            background,
            concurrency=Concurrency(timeout_s, most=GATE_CONCURRENCY),
            waiting_max=_WAITING_MAX,
            wait_s=_WAITING_SHARE * timeout_s,
        )
        self._lanes = Lanes(
            leases,
            Questions(events, self._admission, learned=self._learned),
            can_lease=self._can_lease,
            read_answers=read_answers,
            give_back=self.give_back,
        )

    def after_fork(self) -> None:
        """Forget the parent's callers in a forked child."""
        self._admission.after_fork()
        self._lanes.after_fork()

    def told_ahead(self, lane: LaneKey) -> None:
        """It is known whether a lane's lease was topped up; on the background loop."""
        self._lanes.told_ahead(lane)

    def _mind_people(self, request: wire.GateRequest) -> None:
        """Say what goes with a question to a person, as far as the gateway knows of it."""
        session = self._events.session
        features = None if session is None else session.features
        if features is None or wire.FEATURE_APPROVAL_NOTES in features:
            request.renews = self._waits_for_people
        else:
            request.note = None

    def _can_lease(self) -> bool:
        session = self._events.session
        return session is not None and session.can_lease

    # -- sync callers -----------------------------------------------------------------------------

    def ask(self, asking: Asking) -> Grant:
        """Ask from sync code; blocks the calling thread.

        A call that needs a person's approval waits for the answer.

        Args:
            asking: what is asked, and which lease may cover it.

        Raises:
            GuardError: refused, no usable answer within the deadline, or guard was shut down.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        began_s = time.monotonic()
        question = self._question(asking)
        grant = self._wait(question, self._submit, self._timeout_s)
        pending = grant.reply
        if pending is not None and pending.decision == "pending":
            self._require_people(pending, asking)
            with self._withdrawing(pending):
                grant = self._wait(
                    self._question(Asking(asking.request)),
                    functools.partial(self._submit_pending, pending),
                    None,
                )
        if decision_log.is_on():
            decision_log.granted(asking.request, grant, question.over, began_s)
        return grant

    def _wait(self, question: Question, submit: _Submit, timeout_s: float | None) -> Grant:
        request, future = question.asking.request, question.ticket
        scope = Scope(workflow_id=request.workflow_id, run_id=request.run_id)
        with _as_guard_errors():
            try:
                with self._enforcement.bodies.waiting(scope, future.cancel):
                    submit(question)
                    return future.result(timeout_s)
            except concurrent.futures.CancelledError:
                raise was_shut_down() from None
            except TimeoutError:
                self._abandon(future)
                raise self._too_late(future) from None
            except BaseException:
                self._abandon(future)
                raise

    # -- async callers ----------------------------------------------------------------------------

    async def ask_async(self, asking: Asking) -> Grant:
        """Like :meth:`ask`, from async code; the caller's loop keeps running.

        Raises:
            GuardError: refused, no usable answer within the deadline, or guard was shut down.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        began_s = time.monotonic()
        question = self._question(asking)
        grant = await self._wait_async(question, self._submit, self._timeout_s)
        pending = grant.reply
        if pending is not None and pending.decision == "pending":
            self._require_people(pending, asking)
            submit = functools.partial(self._submit_pending, pending)
            with self._withdrawing(pending):
                grant = await self._wait_async(self._question(Asking(asking.request)), submit, None)
        if decision_log.is_on():
            decision_log.granted(asking.request, grant, question.over, began_s)
        return grant

    async def _wait_async(
        self, question: Question, submit: _Submit, timeout_s: float | None
    ) -> Grant:
        request, future = question.asking.request, question.ticket
        wait = TaskBody(Scope(workflow_id=request.workflow_id, run_id=request.run_id))
        bodies = self._enforcement.bodies
        bodies.enter(wait)
        try:
            submit(question)
            grant = await Arrival(future, timeout_s)
        except BaseException as exc:
            self._abandon(future)
            late = isinstance(exc, TimeoutError)
            error = wait.end(self._too_late(future) if late else _as_guard_error(exc))
            if isinstance(error, asyncio.CancelledError) and self._loop_ended():
                raise was_shut_down() from None
            if error is None or error is exc:
                raise
            raise error from None
        else:
            wait.end(None)  # a kill that came with the answer is noticed on entering the body
            return grant
        finally:
            bodies.leave(wait)

    def _loop_ended(self) -> bool:
        """Tell whether a wait was cancelled by the loop's end, not by the user."""
        task = asyncio.current_task()
        return self._background.is_closed and task is not None and not task.cancelling()

    def _too_late(self, future: Ticket[Any]) -> GuardTransportError:
        if future.started:
            why = f"no answer from {wire.GATE_PATH}"
        else:
            why = "this process asks for too many decisions at once: no turn"
        return GuardTransportError(f"{why} within {self._timeout_s:g} s", endpoint=wire.GATE_PATH)

    # -- nobody waits -----------------------------------------------------------------------------

    def ask_soon(self, asking: Asking, answered: Callable[[Grant | BaseException], None]) -> None:
        """Ask without waiting; ``answered`` is called with the outcome, on any thread."""

        def ended(ticket: concurrent.futures.Future[Grant]) -> None:
            if ticket.cancelled():
                answered(was_shut_down())
            else:
                answered(ticket.exception() or ticket.result())

        question = self._question(asking)
        question.ticket.add_done_callback(ended)
        try:
            with _as_guard_errors():
                self._submit(question)
        except GuardError as exc:
            if not question.ticket.done():
                answered(exc)

    # -- what both share --------------------------------------------------------------------------

    def _question(self, asking: Asking) -> Question:
        ends_s = time.monotonic() + self._timeout_s
        if asking.request.kind != "llm":
            self._mind_people(asking.request)
        # The ticket is made first: Ctrl-C can come at any instruction.
        return Question(asking, ends_s, Ticket[Grant]())

    def _submit(self, question: Question) -> None:
        session = self._events.session
        if session is None or not session.asks.is_open:
            self._admission.submit(
                lambda: self._answer(question), abandoned=self.give_back, ticket=question.ticket
            )
            return
        question.ticket.started = True
        question.over = "the socket"
        self._background.track(question.ticket)
        self._lanes.inbox.append(question)
        if not self._background.call_soon(self._lanes.take_in):
            raise LoopClosedError("the background loop is closed")

    def _submit_pending(self, reply: wire.GateReply, question: Question) -> None:
        self._background.submit(
            self._answer_of_person, question.asking.request, reply, future=question.ticket
        )

    async def _answer(self, question: Question) -> Grant:
        session = await self._events.open_session()
        health = self._events.health
        left_s = max(0.0, question.ends_s - time.monotonic())
        try:
            reply = await session.ask(question.asking.request, left_s)
        except GuardError as exc:
            health.gate_ended(exc)
            raise
        health.gate_ended(None)
        self._learned(question.asking.request, reply)
        return granted(question.asking, reply)

    async def _answer_of_person(self, request: wire.GateRequest, pending: wire.GateReply) -> Grant:
        session = await self._events.open_session()
        await session.approvals.wait(request, pending)
        future = self._admission.submit(
            lambda: session.ask_approved(request), abandoned=session.give_back
        )
        try:
            reply = await Arrival(future, self._timeout_s)
        except TimeoutError:
            raise self._too_late(future) from None
        self._learned(request, reply)
        return Grant(reply, None, reply.rates, approved=True)

    def _learned(self, request: wire.GateRequest, reply: wire.GateReply) -> None:
        self._decisions.learned(request.workflow_id, reply.budget, reply.warnings)
        session = self._events.session
        if reply.approval_id is not None and session is not None:
            session.approvals.opened(reply.approval_id)

    def _abandon(self, future: Ticket[Grant]) -> None:
        """Nobody waits for the answer any more: release what it grants, if it has arrived."""
        if not future.cancel() and not future.cancelled() and future.exception() is None:
            self._background.call_soon(self.give_back, future.result())

    def _require_people(self, pending: wire.GateReply, asking: Asking) -> None:
        """Withdraw an approval request that nobody is to wait for, and refuse its call."""
        if self._waits_for_people:
            return
        self._background.call_soon(self.give_back, Grant(pending))
        request = asking.request
        raise GuardToolBlockedError(
            workflow_id=request.workflow_id,
            reason="a person has to approve it",
            action="block",
            tool_name=request.tool_name or request.function,
        )

    @contextlib.contextmanager
    def _withdrawing(self, pending: wire.GateReply) -> Iterator[None]:
        """Withdraw the approval request when its caller is cancelled, killed or interrupted.

        So it is when the answer could not be used in time.
        """
        try:
            yield
        except GuardBlockedException:
            raise
        except BaseException:
            self._background.call_soon(self.give_back, Grant(pending))
            raise

    def release(self, grant: Grant) -> None:
        """Give back what a grant has set aside; from any thread, without waiting."""
        if grant.hold is not None:
            grant.hold.give_back()
        else:
            self._background.call_soon(self.give_back, grant)

    def give_back(self, grant: Grant) -> None:
        """Give back what a grant has set aside; on the background loop."""
        if grant.hold is not None:
            grant.hold.give_back()
            return
        session = self._events.session
        if session is not None and grant.reply is not None:
            session.give_back(grant.reply)


@contextlib.contextmanager
def _as_guard_errors() -> Iterator[None]:
    """Convert errors of the loop and the admission to the documented ones."""
    try:
        yield
    except (LoopClosedError, AdmissionError) as exc:
        raise _as_guard_error(exc) from None


def _as_guard_error(exc: BaseException) -> BaseException:
    if isinstance(exc, LoopClosedError):
        return was_shut_down()
    if isinstance(exc, AdmissionError):
        return GuardTransportError(
            f"this process asks for too many decisions at once: {exc}", endpoint=wire.GATE_PATH
        )
    return exc
