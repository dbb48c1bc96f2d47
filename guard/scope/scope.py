"""The scope of running code: workflow, run, chain, agent, span, protected call.

One context variable holds one immutable scope, so that a check or an event reads all of it at once,
and interleaved tasks, threads and generators never see a mixture.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

import attrs

EventFields = tuple[str | None, ...]
"""``(workflow_id, run_id, chain_id, agent, trace_id, span_id, parent_span_id, call_id,
reservation_id)``, as in an event of the protocol."""


@attrs.define(eq=False)
class CallRecord:
    """One protected call and its reservation."""

    call_id: str
    reservation_id: str | None = None


@attrs.define(eq=False)
class Entry:
    """One entry of a context manager or a protected call.

    Attributes:
        outer: the scope that it was entered from.
        refused: the newest refusal that was raised inside, which code there may have turned into
            an error of its own.
    """

    outer: Scope
    refused: BaseException | None = None


@attrs.frozen(eq=False)
class Scope:
    """An immutable position. Fields are None outside of what they name.

    Attributes:
        workflow_id, run_id: the workflow and this entry of it.
        chain_id, chain_op: the soft-budget chain and what the next gate request says of it.
        agent: identity of the agent.
        trace_id, span_id, parent_span_id: W3C Trace Context ids.
        foreign_span_id: the OpenTelemetry span that was running when this span was opened.
        model, tools: the call context for the gate.
        call: the protected call whose body is running.
        entry: the innermost entry that the code runs in.
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
    call: CallRecord | None = None
    entry: Entry | None = None
    _event_fields: EventFields | None = attrs.field(default=None, init=False, repr=False)

    @property
    def event_fields(self) -> EventFields:
        """What an event says about where it happened.

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
                self.trace_id,
                self.span_id,
                self.parent_span_id,
                None if call is None else call.call_id,
                None if call is None else call.reservation_id,
            )
            object.__setattr__(self, "_event_fields", fields)  # a cache, not a change
        return fields

    def evolve(self, **changes: Any) -> Scope:
        """Return a copy with some fields changed."""
        return attrs.evolve(self, **changes)

    def refuse(self, error: BaseException) -> None:
        """Remember that ``error`` was raised here as a refusal, for the edge around this code."""
        if self.entry is not None:
            self.entry.refused = error


OUTSIDE: Final = Scope()

current_scope: ContextVar[Scope] = ContextVar("guard_scope", default=OUTSIDE)
"""The scope of the running code; ``OUTSIDE`` when there is none."""

OWN_TRAFFIC: Final = "guard.own_traffic"
"""Key of the request extension that keeps instrumentation away from the SDK's own requests."""
