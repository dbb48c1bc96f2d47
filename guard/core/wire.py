"""Typed messages of gateway protocol v3, with their JSON encoding.

Both ends of the wire import these types, so a field has one name and one meaning. Times are Unix
milliseconds; money is integer nano-dollars (``*_nanousd``), accompanied by decimal cents
(``*_cents``) where a person reads it. Unknown fields are ignored on both sides.
"""

from __future__ import annotations

import contextlib
import re
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

PROTOCOL_VERSION: Final = 3
SDK_MIN_VERSION_FOR_V3: Final = "0.6.0"
"""The oldest SDK version that speaks protocol v3 (spec part 9)."""

HEADER_API_KEY: Final = "X-API-Key"
HEADER_PROTOCOL: Final = "X-Guard-Protocol"
HEADER_IDEMPOTENCY: Final = "Idempotency-Key"
CONTROL_SUBPROTOCOL: Final = "guard.v3"

CAPABILITIES_PATH: Final = "/api/v1/capabilities"
GATE_PATH: Final = "/gate"
RELEASE_PATH: Final = "/gate/release"
EVENTS_PATH: Final = "/api/v1/events"
CONTROL_PATH: Final = "/api/v1/control"
CONTROL_WS_PATH: Final = "/api/v1/control/ws"

UNKNOWN_MODEL: Final = "unknown"
"""Placeholder model of a gate request without a call context (spec part 2)."""

NAME_LENGTH_MAX: Final = 256
"""Maximum characters in a name (workflow, agent, chain, tool, model) or an id."""

NANOUSD_PER_CENT: Final = 10_000_000
NANOUSD_PER_DOLLAR: Final = 1_000_000_000
NANOUSD_MAX: Final = 2**62
RESPONSE_ID_LENGTH_MAX: Final = 512
TOKENS_MAX: Final = 2**40

Name = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
Tokens = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]
NanoUsd = Annotated[int, Meta(ge=0, le=NANOUSD_MAX)]
UnixMs = Annotated[int, Meta(ge=0, le=2**53)]

CallKind = Literal["llm", "tool", "call"]


def cents(nanousd: int) -> float:
    """Return nano-dollars as decimal cents, for people to read.

    >>> cents(12_345_678)
    1.2345678
    """
    return nanousd / NANOUSD_PER_CENT


class Event(Struct, omit_defaults=True):
    """One usage event (protocol: Calls, ``POST /api/v1/events``)."""

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


class Budget(Struct):
    """The tightest budget over a call, in nano-dollars and in cents."""

    limit_nanousd: int
    spent_nanousd: int
    reserved_nanousd: int
    remaining_nanousd: int
    limit_cents: float
    spent_cents: float
    reserved_cents: float
    remaining_cents: float
    resets_at_ms: int | None = None
    scope: str | None = None

    @classmethod
    def of(
        cls,
        *,
        limit: int,
        spent: int,
        reserved: int,
        resets_at_ms: int | None = None,
        scope: str | None = None,
    ) -> Budget:
        """Build a budget from nano-dollar amounts; the cents and the remainder follow."""
        remaining = limit - spent - reserved
        return cls(
            limit_nanousd=limit,
            spent_nanousd=spent,
            reserved_nanousd=reserved,
            remaining_nanousd=remaining,
            limit_cents=cents(limit),
            spent_cents=cents(spent),
            reserved_cents=cents(reserved),
            remaining_cents=cents(remaining),
            resets_at_ms=resets_at_ms,
            scope=scope,
        )


class GateRequest(Struct, omit_defaults=True):
    """Body of ``POST /gate``. ``events`` are ingested before the decision is made."""

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
    trace_id: Name | None = None
    span_id: Name | None = None
    parent_span_id: Name | None = None
    max_input_tokens: Tokens | None = None
    max_output_tokens: Tokens | None = None
    events: list[Event] = []


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
    lease: dict[str, Any] | None = None
    approval_id: str | None = None
    events: EventsOutcome | None = None


class ReleaseRequest(Struct, omit_defaults=True):
    """Body of ``POST /gate/release``: releases a reservation that was not used.

    The id may also be that of an approval that nobody waits for any more.
    """

    reservation_id: Name
    reason: Annotated[str, Meta(max_length=512)] = ""


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


class Limits(Struct):
    """Limits on one request to this gateway."""

    max_batch_events: int = 1000
    max_batch_bytes: int = 1_048_576
    max_event_bytes: int = 65_536


class ControlSettings(Struct):
    """How clients are to use the control channel."""

    poll_interval_ms: int = 1000


class Capabilities(Struct):
    """Reply to ``GET /api/v1/capabilities`` (spec part 4)."""

    protocol: int
    min_sdk_version: str
    server: str
    features: list[str] = []
    limits: Limits = msgspec.field(default_factory=Limits)
    control: ControlSettings = msgspec.field(default_factory=ControlSettings)
    server_time_ms: int = 0


class ControlMessage(Struct, omit_defaults=True):
    """One message of the control channel.

    ``workflow_id`` is an exact id, a glob pattern (``*`` and ``?``) or ``"*"`` for everything.
    ``seq`` rises per organisation; ``hello`` and ``ping`` repeat the newest one. ``epoch`` is a
    random id of the process that assigned the number; in a ``hello`` it belongs to the message
    that the client named as its newest. If it differs from the one the client knows, the gateway's
    record is not the one that the client has followed.
    """

    seq: int
    type: str
    workflow_id: str | None = None
    run_id: str | None = None
    reason: str = ""
    resume_after_ms: UnixMs | None = None
    at_ms: UnixMs = 0
    budget: Budget | None = None
    exhausted: bool = False
    approval_id: str | None = None
    approved: bool | None = None
    epoch: str = ""


class ControlReply(Struct, omit_defaults=True):
    """Reply to the control long poll; ``epoch`` is as in a ``hello``."""

    messages: list[ControlMessage]
    seq: int
    epoch: str = ""


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


class WireError(ValueError):
    """Bytes from the other side are not the message that the protocol specifies."""


T = TypeVar("T")
S = TypeVar("S", bound=Struct)

_CHOICE: Final = re.compile(r"Invalid enum value .*?(?=(?: - at `[^`]*`)?\Z)", re.DOTALL)

_encoder = msgspec.json.Encoder()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def encode(message: Any) -> bytes:
    """Encode a message (or plain JSON data) as compact UTF-8 JSON.

    Raises:
        WireError: the message holds something that JSON cannot represent.
    """
    try:
        return _encoder.encode(message)
    except (TypeError, ValueError, RecursionError) as exc:
        raise WireError(f"cannot be encoded as JSON: {type(exc).__name__}") from exc


def decode(data: bytes | str, kind: type[T]) -> T:
    """Decode and check one message.

    Raises:
        WireError: not JSON, not UTF-8, nested too deeply, or a field is missing or mistyped.
            The text names the field and what was expected, never the value.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(data)  # type: ignore[no-any-return]  # the decoder was built for kind
    except UnicodeDecodeError:
        raise WireError("not UTF-8") from None
    except RecursionError:
        raise WireError("nested too deep") from None
    except msgspec.DecodeError as exc:
        # `from None`: for an enumeration, the cause's text repeats the value that was sent.
        raise WireError(_CHOICE.sub("Expected one of the protocol's values", str(exc))) from None


def salvage(data: bytes | str, kind: type[S]) -> S:
    """Decode a message whose fields all have defaults, leaving out missing or invalid fields.

    For documents that explain a refusal: one invalid member must not hide the others.
    """
    try:
        return decode(data, kind)
    except WireError:
        pass
    try:
        members = decode(data, dict[str, Any])
    except WireError:
        return kind()
    kept: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in members:
            with contextlib.suppress(msgspec.ValidationError, RecursionError):
                kept[field.name] = msgspec.convert(members[field.encode_name], field.type)
    return kind(**kept)
