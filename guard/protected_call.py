"""One protected call: the local check, the gate, the body, the closing event.

The order of the steps, each by the wrapper of :mod:`guard.scope.wrapping`: ``admit`` (or
``admit_async``), ``enter``, the body, ``leave``, ``finish``. A generator enters and leaves once for
each of its steps. A call belongs to one thread or task at a time, so it needs no lock; only a kill
comes from another thread.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Awaitable
from typing import Any, Final

import attrs

from guard.asking import decision_log, lease_clock
from guard.asking.own_reservations import attach_own_reservations
from guard.asking.repeats import Repeat, repeat_of
from guard.asking.tool_calls import FUNCTION, Checkpoint, ToolCall
from guard.asking.unchecked_tools import protected_names
from guard.breaker.exceptions import (
    GuardBlockedException,
    GuardError,
    GuardTransportError,
    RateLimitError,
    WorkflowKilledInterrupt,
)
from guard.breaker.refusals import error_at_edge
from guard.control.bodies import Body, TaskBody, require_task
from guard.control.pools import carry_kills_out
from guard.control.threads import ThreadBody, local_thread
from guard.core import arguments, wire
from guard.core.leases import Grant, Question, Subject
from guard.facade import ready_runtime, ready_runtime_async
from guard.instrumentation import patching
from guard.runtime import active
from guard.runtime.account import KeyAccount
from guard.scope.scope import CallRecord, Entry, Scope, account_in, current_scope
from guard.scope.span_ids import call_scope
from guard.scope.wrapping import CallLifecycle
from guard.telemetry import conventions as names
from guard.telemetry import metrics
from guard.telemetry.spans import error_name

_FUNCTION_LENGTH_MAX: Final = 512
_FUNCTION_BYTES_MAX: Final = 4 * _FUNCTION_LENGTH_MAX

carry_kills_out()


@attrs.define(eq=False)
class Target:
    """A protected function, as the gate sees it.

    Attributes:
        function: dotted name, for people.
        tool_name: the plain name that tool policies match.
        sensitive: always ask the gateway, and refuse when it cannot be asked. ``@sensitive`` may
            set it after the decoration.
        watcher: how the call relates to the tool that it names.
        pays: whether it may cost more than its LLM requests, so that a guess is set aside for it. A
            framework's tool may have another process make them, which knows nothing of the guess.
        callee: the function, whose signature names the arguments of its calls.
        subject: the subject of its leases while no tools are offered to a model; made once, since
            every covered call needs it.
    """

    function: str
    tool_name: str
    sensitive: bool = False
    watcher: Checkpoint = FUNCTION
    pays: bool = True
    callee: Any = attrs.field(default=None, repr=False)
    subject: Subject = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.subject = "call", self.function, self.tool_name, ()

    @classmethod
    def of(cls, function: Any, *, sensitive: bool) -> Target:
        """Return the target of a callable."""
        callee = function
        while isinstance(function, functools.partial):
            function = function.func
        name = getattr(function, "__name__", type(function).__name__)
        qualified = getattr(function, "__qualname__", name)
        module = getattr(function, "__module__", None)
        dotted = f"{module}.{qualified}" if module else qualified
        protected_names.add(name)
        return cls(
            wire.truncated(dotted, _FUNCTION_LENGTH_MAX, _FUNCTION_BYTES_MAX),
            wire.truncated(name),
            sensitive,
            callee=callee,
        )


class ProtectedCall(CallLifecycle):
    """The edge of one call of a protected function: local check, gate, body, closing event.

    Attributes:
        tool_call: the tool call that other watchers have asked about, or must not ask about again;
            None for others.
        given: the arguments of a framework's tool, whose function is not the one that is called.
    """

    __slots__ = (
        "_admitted",
        "_asked_for",
        "_began_s",
        "_call_scope",
        "_entry",
        "_record",
        "_repeat",
        "_reply",
        "_runtime",
        "_started",
        "_target",
        "_task",
        "given",
        "tool_call",
    )

    # Set by `_is_covered`, which every call passes before its first other use; assigning them in
    # `__init__` too would cost each call time.
    _runtime: KeyAccount
    _record: CallRecord
    _entry: Entry
    _call_scope: Scope
    given: Any

    def __init__(self, target: Target) -> None:
        # The call's scope from the gate on; None before, and where guard is switched off. A
        # generator's body may replace it between its steps; `_call_scope` stays.
        self.scope = None
        # The scope around the call, while its body (or a step of it) runs.
        self._outside = None
        self._target = target
        # The running body, as kills know it; None outside of it.
        self.body: Body | None = None
        # The digest of the arguments that a person may be asked about.
        self._asked_for: str | None = None
        # Its identity among repeated calls; None where repeats are not counted.
        self._repeat: Repeat | None = None
        # The task of a covered call, found by `admit_async`; `enter` uses it up.
        self._task: asyncio.Task[object] | None = None
        # Whether the call was allowed and is not over: then its end is recorded, once.
        self._admitted = False
        # Whether the first step has begun: from then on a pause no longer stops it.
        self._started = False
        self.tool_call: ToolCall | None = None
        # The gateway's reply while the call holds a reservation of its own. `Renewals` renews the
        # reservation as long as this reference exists.
        self._reply: wire.GateReply | None = None

    # -- the gate -----------------------------------------------------------------------------

    def admit(self) -> None:
        """Check locally, then ask the gateway; blocks the calling thread.

        The call keeps the runtime of this moment to its end, even if another one is set up.

        Raises:
            GuardError: refused, or the gateway cannot be asked and there is no fallback.
            WorkflowKilledInterrupt: the workflow is killed.
        """
        runtime = active.current
        if runtime is None or not runtime.opened:
            if active.is_off():
                return  # without a scope, what follows has no effect
            runtime = ready_runtime()
        try:
            if self._is_covered(runtime):
                return
            grant = self._runtime.gate.ask(self._question())
            if self._asked_for is not None and grant.approved:
                self._require_unchanged(grant)
        except (GuardError, WorkflowKilledInterrupt) as exc:
            self._runtime.reports.error(exc, "gate", self._call_scope, self._target.tool_name)
            if not self._falls_back(exc):
                raise
        else:
            self._accept(grant)

    def admit_async(self) -> Awaitable[None] | None:
        """Like :meth:`admit`, for async code; the caller's loop keeps running.

        Returns:
            What to await; None when the call is admitted already, which saves covered calls a
            coroutine.
        """
        runtime = active.current
        if runtime is None and active.is_off():
            return None  # without a scope, what follows has no effect
        task = require_task()
        if runtime is None or not runtime.opened:
            return self._ready_and_ask()
        try:
            if not self._is_covered(runtime):
                return self._ask()
        except (GuardError, WorkflowKilledInterrupt) as exc:
            return self._refused(exc)
        self._task = task
        return None

    async def _ready_and_ask(self) -> None:
        runtime = await ready_runtime_async()
        try:
            if self._is_covered(runtime):
                return
        except (GuardError, WorkflowKilledInterrupt) as exc:
            await self._refused(exc)
            return
        await self._ask()

    async def _ask(self) -> None:
        try:
            grant = await self._runtime.gate.ask_async(self._question())
            if self._asked_for is not None and grant.approved:
                self._require_unchanged(grant)
        except (GuardError, WorkflowKilledInterrupt) as exc:
            await self._refused(exc)
        else:
            self._accept(grant)

    async def _refused(self, exc: BaseException) -> None:
        reports, tool_name = self._runtime.reports, self._target.tool_name
        try:
            await reports.error_async(exc, "gate", self._call_scope, tool_name)
            if not self._falls_back(exc):
                raise exc
        finally:
            del exc  # its traceback refers to this frame

    def _is_covered(self, runtime: KeyAccount) -> bool:
        """Open the call's scope, check it, and cover the call without a round trip, if possible.

        The fast path of every call. It takes the lease's money first, before the scope exists,
        because the record holds it. Only if more than a lease decides does it take the slow path,
        ``_is_covered_if_allowed``: the process has halts, allowed tool calls, or counted repeats,
        or the function is sensitive.

        Returns:
            Whether the call is covered; else the gateway has to be asked.

        Raises:
            WorkflowKilledInterrupt: the workflow is killed.
            WorkflowPausedException: it is paused.
        """
        outer, target = current_scope.get(), self._target
        if outer.options is not None and outer.options.tool_name is not None:
            target = self._target = attrs.evolve(target, tool_name=outer.options.tool_name)
        if outer.caller is not None:
            runtime = account_in(outer, runtime)
        self._runtime = runtime
        self._began_s = began_s = time.monotonic()
        if began_s >= patching.next_look_s:  # the body's requests must be seen
            patching.rehook()
        has_checks = runtime.enforcement.halts or runtime.tools.calls.open or target.sensitive
        repeat = hold = None
        if runtime.enforcement.counts:
            repeat = self._repeat = self._repeat_of(runtime, outer)
            has_checks = has_checks or (repeat is not None and repeat.is_asked)
        try:
            if not has_checks:
                lane = outer._call_lane or outer.call_lane
                subject = subject_of(target, outer) if outer.tools else target.subject
                hold = runtime.leases.take(lane, subject, lease_clock.now_s())
            ids = runtime.events.ids
            call_id = ids.uuid7(time.time_ns() // 1_000_000)
            if hold is None:
                self._record = record = CallRecord(call_id)
            else:
                self._record = record = CallRecord(call_id, hold.lease.lease_id, hold)
            if repeat is not None:
                record.counted = target.tool_name, target.watcher.kind
            self._entry = entry = Entry(outer)
            tool = None if target.watcher is FUNCTION and not target.sensitive else target.tool_name
            self._call_scope = self.scope = scope = call_scope(
                outer, ids, record, entry, target.function, tool
            )
        # Ctrl-C: until `_admitted` is set, the call's end does not give back the money. The `try`
        # costs nothing where nothing is raised.
        except BaseException:
            if hold is not None:
                hold.give_back()
            raise
        if hold is None:
            return has_checks and self._is_covered_if_allowed(runtime, scope)
        self._admitted = True
        if decision_log.was_on:
            what = f"call {target.tool_name}"
            decision_log.covered(what, scope.workflow_id, hold.lease.lease_id)
        return True

    def _repeat_of(self, runtime: KeyAccount, outer: Scope) -> Repeat | None:
        target = self._target
        return repeat_of(
            runtime.tools, outer, target.tool_name, target.watcher, self._counted_arguments,
            runtime.settings.api_key,
        )  # fmt: skip

    def _counted_arguments(self) -> dict[str, Any] | None:
        given = getattr(self, "given", None)
        return self._arguments() if given is None else {"given": given}

    @property
    def _is_counted(self) -> bool:
        """Whether the gateway is asked because it counts the call."""
        return self._repeat is not None and self._repeat.is_asked

    def _is_covered_if_allowed(self, runtime: KeyAccount, scope: Scope) -> bool:
        """Check a call about which more than a lease decides, and cover it if possible.

        1. The workflow is killed or paused: raise.
        2. The gateway has allowed this tool call already, when a model named it or another watcher
           asked. Where it counts repeats, it is asked nevertheless, for the count.
        3. A sensitive or counted call: the gateway decides each time.
        4. The lane's lease covers it.
        """
        target = self._target
        # 1.
        runtime.enforcement.check(scope)
        # 2.
        if runtime.tools.calls.open and self._joins(runtime):
            return not self._is_counted
        # 3.
        if target.sensitive or self._is_counted:
            return False
        # 4.
        subject = subject_of(target, scope)
        hold = runtime.leases.take(scope.call_lane, subject, lease_clock.now_s())
        if hold is None:
            return False
        try:
            self._accept(Grant(hold=hold))
        except BaseException:  # Ctrl-C, as above
            hold.give_back()
            raise
        if decision_log.was_on:
            what = f"call {target.tool_name}"
            decision_log.covered(what, scope.workflow_id, hold.lease.lease_id)
        return True

    def _joins(self, runtime: KeyAccount) -> bool:
        """Return whether another watcher has asked about this tool call; if so, join it."""
        target, scope = self._target, self._call_scope
        found = runtime.tools.take(
            scope, target.tool_name, target.watcher, sensitive=target.sensitive
        )
        if found is None:
            return False
        self.tool_call, reply = found
        # Counted by the other watcher: not a second time.
        if self.tool_call.counted:
            self._repeat = self._record.counted = None
        # The money is kept until the gateway has judged the repeat; `_take_joined` gets it, whether
        # the call is allowed or refused.
        if self._repeat is not None and self._repeat.is_asked:
            self._repeat.joined = reply
            return True
        self._admitted = True
        # With the money comes its call id, by which the gateway knows the reservation's call.
        if reply is not None:
            self._record.call_id = reply.call_id
            self._accept(Grant(reply))
        return True

    def _question(self) -> Question:
        """Return what the gateway is asked, with the lane whose lease may cover the call."""
        target, scope, runtime = self._target, self._call_scope, self._runtime
        request = _gate_request(target, self._record.call_id, scope)
        if self._repeat is not None and self._repeat.is_asked:
            request.digest = self._repeat.digest
            # The tool call is allowed and paid for; only its repeat is to be judged.
            if self.tool_call is not None:
                request.named = True
                return Question(request)
        if target.sensitive or runtime.tools.asks_about(scope, target.tool_name):
            self._show_arguments(request)
        request.gates_requests = runtime.gates_requests
        if runtime.gates_requests and not target.pays:
            request.max_input_tokens = request.max_output_tokens = 0
        attach_own_reservations(request, scope, gates_requests=runtime.gates_requests)
        # Without a lane no lease can cover it, or be granted for it.
        if target.sensitive or self._is_counted:
            return Question(request)
        return Question(request, scope.call_lane, subject_of(target, scope))

    def _show_arguments(self, request: wire.GateRequest) -> None:
        """Bind a person's approval to the arguments, and show those that the program names."""
        found = self._arguments()
        if found is None:
            return
        key = arguments.key_of(self._runtime.settings.api_key)
        self._asked_for = request.arguments = arguments.digest(found, key)
        note = self._call_scope.note
        request.note = None if note is None else note.sent(found)

    def _arguments(self) -> dict[str, Any] | None:
        called, callee = getattr(self, "called", None), self._target.callee
        return None if called is None or callee is None else arguments.named(callee, *called)

    def _require_unchanged(self, grant: Grant) -> None:
        """Refuse a call whose arguments differ from those that a person has approved.

        They can be mutable objects, and the program runs on while the person decides.

        Raises:
            GuardBlockedException: they differ; the grant is given back.
        """
        key = arguments.key_of(self._runtime.settings.api_key)
        if arguments.digest(self._arguments() or {}, key) == self._asked_for:
            return
        self._runtime.gate.release(grant)
        raise GuardBlockedException(
            workflow_id=self._call_scope.workflow_id,
            reason="its arguments were changed while a person was asked",
            action="approval",
            tool_name=self._target.tool_name,
            status_code=403,
        )

    def _accept(self, grant: Grant) -> None:
        """Admit the call, and note what pays for it."""
        # First: from here on the call's end is recorded, and gives back what is noted below.
        self._admitted = True
        record, target, is_counted = self._record, self._target, self._is_counted
        # A joined tool call whose repeat was judged: the money is that of the first question.
        if is_counted and self.tool_call is not None:
            self.tool_call.counted = True
            grant = Grant(self._take_joined())
            record.call_id = record.call_id if grant.reply is None else grant.reply.call_id
        # Other watchers of this call must not ask a person, or count it, a second time.
        elif grant.approved or (is_counted and not target.watcher.runs_tool):
            self.tool_call = self._runtime.tools.calls.allowed(
                self._call_scope, target.tool_name, target.watcher, approved=grant.approved,
                counted=is_counted,
            )  # fmt: skip
        hold, reply = grant.hold, grant.reply
        if hold is not None:
            record.hold = hold
            record.reservation_id = hold.lease.lease_id
        elif reply is not None:
            record.reservation_id = reply.reservation_id
            self._reply = reply
        if reply is not None and reply.warnings:
            self._runtime.warnings.report(reply.warnings, self._call_scope, self._target.tool_name)

    def _take_joined(self) -> wire.GateReply | None:
        """Return the money set aside when a model named the tool; the first time only."""
        joined = None
        if self._repeat is not None:
            joined, self._repeat.joined = self._repeat.joined, None
        return joined

    def _falls_back(self, exc: BaseException) -> bool:
        """Return whether the call runs although it was refused, or could not be decided.

        1. When observing, every refusal is only reported.
        2. In ``open`` mode a call runs if no decision could be got. A sensitive one never does, and
           after a shutdown none does.
        3. Else it does not run.
        """
        joined = self._take_joined()
        if joined is not None:
            self._runtime.gate.release(Grant(joined))
        # 1.
        if not self._runtime.reports.enforces and isinstance(
            exc, GuardError | WorkflowKilledInterrupt
        ):
            self._runtime.reports.observed(exc, self._call_scope, self._target.tool_name)
            self._admitted = True
            return True
        # 2.
        self._admitted = (
            isinstance(exc, GuardTransportError)
            and not isinstance(exc, RateLimitError)  # a cap is a decision of the gateway
            and self._runtime.settings.fallback_mode == "open"
            and not self._target.sensitive
            and not self._runtime.is_shut_down
        )
        if self._admitted:
            what = f"call {self._target.tool_name}"
            decision_log.fell_back(what, self._call_scope.workflow_id)
        # 3. The tool call that it joined is over, too.
        elif self.tool_call is not None and self._target.watcher.runs_tool:
            self._runtime.tools.calls.left(self.tool_call, self._target.watcher)
        return self._admitted

    # -- the body -----------------------------------------------------------------------------

    def enter(self, *, in_task: bool) -> None:
        """Enter the body (or its next step), which runs next in the current task or thread.

        The function that calls the body must call this itself: an interrupt is delivered only
        below that function's frame.

        Raises:
            WorkflowKilledInterrupt: killed since the gate's answer, or since the last step.
            WorkflowPausedException: paused since the gate's answer.
        """
        scope = self.scope
        if scope is None:  # guard is switched off
            return
        self._outside = current_scope.get()
        current_scope.set(scope)
        span = self._entry.span
        if span is not None:
            span.enter()
        if in_task:
            task, self._task = self._task, None
            body: Body = TaskBody(scope, task)
        else:
            body = ThreadBody(scope, sys._getframe(1), local_thread.thread)
        self.body = body
        enforcement = self._runtime.enforcement
        enforcement.bodies.enter(body)
        # A kill that was applied before the body was known to `bodies` is seen here. A pause does
        # not interrupt a body that runs, and a generator runs from its first step on.
        if not self._started:
            if enforcement.halts and enforcement.enforces:
                enforcement.check(scope)
            self._started = True
        elif enforcement.halts:
            enforcement.check_killed(scope)

    def leave(
        self, exc: BaseException | None = None, *, yields: bool = False
    ) -> BaseException | None:
        """The body (or its step) ended; return what is to be raised now, or None.

        A kill that was posted to a thread can be raised in here; leave again with that exception.
        """
        body = self.body
        # In this order: `end` decides whether the kill or `exc` wins, while the kill still finds
        # the body; a second call, after an interrupt in here, does it again. `None` comes last.
        if body is not None:
            exc = body.end(exc)
            self._runtime.enforcement.bodies.leave(body)
            self.body = None
        outside = self._outside
        if outside is not None:  # `suspend`, without the call
            self.scope = current_scope.get()
            self._outside = None
            current_scope.set(outside)
            span = self._entry.span
            if span is not None:
                span.leave()
        if self.scope is None or (exc is None and (yields or self._entry.refused is None)):
            return exc
        return error_at_edge(exc, self._entry)

    def finish(self, exc: BaseException | None) -> None:
        """Record the closing event and call the hooks for the call's error. Idempotent.

        A call that the gateway never allowed has no closing event.
        """
        if self._record_end(exc) and exc is not None:
            self._runtime.reports.error(exc, "call", self._call_scope, self._target.tool_name)

    def finish_async(self, exc: BaseException | None) -> Awaitable[None] | None:
        """Like :meth:`finish`; the hooks do not block the caller's loop."""
        if self._record_end(exc) and exc is not None:
            scope, tool_name = self._call_scope, self._target.tool_name
            return self._runtime.reports.error_async(exc, "call", scope, tool_name)
        return None

    def _record_end(self, exc: BaseException | None) -> bool:
        """Give back the call's money and record its event; return whether it was admitted."""
        if self.scope is not None and self._entry.span is not None:
            self._end_span(self._entry, exc)
        if not self._admitted:
            return False
        self._admitted = False  # its end is recorded once
        self._reply = None  # the reservation is not renewed from here on; its event releases it
        if self.tool_call is not None and self._target.watcher.runs_tool:
            self._runtime.tools.calls.left(self.tool_call, self._target.watcher)
        # Before the event: the next call can use the money at once. If something was spent in the
        # call that no hold covers, the guess counts as spent until the gateway knows the cost.
        hold = self._record.hold
        if hold is not None:
            if self._record.metered:
                hold.keep()
            else:
                hold.give_back()
        target, events = self._target, self._runtime.events
        scope = self._call_scope  # not `self.scope`, which a generator's body may have replaced
        duration_ms = (time.monotonic() - self._began_s) * 1000
        outcome = "ok" if exc is None else _outcome(exc)
        if target.sensitive:
            tool = wire.ToolData(target.tool_name, duration_ms=duration_ms, outcome=outcome)
            events.record("tool", tool, scope)
        repeat = self._repeat
        code = getattr(exc, "error_code", None)
        span = wire.SpanData(target.function, "call", duration_ms, outcome, code, final=True)
        if repeat is not None:
            span.tool_name, span.digest = target.tool_name, repeat.digest
        events.record("span", span, scope)
        return True

    def _end_span(self, entry: Entry, exc: BaseException | None) -> None:
        span, entry.span = entry.span, None
        assert span is not None
        refused = isinstance(exc, GuardError | WorkflowKilledInterrupt)
        decision = "allowed" if self._admitted else "refused" if refused else None
        reservation = self._record.reservation_id
        span.set({names.DECISION: decision, names.RESERVATION: reservation})
        span.end(exc)
        if decision is not None:
            code = None if self._admitted or exc is None else error_name(exc)
            metrics.decided(decision, "call", code)


def _gate_request(target: Target, call_id: str, scope: Scope) -> wire.GateRequest:
    return scope.question(
        call_id,
        "tool" if target.sensitive else "call",
        target.function,
        tools=list(scope.tools),
        tool_name=target.tool_name,
        sensitive=target.sensitive,
        note=None if scope.note is None else scope.note.sent(),
    )


def subject_of(target: Target, scope: Scope) -> Subject:
    """Return what the gateway is asked to allow, apart from the lane."""
    return "call", target.function, target.tool_name, scope.tools


def _outcome(exc: BaseException) -> str:
    if isinstance(exc, WorkflowKilledInterrupt):
        return "killed"
    if isinstance(exc, GuardError):
        return "refused"
    return "error" if isinstance(exc, Exception) else "cancelled"
