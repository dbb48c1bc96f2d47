"""The scope of running code: workflow, run, chain, agent, span, protected call.

One context variable holds one immutable scope, so that a check or an event reads all of it at once,
and interleaved tasks, threads and generators never see a mixture.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from guard.core.tags import tags_of
from guard.core.wire.events import Chain
from guard.core.wire.fields import UNKNOWN_MODEL, CallKind
from guard.core.wire.gate import GateRequest

if TYPE_CHECKING:
    from guard.core.call_options import CallOptions
    from guard.core.leases import Hold, LaneKey
    from guard.core.notes import AgentNote
    from guard.telemetry.spans import OpenSpan

A = TypeVar("A")

EventFields = tuple[str | None, ...]
"""``(workflow_id, run_id, chain_id, agent, user, tags, trace_id, span_id, parent_span_id, call_id,
reservation_id)``, as in an event of the protocol, but tags are text (:mod:`guard.core.tags`)."""


class CallRecord(Struct, eq=False):
    """One protected call and its reservation.

    Attributes:
        call_id: the id of the call.
        reservation_id: what pays for it: a reservation of its own, or a lease.
        hold: what it has taken from a lease.
        metered: whether an LLM call was recorded in it.
        counted: its tool and the kind of its watcher, where repeats of it are counted.
    """

    call_id: str
    reservation_id: str | None = None
    hold: Hold | None = None
    metered: bool = False
    counted: tuple[str, str] | None = None


class Identified(Protocol):
    """A caller for whom a process works; see ``guard.runtime.callers.CallerAccount``."""

    @property
    def identity(self) -> str:
        """A text that is unique to the caller."""


class Entry(Struct, eq=False):
    """One entry of a context manager or a protected call.

    The mutable part of a scope: all tasks and threads that have copied the scope share its entry.
    So a refusal that a task swallows still reaches the edge. Each change is one assignment; the
    newest refusal wins.

    Attributes:
        outer: the scope that it was entered from.
        refused: the newest refusal that was raised inside, which code there may have swallowed,
            or turned into an error of its own.
        run_id: the run that it has begun, if it is the entry of a workflow.
        of_generator: whether a generator's body has entered it; such a body may be suspended for
            good, and then never leaves it.
        span: the span of the entry, in the program's own tracing; None without one.
    """

    outer: Scope
    refused: BaseException | None = None
    run_id: str | None = None
    of_generator: bool = False
    span: OpenSpan | None = None

    def refuse(self, error: BaseException) -> None:
        """Remember a refusal that was raised inside."""
        self.refused = error

    def pass_on_refusal(self) -> None:
        """Leave the refusal to the edge around this one: this one does not raise it.

        A framework may have caught it, closed what it had entered, and raise an error of its own
        further out, or none at all (LangChain's asynchronous models).
        """
        if self.refused is not None and self.outer.entry is not None:
            self.outer.entry.refused = self.refused


class Scope(Struct, frozen=True, eq=False):
    """An immutable position. A field is None outside of what it names.

    Only the two caches at the end change, and ``OUTSIDE`` (:func:`set_process_scope`).

    Attributes:
        workflow_id, run_id: the workflow and this entry of it.
        chain_id, chain_op: the soft-budget chain, and the operation in the next gate request.
        agent: identity of the agent.
        trace_id, span_id, parent_span_id: W3C Trace Context ids.
        foreign_span_id: the OpenTelemetry span that was running when this span was opened.
        model, tools: the call context for the gate.
        user, tags: the user for whom the work is, and its tags as text (:mod:`guard.core.tags`).
        note: shown to the person who is asked to approve a call.
        options: those of the ``guard.context.options`` block around the code.
        call: the protected call whose body is running.
        entry: the innermost entry that the code runs in.
        caller: the caller for whom this is done; None for the owner of the process's own key.
    """

    workflow_id: str | None = None
    run_id: str | None = None
    chain_id: str | None = None
    chain_op: str | None = None
    agent: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    foreign_span_id: str | None = None
    model: str | None = None
    tools: tuple[str, ...] = ()
    user: str | None = None
    tags: str | None = None
    note: AgentNote | None = None
    options: CallOptions | None = None
    call: CallRecord | None = None
    entry: Entry | None = None
    caller: Identified | None = None
    # Computed on first use, by any thread: two threads at once compute the same.
    _event_fields: EventFields | None = None
    _call_lane: LaneKey | None = None

    @property
    def call_lane(self) -> LaneKey:
        """The lane of a protected call that is made here; made once, like ``event_fields``."""
        lane = self._call_lane
        if lane is None:
            model = self.model or UNKNOWN_MODEL
            lane = self.workflow_id, self.agent, self.chain_id, self.user, model
            force_setattr(self, "_call_lane", lane)  # a cache, not a change
        return lane

    @property
    def event_fields(self) -> EventFields:
        """The fields of an event that say where it happened.

        A tuple that holds only strings, made once: the garbage collector stops tracking it, and
        the records that hold it, instead of traversing a full buffer again and again.
        """
        fields = self._event_fields
        if fields is None:
            call = self.call
            fields = (
                self.workflow_id,
                self.run_id,
                self.chain_id,
                self.agent,
                self.user,
                self.tags,
                self.trace_id,
                self.span_id,
                self.parent_span_id,
                None if call is None else call.call_id,
                None if call is None else call.reservation_id,
            )
            force_setattr(self, "_event_fields", fields)  # a cache, not a change
        return fields

    def question(self, call_id: str, kind: CallKind, function: str, **fields: Any) -> GateRequest:
        """Return a question to the gateway about a call or a request that is made here.

        Args:
            call_id, kind, function: those of the call or request.
            fields: further fields of the question; a ``model`` takes the place of the scope's.
        """
        fields.setdefault("model", self.model or UNKNOWN_MODEL)
        chain = None
        if self.chain_id is not None:
            chain = Chain(self.chain_id, "start" if self.chain_op == "start" else "continue")
        return GateRequest(
            call_id,
            kind,
            function,
            workflow_id=self.workflow_id,
            run_id=self.run_id,
            chain=chain,
            agent=self.agent,
            user=self.user,
            tags=tags_of(self.tags),
            trace_id=self.trace_id,
            span_id=self.span_id,
            parent_span_id=self.parent_span_id,
            winding_down=self.options is not None and self.options.winding_down,
            **fields,
        )

    def at(self, entry: Entry) -> Scope:
        """Return the same position inside another entry."""
        return replace(self, entry=entry)

    def evolve(self, **changes: Any) -> Scope:
        """Return a copy with some fields changed."""
        # The caches depend on other fields, so a copy starts without them.
        return replace(self, _event_fields=None, _call_lane=None, **changes)

    def refuse(self, error: BaseException) -> None:
        """Remember that ``error`` was raised here as a refusal, for the edge around this code."""
        if self.entry is not None:
            self.entry.refuse(error)


OUTSIDE: Final = Scope()

current_scope: ContextVar[Scope] = ContextVar("guard_scope", default=OUTSIDE)
"""The scope of the running code; ``OUTSIDE`` when there is none."""


def calls_of(scope: Scope, most: int) -> list[CallRecord]:
    """Return the protected calls around running code, innermost first, at most ``most``.

    Stops at the scope of another caller, whose calls are paid by another key.
    """
    found: list[CallRecord] = []
    each: Scope | None = scope
    for _ in range(4 * most):  # a chain of tasks, each started in a call of the last, never ends
        if each is None or each.caller is not scope.caller or len(found) == most:
            break
        if each.call is not None and not (found and found[-1] is each.call):
            found.append(each.call)
        each = None if each.entry is None else each.entry.outer
    return found


def set_process_scope(workflow_id: str | None, run_id: str | None) -> None:
    """Set the workflow of everything outside of one, in this process; None for no workflow.

    Every check and every event reads ``current_scope``, whose default is one object. That object is
    changed in place: at the start of a runtime, in a forked child and at the end.
    """
    force_setattr(OUTSIDE, "workflow_id", workflow_id)
    force_setattr(OUTSIDE, "run_id", run_id)
    # The caches last: they are computed from the fields above.
    force_setattr(OUTSIDE, "_event_fields", None)
    force_setattr(OUTSIDE, "_call_lane", None)


def set_process_entry(entry: Entry) -> None:
    """Put an edge around everything in this process that is in no other entry."""
    force_setattr(OUTSIDE, "entry", entry)


OWN_TRAFFIC: Final = "guard.own_traffic"
"""Key of the request extension that keeps instrumentation away from the SDK's own requests."""


def account_in(scope: Scope, own: A) -> A:
    """Return the account that a scope belongs to.

    Args:
        scope: the scope.
        own: the account of the process's own key, for all that is done outside of callers' scopes.
    """
    return own if scope.caller is None else cast("A", scope.caller)
