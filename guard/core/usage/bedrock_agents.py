"""Agents of Amazon Bedrock: the usage is in the trace of what they did.

One answer may be the work of several models, and its trace repeats every prompt. So only what a
model invocation says about itself is kept of each frame, and summed for each model.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from guard.core.usage.framing import Events
from guard.core.usage.message import Message, count, mapping, parse, text_or_none
from guard.core.usage.response_format import Call, ResponseFormat, ToolCallReader, Usage, replaced
from guard.core.usage.tool_calls import RETURNED_CONTROL


class AgentTrace(ResponseFormat, frozen=True):
    """``InvokeAgent`` and ``InvokeInlineAgent``, whose caller has set ``enableTrace``."""

    provider: str = "aws"
    tool_calls: ClassVar[ToolCallReader] = RETURNED_CONTROL

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Return None: the answer of an agent is always a stream."""
        return None

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Sum the model invocations for each model; the model that used most comes first."""
        names: dict[str, str] = {}
        usages: list[tuple[str, Usage]] = []
        for event in events.every():
            found = _invocation(event)
            trace_id = str(found.get("traceId", ""))
            model = text_or_none(found.get("foundationModel"))
            if model is not None:
                names[trace_id] = model
            said = mapping(found.get("usage"))
            if said:
                usages.append((trace_id, _usage(said)))
        otherwise = text_or_none(mapping(parse(call.request())).get("foundationModel"))
        sums: dict[str | None, Usage] = {}
        for trace_id, usage in usages:
            model = names.get(trace_id, otherwise)
            sums[model] = _added(sums.get(model, Usage(model=model)), usage)
        if not sums:
            return None
        first, *others = sorted(sums.values(), key=_size, reverse=True)
        return replaced(first, others=tuple(others))


def condensed(payload: bytes) -> bytes | None:
    """Return what a frame says about a model invocation, without texts; None if it says nothing."""
    if b'"modelInvocation' not in payload:
        return None
    found = _invocation(mapping(parse(payload)))
    return msgspec.json.encode({"modelInvocation": found}) if found else None


def _invocation(message: Message) -> Message:
    """Return the trace id, and the model or the usage, of one event."""
    if "modelInvocation" in message:
        return mapping(message["modelInvocation"])
    # What a collaborator or a tool reports is the sum of its own invocations: it is not counted.
    for step in mapping(message.get("trace")).values():
        asked = mapping(mapping(step).get("modelInvocationInput"))
        if asked:
            return _only(asked, "traceId", "foundationModel")
        answered = mapping(mapping(step).get("modelInvocationOutput"))
        if answered:
            metadata = mapping(answered.get("metadata"))
            return _only({**metadata, **answered}, "traceId", "usage")
    return {}


def _only(message: Message, *names: str) -> Message:
    return {name: message[name] for name in names if name in message}


def _usage(said: Message) -> Usage:
    return Usage(
        input_tokens=count(said.get("inputTokens")),
        output_tokens=count(said.get("outputTokens")),
        cache_read_tokens=count(said.get("cacheReadInputTokens")),
        cache_write_tokens=count(said.get("cacheWriteInputTokens")),
    )


def _added(one: Usage, other: Usage) -> Usage:
    return replaced(
        one,
        input_tokens=count(one.input_tokens + other.input_tokens),
        output_tokens=count(one.output_tokens + other.output_tokens),
        cache_read_tokens=count(one.cache_read_tokens + other.cache_read_tokens),
        cache_write_tokens=count(one.cache_write_tokens + other.cache_write_tokens),
    )


def _size(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens
