"""One protected call from its first check to its closing event; sync and async drive it alike."""

from __future__ import annotations

import sys
import time
from contextvars import Token
from typing import Any, Final

import attrs

from guard.breaker.exceptions import (
    GuardError,
    GuardTransportError,
    RateLimitError,
    WorkflowKilledInterrupt,
)
from guard.breaker.refusals import unwrap
from guard.control.bodies import Body, TaskBody
from guard.control.threads import ThreadBody
from guard.core import wire
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import CallRecord, Scope, current_scope
from guard.scope.span_ids import child_span

_FUNCTION_LENGTH_MAX: Final = 512


@attrs.frozen
class Target:
    """What is protected.

    Attributes:
        function: dotted name, for people.
        tool_name: the plain name that tool policies match.
        sensitive: always ask the gateway, and refuse when it cannot be asked.
    """

    function: str
    tool_name: str
    sensitive: bool = False


class ProtectedCall:
    """The state of one call: check, gate, body, closing event.

    The driver asks the gateway with :attr:`request`, tells :meth:`admitted` or :meth:`refused`,
    runs the body between :meth:`enter` and :meth:`leave` (a generator: once per step) and ends
    with :meth:`finish`.

    Raises:
        WorkflowKilledInterrupt, WorkflowPausedException: the local check refuses.
    """

    __slots__ = (
        "_body",
        "_open",
        "_record",
        "_runtime",
        "_started_s",
        "_target",
        "_token",
        "request",
        "scope",
    )

    def __init__(self, runtime: GuardRuntime, target: Target) -> None:
        outer = current_scope.get()
        ids = runtime.events.ids
        self._runtime = runtime
        self._target = target
        self._started_s = time.monotonic()
        self._token: Token[Scope] | None = None
        self._body: Body | None = None
        self._open = False
        self._record = CallRecord(ids.uuid7(time.time_ns() // 1_000_000))
        self.scope = outer.having(
            call=self._record,
            **child_span(outer, ids),
        )
        try:
            runtime.enforcement.check(outer)
        except (GuardError, WorkflowKilledInterrupt) as exc:
            self.refused(exc)
            raise
        self.request = wire.GateRequest(
            call_id=self._record.call_id,
            kind="tool" if target.sensitive else "call",
            function=target.function[:_FUNCTION_LENGTH_MAX],
            model=outer.model or wire.UNKNOWN_MODEL,
            tools=list(outer.tools),
            tool_name=target.tool_name[: wire.NAME_LENGTH_MAX],
            sensitive=target.sensitive,
            workflow_id=outer.workflow_id,
            run_id=outer.run_id,
            chain=None
            if outer.chain_id is None
            else wire.Chain(outer.chain_id, "start" if outer.chain_op == "start" else "continue"),
            agent=outer.agent,
            trace_id=self.scope.trace_id,
            span_id=self.scope.span_id,
            parent_span_id=self.scope.parent_span_id,
        )

    def admitted(self, reply: wire.GateReply) -> None:
        """The gateway allowed the call."""
        self._record.reservation_id = reply.reservation_id
        self._open = True

    def refused(self, exc: BaseException) -> None:
        """The gateway, or the local check, did not allow the call."""
        self._runtime.report_error(exc, "gate", self.scope, self._target.tool_name)

    def falls_back(self, exc: BaseException) -> bool:
        """Tell whether the call goes on although the gateway could not be asked."""
        self._open = (
            isinstance(exc, GuardTransportError)
            and not isinstance(exc, RateLimitError)
            and self._runtime.settings.fallback_mode == "open"
            and not self._target.sensitive
            and not self._runtime.is_shut_down
        )
        return self._open

    def enter(self, *, in_task: bool) -> None:
        """The body (or its next step) is about to run in the current task or thread.

        To be called by the very function that calls the body: an interrupt is delivered only below
        that function's frame.

        Raises:
            WorkflowKilledInterrupt, WorkflowPausedException: it must not, since the gate's answer.
        """
        self._token = current_scope.set(self.scope)
        body: Body = TaskBody(self.scope) if in_task else ThreadBody(self.scope, sys._getframe(1))
        self._body = body
        self._runtime.enforcement.bodies.enter(body)
        # A kill that was applied before the body was known to `bodies` is seen here.
        self._runtime.enforcement.check(self.scope)

    def leave(self, exc: BaseException | None = None) -> BaseException | None:
        """The body (or its step) ended; return what is to be raised now, or None.

        A kill that was posted to a thread can be raised in here; leave again with that exception.
        """
        body, token = self._body, self._token
        if body is not None:
            exc = body.end(exc)
            self._runtime.enforcement.bodies.leave(body)
            self._body = None
        if token is not None:
            self._token = None
            current_scope.reset(token)
        return None if exc is None else unwrap(exc)

    def settle(self, exc: BaseException | None = None) -> BaseException | None:
        """The body ended and the call with it; return what is to be raised now, or None."""
        error = self.leave(exc)
        self.finish(error)
        return error

    def finish(self, exc: BaseException | None) -> None:
        """The call is over: record its closing event, tell the hooks of its error. Idempotent.

        A call that the gateway never allowed has no closing event.
        """
        if not self._open:
            return
        self._open = False
        duration_ms = (time.monotonic() - self._started_s) * 1000
        outcome = _outcome(exc)
        if self._target.sensitive:
            tool: Any = wire.ToolData(
                self.request.tool_name or "", duration_ms=duration_ms, outcome=outcome
            )
            self._runtime.events.record("tool", tool, self.scope)
        span = wire.SpanData(
            self.request.function,
            kind="call",
            duration_ms=duration_ms,
            outcome=outcome,
            error_code=getattr(exc, "error_code", None) if outcome != "ok" else None,
            final=True,
        )
        self._runtime.events.record("span", span, self.scope)
        if exc is not None:
            self._runtime.report_error(exc, "call", self.scope, self._target.tool_name)


def _outcome(exc: BaseException | None) -> str:
    if exc is None:
        return "ok"
    if isinstance(exc, WorkflowKilledInterrupt):
        return "killed"
    if isinstance(exc, GuardError):
        return "refused"
    return "error" if isinstance(exc, Exception) else "cancelled"
