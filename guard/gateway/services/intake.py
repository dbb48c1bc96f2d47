"""Checks and prices events before they reach the ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from guard.core import wire
from guard.core.wire import EVENT_TOKENS_MAX
from guard.gateway.domain.commands import PricedEvent, RepeatUse
from guard.gateway.domain.ledger import EVENT_NANOUSD_MAX
from guard.gateway.domain.message_text import flaw_in, free_json
from guard.gateway.domain.nesting import DEPTH_MAX, nested_deeper
from guard.gateway.services.pricing import PriceBook

_SDK_TYPES = {"llm": wire.LlmData, "tool": wire.ToolData, "span": wire.SpanData,
              "chain": wire.Chain, "later": wire.LaterData}  # fmt: skip

_COUNTED = frozenset({"llm", "span"})
"""Types of events that are counted as repeats."""

_IN_DOUBT = frozenset({"bound", "speed"})
"""Kinds of estimates made from what a request could cost, and not from its answer."""


def prepare(
    events: Sequence[wire.Event],
    prices: PriceBook,
    *,
    key_workflow_id: str | None,
    max_event_bytes: int,
    blocks: Callable[[wire.Event, str], bool],
    repeats: Callable[[wire.Event], tuple[RepeatUse, ...]],
) -> tuple[list[PricedEvent], list[wire.RejectedEvent]]:
    """Check and price events one by one; a bad one is rejected without the others.

    Args:
        events: as reported; a missing workflow is filled in.
        prices: of the organisation.
        key_workflow_id: the workflow that the key is for, if it is for one.
        max_event_bytes: maximum size of an event's data.
        blocks: returns whether a policy blocks a tool; a blocked tool that ran is flagged.
        repeats: returns the rules that count an event with a digest.
    """
    priced: list[PricedEvent] = []
    rejected: list[wire.RejectedEvent] = []
    for event in events:
        try:
            if key_workflow_id is not None:
                _confine(event, key_workflow_id)
            found = _price(event, prices, max_event_bytes, blocks)
            if event.data.get("digest") and event.type in _COUNTED:
                found = msgspec.structs.replace(found, repeats=repeats(event))
            priced.append(found)
        except _RejectedError as exc:
            rejected.append(wire.RejectedEvent(event.event_id, exc.error_code, str(exc)))
    return priced, rejected


class _RejectedError(Exception):
    def __init__(self, error_code: str, detail: str) -> None:
        super().__init__(detail)
        self.error_code = error_code


def _confine(event: wire.Event, workflow_id: str) -> None:
    if event.workflow_id is None:
        event.workflow_id = workflow_id
    elif event.workflow_id != workflow_id:
        raise _RejectedError("GD-W004", "the key is for another workflow")


def _price(
    event: wire.Event,
    prices: PriceBook,
    max_event_bytes: int,
    blocks: Callable[[wire.Event, str], bool],
) -> PricedEvent:
    # Everything that a store or a sum could choke on is found here, on the loop: in the ledger, it
    # would fail a transaction that other calls are in.
    if not event.event_id or not event.type:
        raise _RejectedError("GD-E001", "event_id and type must not be empty")
    _require_text(event)
    try:
        data_json = wire.encode(event.data)
    except wire.WireError:
        raise _RejectedError("GD-E001", "data contains a number out of range") from None
    data_json = free_json(data_json)
    if len(data_json) > max_event_bytes:
        raise _RejectedError("GD-E002", f"data is larger than {max_event_bytes} bytes")
    if nested_deeper(data_json, DEPTH_MAX):
        raise _RejectedError("GD-E001", f"data is nested deeper than {DEPTH_MAX}")
    kind: type[Any] | None = _SDK_TYPES.get(event.type)
    if kind is None:  # a caller's own type: it is stored, and costs nothing
        return PricedEvent(event, data_json)
    try:
        data = wire.convert(event.data, kind)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise _RejectedError("GD-E001", f"data: {exc}") from None
    _require_text(data, "data.")
    if isinstance(data, wire.LlmData):
        return _price_tokens(event, data_json, data, prices)
    if isinstance(data, wire.ToolData):
        blocked = blocks(event, data.tool_name)
        return PricedEvent(event, data_json, flags="blocked_tool" if blocked else "")
    if not isinstance(data, wire.SpanData):
        return PricedEvent(event, data_json)
    ends_holder = data.kind == wire.HOLDER_GONE
    return PricedEvent(event, data_json, final=data.final, ends_holder=ends_holder)


def _require_text(message: msgspec.Struct, place: str = "") -> None:
    flaw = flaw_in(message)
    if flaw is not None:
        raise _RejectedError("GD-P007", f"{place}{flaw}")


def _price_tokens(
    event: wire.Event, data_json: bytes, data: wire.LlmData, prices: PriceBook
) -> PricedEvent:
    counts = (data.input_tokens, data.output_tokens, data.cache_read_tokens,
              data.cache_write_tokens, data.cache_write_1h_tokens, data.reasoning_tokens,
              data.audio_tokens, data.audio_input_tokens)  # fmt: skip
    if max(counts) > EVENT_TOKENS_MAX:
        raise _RejectedError("GD-E001", f"more than {EVENT_TOKENS_MAX} tokens of one kind")
    cost, source = prices.cost(data, event.at_ms)
    if cost > EVENT_NANOUSD_MAX:
        raise _RejectedError("GD-E001", f"cost above {EVENT_NANOUSD_MAX} nano-dollars")
    response_id = data.response_id or None
    flags = ["estimated"] if data.estimated else []
    if data.estimated and data.estimate in _IN_DOUBT:
        flags.append("in_doubt")
    if data.cut_short:
        flags.append("cut_short")
    if source == "local":
        flags.append("local")
    if source == "fallback":
        flags.append("unpriced")
    if prices.lacks_sound(data):
        flags.append("unpriced_sound")
    return PricedEvent(
        event,
        data_json,
        cost=cost,
        price_source=source,
        provider="" if response_id is not None and data.provider is None else data.provider,
        model=data.model,
        response_id=response_id,
        request_id=data.request_id or None,
        input_tokens=data.input_tokens + data.cache_read_tokens + data.cache_write_tokens,
        output_tokens=data.output_tokens + data.reasoning_tokens + data.audio_tokens,
        flags=" ".join(flags),
        observed=data.source == "auto",
        text_tokens=0 if data.estimated else data.text_tokens,
        requested_model=data.requested_model,
    )
