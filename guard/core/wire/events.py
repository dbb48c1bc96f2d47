"""Usage events, and what becomes of them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from guard.core.wire.budget import Budget
from guard.core.wire.fields import (
    UNKNOWN_MODEL,
    Fees,
    LongText,
    Name,
    NanoUsd,
    ResponseId,
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

    ``cache_write_1h_tokens`` are those of ``cache_write_tokens`` that are kept for an hour,
    ``audio_input_tokens`` those of ``audio_tokens`` that the prompt had.
    ``service_tier`` is the one that the answer names; ``surcharge_permille`` what its place costs.

    ``response_id`` is the vendor's, and vendors reuse ids. ``request_id`` identifies the request
    that this process observed: two events with different ones are two charges, even with the same
    ``response_id``. An event without it repeats the response to another request (a poll, a report
    beside the observed request): it is a duplicate of any event with its ``response_id``.

    ``estimated`` says that the vendor has not said what was used. ``estimate`` says how it was
    estimated: ``counted`` by the answer's texts, ``speed`` by the time that a closed stream had,
    ``bound`` by all that the request could cost, where nothing shows what it did, ``journal`` by
    what a process knew of its cost before it died; ``cost_nanousd`` is then the SDK's.

    ``cut_short`` says that the answer ended at a limit on its output that the SDK has put in, or
    lowered, because its money paid for no more. ``local`` says that the request went to the
    caller's own machine, where a model without a known price is free.

    ``requested_model`` is the one that was asked for, where another name answers, or did last: the
    price of an answer from a model without a known price is its.

    ``fees`` is what is charged besides tokens: units by line of ``guard.core.fees``.
    ``text_tokens`` is what the prompt's text was bounded by, where it had more tokens than that.
    ``digest`` is a keyed digest of the model that was asked for and the prompt, where a policy
    notices repeats.
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
    cache_write_1h_tokens: Tokens = 0
    service_tier: Name | None = None
    surcharge_permille: Annotated[int, Meta(ge=1000, le=10_000)] = 1000
    latency_ms: float | None = None
    streamed: bool = False
    estimated: bool = False
    estimate: Name | None = None
    cut_short: bool = False
    local: bool = False
    source: Literal["auto", "manual"] = "manual"
    response_id: ResponseId | None = None
    request_id: Name | None = None
    metadata: dict[str, Any] = {}
    fees: Fees = {}
    text_tokens: Tokens = 0
    requested_model: Name | None = None
    digest: Name | None = None
    audio_input_tokens: Tokens = 0


class ToolData(Struct, omit_defaults=True):
    """Payload of a ``tool`` event."""

    tool_name: Name
    duration_ms: float | None = None
    is_retry: bool = False
    outcome: Name | None = None
    metadata: dict[str, Any] = {}


HOLDER_GONE: Final = "holder_gone"
"""The kind of a span by which a process's journal says that nothing but its events is under way."""


class SpanData(Struct, omit_defaults=True, gc=False):
    """Payload of a ``span`` event. ``final`` releases the rest of the reservation.

    Where a policy notices repeats of a tool, ``tool_name`` names it, and ``digest`` is a keyed
    digest of it and its arguments.
    """

    name: LongText
    kind: Name = "span"
    duration_ms: float | None = None
    outcome: Name | None = None
    error_code: Name | None = None
    final: bool = False
    tool_name: Name | None = None
    digest: Name | None = None


class LaterData(Struct, omit_defaults=True):
    """Payload of a ``later`` event: work that its vendor finishes later, begun under these ids.

    Whichever process reports what the work used, the charge is its maker's, as the maker's event
    ``charged_as``. The gateway keeps the ids for 40 days, and stores no event.
    """

    provider: Name
    work_id: ResponseId
    charged_as: Name | None = None


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
