"""Anthropic's Messages API, also on Vertex and inside Bedrock's InvokeModel.

``input_tokens`` excludes both kinds of cached tokens; thinking is part of ``output_tokens``. In a
stream ``message_start`` reports the input and ``message_delta`` repeats fields cumulatively: for
each field the last value that is not null counts; a zero is not missing.
"""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec import Struct

from guard.core.fees import ANTHROPIC_SEARCH
from guard.core.rates import PERMILLE, US_ONLY_PERMILLE
from guard.core.usage.framing import Events
from guard.core.usage.message import (
    Message,
    count,
    items,
    mapping,
    says_any,
    text_bytes,
    text_or_none,
    tokens_of,
)
from guard.core.usage.response_format import Call, ToolCallReader, Usage, replaced
from guard.core.usage.tool_calls import ANTHROPIC

_COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


class AnthropicMessages(Struct, frozen=True):
    """``POST /v1/messages`` and ``...:rawPredict``.

    Attributes:
        provider: ``anthropic``, or the platform that serves the model.
    """

    provider: str = "anthropic"
    tool_calls: ClassVar[ToolCallReader] = ANTHROPIC

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read ``usage`` of a message."""
        said = message.get("usage")
        if not isinstance(said, dict) or not says_any(said, *_COUNTS):
            return None
        return _usage(message, said, call)

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Merge the usage of ``message_start`` and the ``message_delta`` events."""
        opening = mapping(events.opening().get("message"))
        said: Message = {}
        # What the opening says of the output is a beginning; `message_delta` says what it came to.
        is_final = False
        for event in reversed(list(events.newest(b'"usage"'))):
            kind = event.get("type")
            source = mapping(event.get("message")) if kind == "message_start" else event
            found = mapping(source.get("usage"))
            is_final = is_final or (source is event and found.get("output_tokens") is not None)
            said.update((k, v) for k, v in found.items() if v is not None)
        late = events.late("usage")
        is_final = is_final or late.get("output_tokens") is not None
        said.update((k, v) for k, v in late.items() if v is not None)
        if not said and not opening:
            return None
        usage = _usage(opening, said, call)
        if is_final and next(events.newest(b'"message_stop"'), None) is not None:
            return usage
        spoken = text_bytes(
            part
            for event in events.every()
            for part in (event.get("delta"), mapping(event.get("content_block")).get("text"))
        )
        return replaced(
            usage,
            input_tokens=usage.input_tokens if said else call.prompt_tokens(),
            output_tokens=max(usage.output_tokens, tokens_of(spoken * events.scale)),
            estimated=True,
            fees=None,
        )


def _usage(message: Message, said: Message, call: Call) -> Usage:
    totals = {name: count(said.get(name)) for name in _COUNTS}
    for step in items(said.get("iterations")):
        # The totals omit the tokens that server-side compaction of the context used.
        if mapping(step).get("type") == "compaction":
            for name in _COUNTS:
                totals[name] += count(step.get(name))
    thinking = count(mapping(said.get("output_tokens_details")).get("thinking_tokens"))
    written = mapping(said.get("cache_creation"))
    long_writes = count(written.get("ephemeral_1h_input_tokens"))
    tier = text_or_none(said.get("speed"))
    if tier in (None, "standard"):
        tier = text_or_none(said.get("service_tier"))
    searches = count(mapping(said.get("server_tool_use")).get("web_search_requests"))
    return Usage(
        model=text_or_none(message.get("model")) or call.model(),
        input_tokens=totals["input_tokens"],
        output_tokens=max(0, totals["output_tokens"] - thinking),
        cache_read_tokens=totals["cache_read_input_tokens"],
        cache_write_tokens=totals["cache_creation_input_tokens"],
        reasoning_tokens=thinking,
        cache_write_1h_tokens=min(long_writes, totals["cache_creation_input_tokens"]),
        service_tier=None if tier == "standard" else tier,
        surcharge_permille=US_ONLY_PERMILLE if said.get("inference_geo") == "us" else PERMILLE,
        response_id=text_or_none(message.get("id")),
        units={"web_searches": float(searches)} if searches else {},
        fees={ANTHROPIC_SEARCH: searches} if searches else {},
    )
