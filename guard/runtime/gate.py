"""The way from a protected call to the gateway's decision, for sync and for async callers."""

from __future__ import annotations

import asyncio
import concurrent.futures

from guard.breaker.exceptions import GuardTransportError
from guard.control.bodies import TaskBody
from guard.control.enforcement import Enforcement
from guard.control.last_decision import Decisions
from guard.core import wire
from guard.loop import BackgroundLoop, LoopClosedError
from guard.runtime.event_pipeline import EventPipeline
from guard.scope.scope import Scope


class Gate:
    """Asks the gateway whether a call may run; a kill ends the wait.

    Args:
        background: the loop that the session runs on.
        events: opens the session.
        enforcement: ends the wait when the workflow, or a call around this one, is killed.
        decisions: learns the budgets that replies carry.
    """

    def __init__(
        self,
        background: BackgroundLoop,
        events: EventPipeline,
        enforcement: Enforcement,
        decisions: Decisions,
    ) -> None:
        self._background = background
        self._events = events
        self._enforcement = enforcement
        self._decisions = decisions

    def ask(self, request: wire.GateRequest) -> wire.GateReply:
        """Ask from sync code; blocks the calling thread.

        Raises:
            GuardError: refused, no usable answer within the deadline, or guard was shut down.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        scope = Scope(workflow_id=request.workflow_id, run_id=request.run_id)
        try:
            future = self._background.submit(self._answer, request)
        except LoopClosedError:
            raise was_shut_down() from None
        try:
            with self._enforcement.bodies.waiting(scope, future.cancel):
                return future.result()
        except concurrent.futures.CancelledError:
            raise was_shut_down() from None
        finally:
            future.cancel()

    async def ask_async(self, request: wire.GateRequest) -> wire.GateReply:
        """Ask from async code; the caller's loop goes on meanwhile.

        Raises:
            GuardError: refused, no usable answer within the deadline, or guard was shut down.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        wait = TaskBody(Scope(workflow_id=request.workflow_id, run_id=request.run_id))
        bodies = self._enforcement.bodies
        bodies.enter(wait)
        try:
            reply = await self._answer_from_loop(request)
        except BaseException as exc:
            killed = wait.end(exc)
            if killed is None or killed is exc:
                raise
            raise killed from None
        else:
            wait.end(None)  # a kill that came with the answer is seen when the body is entered
            return reply
        finally:
            bodies.leave(wait)

    async def _answer_from_loop(self, request: wire.GateRequest) -> wire.GateReply:
        try:
            return await self._background.run_async(self._answer, request)
        except LoopClosedError:
            raise was_shut_down() from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._background.is_closed and task is not None and not task.cancelling():
                raise was_shut_down() from None  # the loop ended; the user did not cancel
            raise

    async def _answer(self, request: wire.GateRequest) -> wire.GateReply:
        reply = await (await self._events.open_session()).gate(request)
        if reply.budget is not None:
            self._decisions.learned(request.workflow_id, reply.budget)
        return reply


def was_shut_down() -> GuardTransportError:
    """Return the error of a call that the end of the runtime interrupts."""
    return GuardTransportError(
        "guard was shut down; call guard.init() again", source="BREAKER_OPEN", retryable=False
    )
