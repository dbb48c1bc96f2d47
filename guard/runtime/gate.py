"""Gets the gateway's decision for a protected call, for sync and async callers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Final

from guard.breaker.exceptions import GuardError, GuardTransportError
from guard.control.bodies import TaskBody
from guard.control.enforcement import Enforcement
from guard.control.last_decision import Decisions
from guard.core import wire
from guard.loop import (
    Admission,
    AdmissionError,
    BackgroundLoop,
    Concurrency,
    LoopClosedError,
    Ticket,
)
from guard.runtime.event_pipeline import EventPipeline
from guard.scope.scope import Scope
from guard.settings import GATE_CONCURRENCY

_Submit = Callable[[wire.GateRequest, Ticket[wire.GateReply]], None]

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
    """

    def __init__(
        self,
        background: BackgroundLoop,
        events: EventPipeline,
        enforcement: Enforcement,
        decisions: Decisions,
        timeout_s: float,
    ) -> None:
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

    def after_fork(self) -> None:
        """Forget the parent's callers in a forked child."""
        self._admission.after_fork()

    def ask(self, request: wire.GateRequest) -> wire.GateReply:
        """Ask from sync code; blocks the calling thread.

        A call that needs a person's approval waits for the answer.

        Raises:
            GuardError: refused, no usable answer within the deadline, or guard was shut down.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        reply = self._wait(request, self._submit, self._timeout_s)
        if reply.decision == "pending":
            with self._withdrawing(reply):
                reply = self._wait(request, functools.partial(self._submit_pending, reply))
        return reply

    def _wait(
        self, request: wire.GateRequest, submit: _Submit, timeout_s: float | None = None
    ) -> wire.GateReply:
        scope = Scope(workflow_id=request.workflow_id, run_id=request.run_id)
        future = Ticket[wire.GateReply]()  # made first: Ctrl-C can come at any instruction
        with _as_guard_errors():
            try:
                with self._enforcement.bodies.waiting(scope, future.cancel):
                    submit(request, future)
                    return future.result(timeout_s)
            except concurrent.futures.CancelledError:
                raise was_shut_down() from None
            except TimeoutError:
                self._abandon(future)
                raise self._too_late(future) from None
            except BaseException:
                self._abandon(future)
                raise

    async def ask_async(self, request: wire.GateRequest) -> wire.GateReply:
        """Ask from async code; the caller's loop keeps running.

        A call that needs a person's approval waits for the answer.

        Raises:
            GuardError: refused, no usable answer within the deadline, or guard was shut down.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        reply = await self._wait_async(request, self._submit, self._timeout_s)
        if reply.decision == "pending":
            submit = functools.partial(self._submit_pending, reply)
            with self._withdrawing(reply):
                reply = await self._wait_async(request, submit)
        return reply

    async def _wait_async(
        self, request: wire.GateRequest, submit: _Submit, timeout_s: float | None = None
    ) -> wire.GateReply:
        wait = TaskBody(Scope(workflow_id=request.workflow_id, run_id=request.run_id))
        future = Ticket[wire.GateReply]()
        bodies = self._enforcement.bodies
        bodies.enter(wait)
        try:
            with _as_guard_errors():
                submit(request, future)
                async with asyncio.timeout(timeout_s):
                    reply = await asyncio.wrap_future(future)
        except BaseException as exc:
            self._abandon(future)
            late = isinstance(exc, TimeoutError)
            error = wait.end(self._too_late(future) if late else exc)
            if isinstance(error, asyncio.CancelledError) and self._loop_ended():
                raise was_shut_down() from None
            if error is None or error is exc:
                raise
            raise error from None
        else:
            wait.end(None)  # a kill that came with the answer is noticed on entering the body
            return reply
        finally:
            bodies.leave(wait)

    def _loop_ended(self) -> bool:
        """Tell whether a wait was cancelled by the loop's end, not by the user."""
        task = asyncio.current_task()
        return self._background.is_closed and task is not None and not task.cancelling()

    def _too_late(self, future: Ticket[wire.GateReply]) -> GuardTransportError:
        if future.started:
            why = f"no answer from {wire.GATE_PATH}"
        else:
            why = "this process asks for too many decisions at once: no turn"
        return GuardTransportError(f"{why} within {self._timeout_s:g} s", endpoint=wire.GATE_PATH)

    # -- what both share --------------------------------------------------------------------------

    def _submit(self, request: wire.GateRequest, future: Ticket[wire.GateReply]) -> None:
        ends_s = time.monotonic() + self._timeout_s
        self._admission.submit(
            lambda: self._answer(request, ends_s), abandoned=self._give_back, ticket=future
        )

    def _submit_pending(
        self, reply: wire.GateReply, request: wire.GateRequest, future: Ticket[wire.GateReply]
    ) -> None:
        self._background.submit(self._answer_of_person, request, reply, future=future)

    async def _answer(self, request: wire.GateRequest, ends_s: float) -> wire.GateReply:
        session = await self._events.open_session()
        health = self._events.health
        try:
            reply = await session.ask(request, max(0.0, ends_s - time.monotonic()))
        except GuardError as exc:
            health.gate_ended(exc)
            raise
        health.gate_ended(None)
        return self._learned(request, reply)

    async def _answer_of_person(
        self, request: wire.GateRequest, pending: wire.GateReply
    ) -> wire.GateReply:
        session = await self._events.open_session()
        await session.approval(request, pending)
        future = self._admission.submit(
            lambda: session.ask_approved(request), abandoned=self._give_back
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                return self._learned(request, await asyncio.wrap_future(future))
        except TimeoutError:
            raise self._too_late(future) from None

    def _learned(self, request: wire.GateRequest, reply: wire.GateReply) -> wire.GateReply:
        self._decisions.learned(request.workflow_id, reply.budget, reply.warnings)
        return reply

    def _abandon(self, future: Ticket[wire.GateReply]) -> None:
        """Nobody waits for the answer any more: release what it grants, if it has arrived."""
        if not future.cancel() and not future.cancelled() and future.exception() is None:
            self._background.call_soon(self._give_back, future.result())

    @contextlib.contextmanager
    def _withdrawing(self, pending: wire.GateReply) -> Iterator[None]:
        """Withdraw the approval request when its caller is cancelled, killed or interrupted."""
        try:
            yield
        except GuardError:
            raise
        except BaseException:
            self._background.call_soon(self._give_back, pending)
            raise

    def _give_back(self, reply: wire.GateReply) -> None:
        session = self._events.session
        if session is not None:
            session.give_back(reply)


@contextlib.contextmanager
def _as_guard_errors() -> Iterator[None]:
    """Convert errors of the loop and the admission to the documented ones."""
    try:
        yield
    except LoopClosedError:
        raise was_shut_down() from None
    except AdmissionError as exc:
        raise GuardTransportError(
            f"this process asks for too many decisions at once: {exc}", endpoint=wire.GATE_PATH
        ) from None


def was_shut_down() -> GuardTransportError:
    """Return the error for a call that is interrupted by the end of the runtime."""
    return GuardTransportError(
        "guard was shut down; call guard.init() again",
        source="BREAKER_OPEN",
        error_code="GD-B006",
        retryable=False,
    )
