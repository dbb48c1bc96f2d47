"""Where a piece of code stands: workflow, run, chain, agent, span, protected call.

One context variable holds one immutable scope, so that a check or an event reads the whole of it
at once, and tasks, threads and interleaved generators can never see a mixture.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

import attrs

Place = tuple[str | None, ...]
"""``(workflow_id, run_id, chain_id, agent, trace_id, span_id, parent_span_id, call_id,
reservation_id)``, as in an event of the protocol."""


@attrs.define(eq=False)
class CallRecord:
    """One protected call and its reservation."""

    call_id: str
    reservation_id: str | None = None


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
    _place: Place | None = attrs.field(default=None, init=False, repr=False)

    @property
    def place(self) -> Place:
        """What an event says of where it happened.

        A tuple of nothing but texts, made once: the garbage collector lets go of those, and of
        the records that hold them, instead of walking through a full buffer again and again.
        """
        place = self._place
        if place is None:
            call = self.call
            place = (
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
            object.__setattr__(self, "_place", place)  # a cache, not a change
        return place

    def having(self, **changes: Any) -> Scope:
        """Return a copy with some fields changed."""
        return attrs.evolve(self, **changes)


OUTSIDE: Final = Scope()

current_scope: ContextVar[Scope] = ContextVar("guard_scope", default=OUTSIDE)
"""The scope of the running code; ``OUTSIDE`` when there is none."""

OWN_TRAFFIC: Final = "guard.own_traffic"
"""Key of the request extension that keeps instrumentation away from the SDK's own requests."""
