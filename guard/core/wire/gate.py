"""The gate: one question, one answer, and what gives back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from guard.core.wire.budget import Budget
from guard.core.wire.events import Chain, Event, EventsOutcome
from guard.core.wire.fields import (
    AROUND_MAX,
    MODELS_MAX,
    NOTE_MESSAGE_MAX,
    TOKENS_MAX,
    UNKNOWN_MODEL,
    CallKind,
    DurationMs,
    Fees,
    LongText,
    Name,
    NanoUsd,
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
    that the answer comes as a stream, which can be given more, or be cut, while it comes. Where
    the request has no limit on its output, ``answers`` says how many answers it asks for (and how
    many prompts it holds, as an array of embeddings does), and
    ``beside_output_tokens`` what is charged as output beside them. ``tier``, ``cache_writes``,
    ``text_only``, ``sound`` and ``surcharge_permille`` are its ``guard.core.rates.Terms``.
    ``local`` says that it goes to the caller's own machine, where a model without a known price is
    free. A caller
    that gates its requests says ``gates_requests`` when it asks for a call: what such a call was
    expected to cost is released as soon as its first request is asked for. ``user`` and ``tags``
    are as in an event.

    ``note`` goes to the person who is asked to approve the call, if one is. ``renews`` says that
    the caller renews its approval while it waits (``POST /gate/lease``), and that the approval may
    end when it no longer does.

    ``wait_ms`` says how long the caller waits in line, from the last time that money came back, for
    money that is only set aside; ``waited_ms`` how long it has waited already, so that it keeps its
    place when the gateway restarts, and ``idle_ms`` how long ago money came back last, so that its
    wait is not over there before it is here. ``around`` names the reservations of the protected
    calls around this one, innermost first: what they hold is drawn on. ``reads`` says what the
    streams hold that the asking task itself reads, by reservation: they return nothing while it
    waits. ``paces`` says that it waits for its turn under a rate cap that lets calls wait, whether
    it waits for money or not. ``grows`` marks a question for more for a request that is under way:
    it counts as no other one. ``key_limit`` is what the caller calls its key's own budget, where a
    refusal is read. ``least_output_tokens`` says that the caller can lower the request's
    output limit, or put one in, to this number at least.

    ``renewed`` says that the caller renews the call's reservation (``POST /gate/lease``) while it
    uses it, so that it lasts only as long as a lease.

    ``text_tokens`` is the most of the prompt's text, before anything was learned of its model; 0
    where the prompt has more than text.

    ``winding_down`` says that it finishes the work of its run, for which budgets may keep a share.
    ``takes_last`` says that the caller takes a last request from that share.

    ``arguments`` is a digest of a call's arguments, keyed by what the gateway does not know: an
    approval is for these and for no others. ``digest`` is made of a call's tool and arguments, or
    of a request's model and prompt, and its repeats within the run are counted. ``named`` says that
    the gateway has allowed the call where a model named its tool, and that only its repeats are
    judged now.

    ``models`` are further models that an LLM request names, any of which may answer: it is allowed
    if each of them is, and held at the dearest.

    ``fees`` is the most that an LLM request can be charged besides tokens: units by line of
    ``guard.core.fees``. ``unnumbered`` names what of it the request allows any number of times.
    """

    call_id: Name
    kind: CallKind
    function: LongText
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
    answers: Annotated[int, Meta(ge=1, le=TOKENS_MAX)] = 1
    beside_output_tokens: Tokens = 0
    tier: Name = ""
    cache_writes: Annotated[int, Meta(ge=0, le=2)] = 1
    text_only: bool = False
    sound: bool = False
    surcharge_permille: Annotated[int, Meta(ge=1000, le=10_000)] = 1000
    local: bool = False
    within: Name | None = None
    held: Name | None = None
    around: Annotated[list[Name], Meta(max_length=AROUND_MAX)] = []
    reads: Annotated[dict[Name, NanoUsd], Meta(max_length=AROUND_MAX)] = {}
    gates_requests: bool = False
    note: ApprovalNote | None = None
    renews: bool = False
    lease: LeaseAsk | None = None
    events: list[Event] = []
    wait_ms: DurationMs = 0
    waited_ms: DurationMs = 0
    idle_ms: DurationMs | None = None
    paces: bool = False
    grows: bool = False
    key_limit: Name | None = None
    least_output_tokens: Tokens | None = None
    fees: Fees = {}
    text_tokens: Tokens = 0
    unnumbered: LongText = ""
    models: Annotated[list[Name], Meta(max_length=MODELS_MAX)] = []

    @property
    def any_model(self) -> tuple[str, ...]:
        """All models that may answer, the one that is asked first at the beginning."""
        return (self.model, *self.models)

    renewed: bool = False
    winding_down: bool = False
    takes_last: bool = False
    arguments: Name | None = None
    digest: Name | None = None
    named: bool = False


class GateReply(Struct, omit_defaults=True, weakref=True):
    """A 200 reply to ``POST /gate``.

    ``pending`` means that a person must approve the call: the answer arrives on the control
    channel as an ``approval`` message with the same ``approval_id``; the caller then asks again.

    ``waiting`` means that the money is only set aside, and that the call has a place in line (1 is
    the first). The caller asks again, with another idempotency key, when a ``room`` message names
    its ``call_id``, and after ``retry_after_ms`` at the latest; else its place is given up.
    ``idle_ms`` says how long ago money last came back, which is when its wait began anew.

    ``asks`` says that it waits for an operator to raise a budget, and is refused if that does not
    happen in time.

    ``max_output_tokens`` is the output limit that the caller has to lower the request's own to, or
    to put in: more is not paid for.

    ``winding_down`` says that it is the last request of its run, from the share that was kept.

    ``renew_ms`` is how long the reservation lasts unless it is renewed; 0: it needs no renewal.
    """

    decision: Literal["allow", "pending", "waiting"]
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
    place: int = 0
    retry_after_ms: int = 0
    idle_ms: DurationMs | None = None
    asks: bool = False
    max_output_tokens: int | None = None
    renew_ms: DurationMs = 0
    winding_down: bool = False


class ReleaseRequest(Struct, omit_defaults=True):
    """Body of ``POST /gate/release``: releases a reservation that was not used.

    The id may also be that of an approval whose caller has given up. ``stays`` says that the same
    call may come again: a person can still answer, and the answer is then for that one.
    """

    reservation_id: Name
    reason: LongText = ""
    stays: bool = False


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
