"""Gets a decision for a protected call or an LLM request, for sync and async callers.

Where no lease covers it, the gateway is asked: over the control socket when that is open, else over
HTTP. The caller waits on a ticket, in its own thread or loop; everything else happens on the
background loop. Four things can end the wait: the answer, the deadline, a kill, and the caller's
own cancellation or Ctrl-C. Money that is granted to a caller that has stopped waiting goes back.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Final

from msgspec import structs

from guard.asking import decision_log, lease_clock
from guard.asking.courier import Courier
from guard.asking.pending_question import as_public
from guard.breaker.exceptions import (
    GuardBlockedException,
    GuardToolBlockedError,
    GuardTransportError,
    was_shut_down,
)
from guard.control.bodies import TaskBody
from guard.control.enforcement import Enforcement
from guard.core import wire
from guard.core.leases import OUTLASTS_S, Grant, Question
from guard.loop import PATIENCE_S, AdmissionError, LoopClosedError, Ticket, catch_up
from guard.scope.scope import Scope
from guard.session.link import Link

_Submit = Callable[[Question, Ticket[Grant]], None]

questions_stay: Final[ContextVar[bool]] = ContextVar("guard_questions_stay", default=False)
"""Whether an approval request stays open when its waiting call is cancelled. A program behind a
proxy repeats its request, and the repeat finds the person's answer."""


class Gate:
    """Asks the gateway whether a call may run; a kill ends the wait.

    It has no state of its own besides its settings: any number of threads and tasks may ask.

    Args:
        link: to the gateway.
        courier: takes questions to it.
        enforcement: ends the wait when the workflow, or a call around this one, is killed.
        timeout_s: total time for an answer, in seconds.
        wait_ms: how long a question waits in line for money that others hold, in milliseconds.
        paces: whether a question waits for its turn under a rate cap that lets calls wait.
        waits_for_people: whether a call that needs an approval waits for it, or is refused.
    """

    def __init__(
        self,
        link: Link,
        courier: Courier,
        enforcement: Enforcement,
        timeout_s: float,
        *,
        wait_ms: int = 0,
        paces: bool = False,
        waits_for_people: bool = True,
    ) -> None:
        self._link = link
        self._background = link.background
        self._courier = courier
        self._enforcement = enforcement
        self._timeout_s = timeout_s
        self._wait_ms = wait_ms
        self._paces = paces
        self._waits_for_people = waits_for_people

    def after_fork(self) -> None:
        """Forget the parent's callers in a forked child."""
        self._courier.after_fork()

    def _mind_people(self, request: wire.GateRequest) -> None:
        """Set the fields for an approval by a person, as far as the gateway supports them."""
        features = self._link.features
        if features is None or wire.FEATURE_APPROVAL_NOTES in features:
            request.renews = self._waits_for_people
        else:
            request.note = None

    # -- sync callers -----------------------------------------------------------------------------

    def ask(self, question: Question) -> Grant:
        """Ask from sync code; blocks the calling thread.

        A call that needs a person's approval waits for the answer.

        Args:
            question: what is asked, and which lease may cover it.

        Raises:
            GuardError: refused, no usable answer within the deadline, or guard was shut down.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        began_s = time.monotonic()
        try:
            grant = self._wait(question, self._courier.put, self._timeout_s)
            pending = grant.reply
            if pending is not None and pending.decision == "pending":
                self._require_people(pending, question.request)
                submit = functools.partial(self._submit_pending, pending)
                # The answer of the person only says that the call may run. Then the gateway is
                # asked again, for the money; if that fails, the approval is withdrawn as well.
                self._wait(Question(question.request), submit, math.inf)
                again = _again(question)
                grant = _approved(self._wait(again, self._courier.put, self._timeout_s))
        except BaseException as exc:  # Ctrl-C at any instruction above
            self._withdraw(question, exc)
            raise
        if decision_log.is_on():
            decision_log.granted(question.request, grant, question.over, began_s)
        return grant

    def _wait(self, question: Question, submit: _Submit, timeout_s: float) -> Grant:
        """Hand a question over and block until its answer."""
        request, future = question.request, self._ticket(question, timeout_s, waits=True)
        scope = Scope(workflow_id=request.workflow_id, run_id=request.run_id)
        with _as_guard_errors():
            try:
                # A kill cancels the ticket, which ends the wait below in this thread.
                with self._enforcement.waiting(scope, future.cancel):
                    submit(question, future)
                    return self._result(question, future)
            # 1. The loop has ended and cancelled its tickets. (A kill cancels the ticket too, but
            #    `waiting` raises the interrupt in its place.)
            except concurrent.futures.CancelledError:
                raise was_shut_down() from None
            # 2. The deadline has passed.
            except TimeoutError:
                self._abandon(future)
                raise self._too_late(future) from None
            # 3. A refusal, a kill, or Ctrl-C at any instruction above.
            except BaseException:
                self._abandon(future)
                raise

    def _result(self, question: Question, future: Ticket[Grant]) -> Grant:
        """Wait for the answer until the deadline, which moves until the question is sent."""
        while True:
            ends_s = question.gives_up_s
            with contextlib.suppress(TimeoutError):
                return future.result(_left_s(ends_s))
            if question.gives_up_s <= ends_s:
                with contextlib.suppress(TimeoutError):
                    self._loop_caught_up(question, future).result(PATIENCE_S)
            if future.done():
                return future.result()
            # Unless the loop has moved it meanwhile: then wait on.
            if question.gives_up_s <= ends_s:
                raise TimeoutError

    def _loop_caught_up(self, question: Question, ticket: Ticket[Grant]) -> Future[None]:
        """Return what completes once the loop has read what has come, or answers the ticket.

        A deadline has passed; but while the loop stands still, it neither sends nor reads.
        """
        caught_up: Future[None] = Future()

        def done(_: object = None) -> None:
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # the other was first
                caught_up.set_result(None)

        ticket.add_done_callback(done)
        if not self._background.call_soon(catch_up, time.monotonic(), question.answer_s, done):
            done()
        return caught_up

    # -- async callers ----------------------------------------------------------------------------

    async def ask_async(self, question: Question) -> Grant:
        """Like :meth:`ask`, from async code; the caller's loop keeps running.

        Raises:
            GuardError: refused, no usable answer within the deadline, or guard was shut down.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        began_s = time.monotonic()
        try:
            grant = await self._wait_async(question, self._courier.put, self._timeout_s)
            pending = grant.reply
            if pending is not None and pending.decision == "pending":
                self._require_people(pending, question.request)
                submit = functools.partial(self._submit_pending, pending)
                await self._wait_async(Question(question.request), submit, math.inf)
                again = _again(question)
                granted = await self._wait_async(again, self._courier.put, self._timeout_s)
                grant = _approved(granted)
        except BaseException as exc:
            self._withdraw(question, exc)
            raise
        if decision_log.is_on():
            decision_log.granted(question.request, grant, question.over, began_s)
        return grant

    async def _wait_async(self, question: Question, submit: _Submit, timeout_s: float) -> Grant:
        """Hand a question over and wait for its answer in the caller's task."""
        request, future = question.request, self._ticket(question, timeout_s, waits=True)
        # For a kill the wait is a body like any other: it cancels the task, and `wait.end` turns
        # that cancellation into the interrupt.
        wait = TaskBody(Scope(workflow_id=request.workflow_id, run_id=request.run_id))
        try:
            self._enforcement.enter_wait(wait)
            submit(question, future)
            grant = await self._arrival(question, future)
        except BaseException as exc:
            self._abandon(future)
            late = isinstance(exc, TimeoutError)
            error = wait.end(self._too_late(future) if late else as_public(exc))
            if isinstance(error, asyncio.CancelledError) and self._loop_ended():
                raise was_shut_down() from None
            if error is None or error is exc:
                raise
            raise error from None
        else:
            wait.end(None)  # a kill that came with the answer is noticed on entering the body
            return grant
        finally:
            self._enforcement.bodies.leave(wait)

    async def _arrival(self, question: Question, future: Ticket[Grant]) -> Grant:
        """Like :meth:`_result`."""
        answer = asyncio.wrap_future(future)
        try:
            while True:
                ends_s = question.gives_up_s
                await asyncio.wait((answer,), timeout=_left_s(ends_s))
                if not answer.done() and question.gives_up_s <= ends_s:
                    caught_up = asyncio.wrap_future(self._loop_caught_up(question, future))
                    await asyncio.wait((answer, caught_up), timeout=PATIENCE_S)
                if future.done():
                    return await answer
                if question.gives_up_s <= ends_s:
                    raise TimeoutError
        finally:
            answer.cancel()  # else an error that comes later is logged as never retrieved

    def _loop_ended(self) -> bool:
        """Return whether the loop's end has cancelled a wait, and not the user."""
        # The user's cancellation counts in `cancelling`; the loop cancels only the ticket.
        task = asyncio.current_task()
        return self._background.is_closed and task is not None and not task.cancelling()

    def _too_late(self, future: Ticket[Any]) -> GuardTransportError:
        if future.started:
            why = f"no answer from {wire.GATE_PATH}"
        else:
            why = "this process asks for too many decisions at once: no turn"
        return GuardTransportError(f"{why} within {self._timeout_s:g} s", endpoint=wire.GATE_PATH)

    # -- without waiting --------------------------------------------------------------------------

    def ask_soon(
        self, question: Question, answered: Callable[[Grant | BaseException], None]
    ) -> None:
        """Ask without waiting; ``answered`` is called once with the outcome, on any thread."""

        def ended(ticket: concurrent.futures.Future[Grant]) -> None:
            if ticket.cancelled():
                answered(was_shut_down())
            else:
                answered(ticket.exception() or ticket.result())

        ticket = self._ticket(question, self._timeout_s)
        ticket.add_done_callback(ended)
        try:
            with _as_guard_errors():
                self._courier.put(question, ticket)
        # Not only `GuardError`: the thread of the loop may fail to start.
        except Exception as exc:  # noqa: BLE001  # it is the outcome
            # The end of the loop may have cancelled the ticket already, which called `ended`.
            if not ticket.done():
                answered(exc)

    # -- what all three share ---------------------------------------------------------------------

    def _ticket(
        self, question: Question, timeout_s: float, *, waits: bool = False
    ) -> Ticket[Grant]:
        """Set a question's deadline and waiting times; return the ticket for its answer.

        The ticket is made before the question is handed over: Ctrl-C can come at any instruction,
        and the caller must be able to cancel a question that was handed over in that moment.

        Args:
            question: the question.
            timeout_s: how long to wait for an answer, in seconds.
            waits: whether it waits in line for money that others hold, and for its turn.
        """
        question.ends_s = lease_clock.now_s() + timeout_s
        question.answer_s = timeout_s
        question.request.key_limit = self._link.key_limit
        question.request.renewed = True
        if waits:
            question.request.wait_ms = self._wait_ms
            question.request.paces = self._paces
            if self._link.restarts_gateway:
                question.outlasts_s = min(self._wait_ms / 1000, OUTLASTS_S)
        if question.request.kind != "llm":
            self._mind_people(question.request)
        question.ticket = ticket = Ticket[Grant]()
        return ticket

    def _submit_pending(
        self, reply: wire.GateReply, question: Question, ticket: Ticket[Grant]
    ) -> None:
        self._background.submit(self._answer_of_person, question.request, reply, future=ticket)

    async def _answer_of_person(self, request: wire.GateRequest, pending: wire.GateReply) -> Grant:
        session = await self._link.open()
        await session.approvals.wait(request, pending)
        return Grant()

    def _abandon(self, future: Ticket[Grant]) -> None:
        """Give up a question: its grant goes back, whether it has arrived or is still to come."""
        # If `cancel` succeeds, the loop finds the ticket cancelled and gives back what arrives
        # (`Courier._complete`). It fails when the answer has just come: then it is given back here.
        # `exception` may wait, for the instant between the two steps of setting a result.
        if not future.cancel() and not future.cancelled() and future.exception() is None:
            grant = future.result()
            if not _is_pending(grant):  # which `_withdraw` gives back
                self._background.call_soon(self.give_back, grant)

    def _require_people(self, pending: wire.GateReply, request: wire.GateRequest) -> None:
        """Where calls do not wait for people: withdraw the approval request and refuse the call.

        Raises:
            GuardToolBlockedError: calls do not wait for people.
        """
        if self._waits_for_people:
            return
        self._background.call_soon(self.give_back, Grant(pending))
        raise GuardToolBlockedError(
            workflow_id=request.workflow_id,
            reason="a person has to approve it",
            action="block",
            tool_name=request.tool_name or request.function,
        )

    def _withdraw(self, question: Question, exc: BaseException) -> None:
        """Withdraw the approval request of a caller that was cancelled, killed or interrupted.

        Also when the person has answered, but the gateway could not be asked again in time.
        """
        if isinstance(exc, GuardBlockedException):  # a refusal has ended the request already
            return
        ticket: Any = question.ticket
        if ticket is None or not ticket.done() or ticket.cancelled() or ticket.exception():
            return
        if _is_pending(ticket.result()):
            # A kill or a deadline is no CancelledError here: such a call does not come again.
            stays = questions_stay.get() and isinstance(exc, asyncio.CancelledError)
            give_back = functools.partial(self._courier.give_back, stays=stays)
            self._background.call_soon(give_back, ticket.result())

    def release(self, grant: Grant) -> None:
        """Give back what a grant has set aside; from any thread, without waiting."""
        if grant.hold is not None:
            grant.hold.give_back()
        else:
            self._background.call_soon(self.give_back, grant)

    def has_lapsed(self, grant: Grant) -> bool:
        """Return whether others may have the money of a grant, since it was not renewed in time."""
        return self._courier.has_lapsed(grant)

    def give_back(self, grant: Grant) -> None:
        """Give back what a grant has set aside; on the background loop."""
        self._courier.give_back(grant)


def _left_s(ends_s: float) -> float | None:
    return None if ends_s == math.inf else max(0.0, ends_s - lease_clock.now_s())


def _is_pending(grant: Grant) -> bool:
    return grant.reply is not None and grant.reply.decision == "pending"


def _again(question: Question) -> Question:
    """Return the question of a call that a person has approved.

    Another attempt, since the key of the first one has its answer: "pending". Without a lane: the
    approval is for this call, and no lease may cover another one by it.
    """
    return Question(question.request, attempt=question.attempt + 1)


def _approved(grant: Grant) -> Grant:
    if grant.reply is not None and grant.reply.decision != "allow":
        raise GuardTransportError(
            "an approved call is still pending", source="GATEWAY_ERROR", endpoint=wire.GATE_PATH
        )
    return structs.replace(grant, approved=True)


@contextlib.contextmanager
def _as_guard_errors() -> Iterator[None]:
    """Convert errors of the loop and the admission to the documented ones."""
    try:
        yield
    except (LoopClosedError, AdmissionError) as exc:
        raise as_public(exc) from None
