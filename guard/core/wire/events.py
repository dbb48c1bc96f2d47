"""Usage events, and what becomes of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from guard.core.wire.budget import Budget
from guard.core.wire.fields import (
    RESPONSE_ID_LENGTH_MAX,
    UNKNOWN_MODEL,
    Name,
    NanoUsd,
    Tags,
    Tokens,
    UnixMs,
)


class Event(Struct, omit_defaults=True):
    """One usage event (protocol: Calls, ``POST /api/v1/events``).

    ``user`` and ``tags`` say for whom, and for what, the work was done, in the application's own
    words.
    """

    event_id: Name
    type: Name
    at_ms: UnixMs
    workflow_id: Name | None = None
    run_id: Name | None = None
    chain_id: Name | None = None
    agent: Name | None = None
    trace_id: Name | None = None
    span_id: Name | None = None
    parent_span_id: Name | None = None
    call_id: Name | None = None
    reservation_id: Name | None = None
    data: dict[str, Any] = {}
    user: Name | None = None
    tags: Tags = {}


class LlmData(Struct, omit_defaults=True):
    """Payload of an ``llm`` event. Token buckets are disjoint: input excludes cached tokens.

    ``response_id`` is the vendor's, and vendors re-use ids. ``request_id`` identifies the request
    that this process observed: two events with different ones are two charges, even with the same
    ``response_id``. An event without it repeats the response to another request (a poll, a report
    beside the observed request): it is a duplicate of any event with its ``response_id``.
    """

    model: Name = UNKNOWN_MODEL
    provider: Name | None = None
    input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    cache_read_tokens: Tokens = 0
    cache_write_tokens: Tokens = 0
    reasoning_tokens: Tokens = 0
    audio_tokens: Tokens = 0
    cost_nanousd: NanoUsd | None = None
    latency_ms: float | None = None
    streamed: bool = False
    estimated: bool = False
    source: Literal["auto", "manual"] = "manual"
    response_id: Annotated[str, Meta(max_length=RESPONSE_ID_LENGTH_MAX)] | None = None
    request_id: Name | None = None
    metadata: dict[str, Any] = {}


class ToolData(Struct, omit_defaults=True):
    """Payload of a ``tool`` event."""

    tool_name: Name
    duration_ms: float | None = None
    is_retry: bool = False
    outcome: Name | None = None
    metadata: dict[str, Any] = {}


class SpanData(Struct, omit_defaults=True):
    """Payload of a ``span`` event. ``final`` releases the rest of the reservation."""

    name: Annotated[str, Meta(max_length=512)]
    kind: Name = "span"
    duration_ms: float | None = None
    outcome: Name | None = None
    error_code: Name | None = None
    final: bool = False


class Chain(Struct, omit_defaults=True):
    """The chain that a gate request belongs to (spec part 3)."""

    id: Name
    op: Literal["start", "continue", "end"] = "continue"


class RejectedEvent(Struct, omit_defaults=True):
    """One event that the gateway did not accept, and why."""

    event_id: str
    error_code: str
    detail: str = ""


class EventsOutcome(Struct):
    """What became of a group of events."""

    accepted: int = 0
    duplicates: int = 0
    rejected: list[RejectedEvent] = []


class EventBatch(Struct):
    """Body of ``POST /api/v1/events``."""

    batch_id: Name
    sent_at_ms: UnixMs
    events: list[Event]


class EventsReply(Struct, omit_defaults=True):
    """A 202 (or, when a commit went over its reservation, 422) reply to an event batch."""

    accepted: int
    duplicates: int = 0
    rejected: list[RejectedEvent] = []
    budget: Budget | None = None
    decision: str | None = None
