"""One protected call: the local check, the gate, the body, the closing event."""

from __future__ import annotations

import functools
import sys
import time
from typing import Any, Final

import attrs

from guard.breaker.exceptions import (
    GuardError,
    GuardTransportError,
    RateLimitError,
    WorkflowKilledInterrupt,
)
from guard.breaker.refusals import error_at_edge
from guard.control.bodies import Body, TaskBody, require_task
from guard.control.pools import carry_kills_out
from guard.control.threads import ThreadBody
from guard.core import wire
from guard.facade import ready_runtime, ready_runtime_async
from guard.runtime.runtime import GuardRuntime
from guard.scope.scope import CallRecord, Entry, Scope, current_scope
from guard.scope.span_ids import child_span
from guard.scope.wrapping import Edge

_FUNCTION_LENGTH_MAX: Final = 512

carry_kills_out()


@attrs.define(eq=False)
class Target:
    """A protected function, as the gate sees it.

    Attributes:
        function: dotted name, for people.
        tool_name: the plain name that tool policies match.
        sensitive: always ask the gateway, and refuse when it cannot be asked. ``@sensitive`` may
            set it after the decoration.
    """

    function: str
    tool_name: str
    sensitive: bool = False

    @classmethod
    def of(cls, function: Any, *, sensitive: bool) -> Target:
        """Return the target that a callable is."""
        while isinstance(function, functools.partial):
            function = function.func
        name = getattr(function, "__name__", type(function).__name__)
        qualified = getattr(function, "__qualname__", name)
        module = getattr(function, "__module__", None)
        dotted = f"{module}.{qualified}" if module else qualified
        return cls(dotted[:_FUNCTION_LENGTH_MAX], name[: wire.NAME_LENGTH_MAX], sensitive)


class ProtectedCall(Edge):
    """The edge of one call of a protected function: local check, gate, body, closing event."""

    __slots__ = (
        "_admitted",
        "_body",
        "_call_scope",
        "_entry",
        "_record",
        "_request",
        "_runtime",
        "_started",
        "_started_s",
        "_target",
    )

    _runtime: GuardRuntime
    _record: CallRecord
    _request: wire.GateRequest
    _entry: Entry
    _call_scope: Scope

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target
        self._started_s = time.monotonic()
        self._body: Body | None = None
        self._admitted = False
        self._started = False

    # -- the gate -----------------------------------------------------------------------------

    def admit(self) -> None:
        """Check locally, then ask the gateway; blocks the calling thread.

        The runtime is that of the process at this moment, and the call's own to its end.

        Raises:
            GuardError: refused, or the gateway cannot be asked and there is no fallback.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        self._begin(ready_runtime())
        try:
            self._check()
            reply = self._runtime.gate.ask(self._request)
        except (GuardError, WorkflowKilledInterrupt) as exc:
            self._runtime.report_error(exc, "gate", self._call_scope, self._target.tool_name)
            if not self._falls_back(exc):
                raise
        else:
            self._accept(reply)

    async def admit_async(self) -> None:
        """Like :meth:`admit`; the caller's loop goes on meanwhile."""
        require_task()
        self._begin(await ready_runtime_async())
        try:
            self._check()
            reply = await self._runtime.gate.ask_async(self._request)
        except (GuardError, WorkflowKilledInterrupt) as exc:
            scope, tool_name = self._call_scope, self._target.tool_name
            await self._runtime.report_error_async(exc, "gate", scope, tool_name)
            if not self._falls_back(exc):
                raise
        else:
            self._accept(reply)

    def _begin(self, runtime: GuardRuntime) -> None:
        outer = current_scope.get()
        ids = runtime.events.ids
        self._runtime = runtime
        self._record = CallRecord(ids.uuid7(time.time_ns() // 1_000_000))
        self._entry = Entry(outer)
        self._call_scope = self.scope = outer.evolve(
            call=self._record, entry=self._entry, **child_span(outer, ids)
        )
        self._request = _gate_request(self._target, self._record.call_id, self._call_scope)

    def _check(self) -> None:
        self._runtime.enforcement.check(self._call_scope)

    def _accept(self, reply: wire.GateReply) -> None:
        self._record.reservation_id = reply.reservation_id
        self._admitted = True
        if reply.warnings:
            self._runtime.warnings.report(reply.warnings, self._call_scope, self._target.tool_name)

    def _falls_back(self, exc: BaseException) -> bool:
        """Return whether the call goes on although the gateway could not be asked."""
        self._admitted = (
            isinstance(exc, GuardTransportError)
            and not isinstance(exc, RateLimitError)  # a cap is a decision of the gateway
            and self._runtime.settings.fallback_mode == "open"
            and not self._target.sensitive
            and not self._runtime.is_shut_down
        )
        return self._admitted

    # -- the body -----------------------------------------------------------------------------

    def enter(self, *, in_task: bool) -> None:
        """The body (or its next step) is about to run in the current task or thread.

        To be called by the very function that calls the body: an interrupt is delivered only below
        that function's frame.

        Raises:
            WorkflowKilledInterrupt: killed since the gate's answer, or since the last step.
            WorkflowPausedException: paused since the gate's answer.
        """
        self.resume()
        scope = current_scope.get()
        body: Body = TaskBody(scope) if in_task else ThreadBody(scope, sys._getframe(1))
        self._body = body
        enforcement = self._runtime.enforcement
        enforcement.bodies.enter(body)
        # A kill that was applied before the body was known to `bodies` is seen here. A pause does
        # not interrupt a body that runs, and a generator runs from its first step on.
        if not self._started:
            enforcement.check(scope)
            self._started = True
        else:
            enforcement.check_killed(scope)

    def leave(self, exc: BaseException | None = None) -> BaseException | None:
        """The body (or its step) ended; return what is to be raised now, or None.

        A kill that was posted to a thread can be raised in here; leave again with that exception.
        """
        body = self._body
        if body is not None:
            exc = body.end(exc)
            self._runtime.enforcement.bodies.leave(body)
            self._body = None
        self.suspend()
        if exc is None or self.scope is None:
            return exc
        return error_at_edge(exc, self._entry.refused)

    def finish(self, exc: BaseException | None) -> None:
        """Record the closing event and tell the hooks of the call's error. Idempotent.

        A call that the gateway never allowed has no closing event.
        """
        if self._record_end(exc) and exc is not None:
            self._runtime.report_error(exc, "call", self._call_scope, self._target.tool_name)

    async def finish_async(self, exc: BaseException | None) -> None:
        """Like :meth:`finish`; the hooks do not block the caller's loop."""
        if self._record_end(exc) and exc is not None:
            scope, tool_name = self._call_scope, self._target.tool_name
            await self._runtime.report_error_async(exc, "call", scope, tool_name)

    def _record_end(self, exc: BaseException | None) -> bool:
        if not self._admitted:
            return False
        self._admitted = False
        duration_ms = (time.monotonic() - self._started_s) * 1000
        outcome = _outcome(exc)
        record = self._runtime.events.record
        scope = self._call_scope  # whatever the body of a generator has made of its own
        if self._target.sensitive:
            tool = wire.ToolData(self._target.tool_name, duration_ms=duration_ms, outcome=outcome)
            record("tool", tool, scope)
        span = wire.SpanData(
            self._target.function,
            kind="call",
            duration_ms=duration_ms,
            outcome=outcome,
            error_code=getattr(exc, "error_code", None) if outcome != "ok" else None,
            final=True,
        )
        record("span", span, scope)
        return True


def _gate_request(target: Target, call_id: str, scope: Scope) -> wire.GateRequest:
    chain = None
    if scope.chain_id is not None:
        starts = scope.chain_op == "start"
        chain = wire.Chain(scope.chain_id, "start" if starts else "continue")
    return wire.GateRequest(
        call_id=call_id,
        kind="tool" if target.sensitive else "call",
        function=target.function,
        model=scope.model or wire.UNKNOWN_MODEL,
        tools=list(scope.tools),
        tool_name=target.tool_name,
        sensitive=target.sensitive,
        workflow_id=scope.workflow_id,
        run_id=scope.run_id,
        chain=chain,
        agent=scope.agent,
        trace_id=scope.trace_id,
        span_id=scope.span_id,
        parent_span_id=scope.parent_span_id,
    )


def _outcome(exc: BaseException | None) -> str:
    if exc is None:
        return "ok"
    if isinstance(exc, WorkflowKilledInterrupt):
        return "killed"
    if isinstance(exc, GuardError):
        return "refused"
    return "error" if isinstance(exc, Exception) else "cancelled"
