"""Reads the usage from a body, whole or recorded as it passed."""

from __future__ import annotations

import functools
import json
from typing import Any, Final, TypedDict

import msgspec

from guard.core.usage.charsets import as_utf8, is_odd, plain
from guard.core.usage.framing import (
    Events,
    Framing,
    Pieces,
    Recorded,
    events_of,
    framing_of,
    outline,
)
from guard.core.usage.message import Message, UnreadableUsage, mapping, parse
from guard.core.usage.recording import HEAD_BYTES, TAIL_BYTES
from guard.core.usage.response_format import Call, ResponseFormat, Usage, replaced
from guard.core.usage.vendor_tools import Candidate, OutputItem

_WHOLE_BYTES: Final = 256 * 1024
"""A body up to this size is decoded whole; of a larger one, only both ends are read."""


class _Members(TypedDict, total=False):
    """Everything that a format reads in a whole response.

    The rest, which is nearly all of it (model output, vectors, images), is skipped without
    being turned into objects.
    """

    id: Any
    object: Any
    type: Any
    status: Any
    model: Any
    usage: Any
    service_tier: Any
    serviceTier: Any
    performanceConfig: Any
    x_groq: Any
    duration: Any
    output: list[OutputItem] | dict[str, Any] | None
    tools: msgspec.Raw
    tool_usage: Any
    candidates: list[Candidate] | None
    usageMetadata: Any
    modelVersion: Any
    responseId: Any
    predictions: Any
    embedding: msgspec.Raw
    embeddings: msgspec.Raw
    generation_id: Any
    meta: Any
    result: Any
    done: Any
    done_reason: Any
    prompt_eval_count: Any
    eval_count: Any


@functools.cache
def _members() -> msgspec.json.Decoder[_Members]:
    """Return the decoder, made when the first body is read: on a thread without signals, mostly.

    A ``KeyboardInterrupt`` while msgspec inspects a ``TypedDict`` ends the process (SIGSEGV).
    """
    return msgspec.json.Decoder(_Members)


def read_body(response_format: ResponseFormat, body: bytes, call: Call) -> Usage | None:
    """Read the usage of a complete decoded body; None where it has none that can be read."""
    try:
        return _read_body(response_format, plain(body) if is_odd(body) else body, call)
    except UnreadableUsage:
        return None


def _read_body(response_format: ResponseFormat, body: bytes, call: Call) -> Usage | None:
    small = len(body) <= _WHOLE_BYTES
    # Nearly always one JSON object; its usage can be read without the headers.
    message = _object(body) if small and body[:1] == b"{" else None
    usage = None if message is None else response_format.from_message(message, call)
    if usage is not None:
        return usage
    content_type = call.header("content-type") or ""
    if message is not None and framing_of(content_type, body) == "body":
        return None
    if small:
        return _read_recorded(response_format, Recorded(body, size=len(body)), content_type, call)
    shortened = Recorded(body[:HEAD_BYTES], body[-TAIL_BYTES:], len(body))
    usage = _read_recorded(response_format, shortened, content_type, call)
    if usage is not None and not usage.estimated:
        return usage
    whole = Recorded(body, size=len(body))
    return _read_recorded(response_format, whole, content_type, call) or usage


def read_recorded(
    response_format: ResponseFormat, recorded: Recorded, content_type: str, call: Call
) -> Usage | None:
    """Read the usage of a recorded body; estimated if it could not be observed to its end.

    Args:
        response_format: the vendor's.
        recorded: beginning and end of the decoded body.
        content_type: the header's value.
        call: what formats may know besides the body.
    """
    try:
        return _read_recorded(response_format, recorded, content_type, call)
    except UnreadableUsage:
        return None


def _read_recorded(
    response_format: ResponseFormat, recorded: Recorded, content_type: str, call: Call
) -> Usage | None:
    if is_odd(recorded.head) and "amazon.eventstream" not in content_type:
        recorded = as_utf8(recorded)
    if content_type.startswith("application/json") and _is_json(recorded):
        framing: Framing = "body"  # without scanning every byte
    else:
        framing = framing_of(content_type, recorded.head)
    if framing == "body":
        usage = _of_body(response_format, recorded, call)
    else:
        usage = response_format.from_events(events_of(framing, recorded), call)
    if usage is not None and recorded.cut:
        return replaced(usage, estimated=True)
    return usage


def _is_json(recorded: Recorded) -> bool:
    """Tell whether the bytes begin and end like one JSON object."""
    return recorded.head[:1] == b"{" and (recorded.tail or recorded.head)[-1:] == b"}"


def is_stream(content_type: str, recorded: Recorded) -> bool:
    """Tell whether a body was a stream of messages."""
    framing: Framing = framing_of(content_type, plain(recorded.head[:_BEGINNING]))
    return framing != "body" or recorded.head[:1] == b"["


_BEGINNING: Final = 64 * 1024


def _of_body(response_format: ResponseFormat, recorded: Recorded, call: Call) -> Usage | None:
    if recorded.tail:
        return response_format.from_message(outline(recorded), call)
    message = _object(recorded.head)
    if message is not None:
        return response_format.from_message(message, call)
    decoded = parse(recorded.head)
    if isinstance(decoded, list):  # Gemini streams one JSON array if SSE was not requested
        # Not by msgspec, which writes NaN as null: that would be a count of nothing.
        messages = Pieces([json.dumps(message).encode() for message in decoded])
        return response_format.from_events(Events(messages, messages), call)
    return response_format.from_message(mapping(decoded), call)


def _object(data: bytes) -> Message | None:
    """Return the members of a JSON object that formats read; None for anything else."""
    try:
        return _members().decode(data)  # type: ignore[return-value]  # a TypedDict is a dict
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
