"""The gate: one question, one answer, and what gives back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from guard.core.wire.budget import Budget
from guard.core.wire.events import Chain, Event, EventsOutcome
from guard.core.wire.fields import (
    NOTE_MESSAGE_MAX,
    UNKNOWN_MODEL,
    CallKind,
    Name,
    Tags,
    Tokens,
    UnixMs,
)
from guard.core.wire.leases import LeaseAsk, LeaseGrant, ModelRates


class ApprovalNote(Struct, omit_defaults=True):
    """What a caller shows to the person who is asked to approve a call.

    Args:
        message: a sentence or two.
        details: any JSON; together with the message at most ``NOTE_BYTES_MAX`` bytes.
    """

    message: Annotated[str, Meta(max_length=NOTE_MESSAGE_MAX)] = ""
    details: dict[str, Any] = {}

    def __repr__(self) -> str:
        return "ApprovalNote(...)"  # it is for one person's eyes, and for no log


class GateRequest(Struct, omit_defaults=True):
    """Body of ``POST /gate``. ``events`` are ingested before the decision is made.

    ``kind`` ``llm`` is one LLM request, asked before it is sent; ``within`` is then the ``call_id``
    of the protected call that it is part of, and ``held`` that call's reservation. ``streams`` says
    that the answer comes as a stream, which can be given more, or be cut, while it comes. A caller
    that gates its requests says ``gates_requests`` when it asks for a call: what such a call was
    expected to cost is released as soon as its first request is asked for. ``user`` and ``tags``
    are as in an event.

    ``note`` goes to the person who is asked to approve the call, if one is. ``renews`` says that
    the caller renews its approval while it waits (``POST /gate/lease``), and that the approval may
    end when it no longer does.
    """

    call_id: Name
    kind: CallKind
    function: Annotated[str, Meta(max_length=512)]
    # Our own factories, because `omit_defaults` leaves out a plain default: the gate always
    # gets a model and a tool list, even when they are placeholders (spec parts 2 and 9).
    model: Name = msgspec.field(default_factory=lambda: UNKNOWN_MODEL)
    tools: Annotated[list[Name], Meta(max_length=1024)] = msgspec.field(
        default_factory=lambda: list[str]()
    )
    tool_name: Name | None = None
    sensitive: bool = False
    workflow_id: Name | None = None
    run_id: Name | None = None
    chain: Chain | None = None
    agent: Name | None = None
    user: Name | None = None
    tags: Tags = {}
    trace_id: Name | None = None
    span_id: Name | None = None
    parent_span_id: Name | None = None
    max_input_tokens: Tokens | None = None
    max_output_tokens: Tokens | None = None
    streams: bool = False
    within: Name | None = None
    held: Name | None = None
    gates_requests: bool = False
    note: ApprovalNote | None = None
    renews: bool = False
    lease: LeaseAsk | None = None
    events: list[Event] = []


class GateReply(Struct, omit_defaults=True):
    """A 200 reply to ``POST /gate``.

    ``pending`` means that a person must approve the call: the answer arrives on the control
    channel as an ``approval`` message with the same ``approval_id``; the caller then asks again.
    """

    decision: Literal["allow", "pending"]
    call_id: str
    reservation_id: str | None = None
    reserved_nanousd: int = 0
    expires_at_ms: int | None = None
    budget: Budget | None = None
    warnings: list[str] = []
    lease: LeaseGrant | None = None
    rates: ModelRates | None = None
    approval_id: str | None = None
    events: EventsOutcome | None = None


class ReleaseRequest(Struct, omit_defaults=True):
    """Body of ``POST /gate/release``: releases a reservation that was not used.

    The id may also be that of an approval whose caller has given up.
    """

    reservation_id: Name
    reason: Annotated[str, Meta(max_length=512)] = ""


class Problem(Struct, omit_defaults=True):
    """An RFC 9457 problem document with the protocol's own members."""

    type: str = "about:blank"
    title: str = ""
    status: int = 0
    detail: str = ""
    error_code: str | None = None
    reason: str | None = None
    action: str | None = None
    workflow_id: str | None = None
    tool_name: str | None = None
    details: dict[str, Any] = {}
    retry_after_ms: UnixMs | None = None
    resume_after_ms: UnixMs | None = None
    min_required_version: str | None = None
    upgrade_url: str | None = None
    server_time_ms: UnixMs | None = None
    budget: Budget | None = None
    events: EventsOutcome | None = None
