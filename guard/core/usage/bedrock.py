"""Amazon Bedrock: Converse and InvokeModel, whole and as binary event streams.

Converse uses one format for all models; its input excludes cached tokens. InvokeModel passes on the
model's own format; its counts are in response headers, or in the stream's last frame.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Final
from urllib.parse import unquote

from guard.core.rates import PRIORITY
from guard.core.usage.anthropic import AnthropicMessages
from guard.core.usage.counters import strangers
from guard.core.usage.framing import Events
from guard.core.usage.message import (
    Message,
    count,
    items,
    mapping,
    says_any,
    text_or_none,
)
from guard.core.usage.response_format import (
    Call,
    Dialect,
    MemberPath,
    ResponseFormat,
    ToolCallReader,
    Usage,
    replaced,
)
from guard.core.usage.tool_calls import CONVERSE, INVOKE_MODEL

_MODEL: Final = re.compile(r"/model/(.+)/(?:converse|converse-stream|invoke[a-z-]*)$")
_HEADER: Final = "x-amzn-bedrock-{}-token-count"


class Converse(ResponseFormat, frozen=True):
    """``POST /model/{id}/converse`` and ``/converse-stream``."""

    provider: str = "aws"
    tool_calls: ClassVar[ToolCallReader] = CONVERSE
    dialect: ClassVar[Dialect | None] = Dialect.BEDROCK

    def limit_paths(self, request: Message, path: str) -> Sequence[MemberPath]:
        """Return the limit."""
        return (("inferenceConfig", "maxTokens"),)

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read ``usage`` of a response."""
        said = message.get("usage")
        if not isinstance(said, dict) or not says_any(said, "inputTokens", "outputTokens"):
            return None
        return Usage(
            model=model_in(call.path),
            input_tokens=count(said.get("inputTokens")),
            output_tokens=count(said.get("outputTokens")),
            cache_read_tokens=count(said.get("cacheReadInputTokens")),
            cache_write_tokens=count(said.get("cacheWriteInputTokens")),
            cache_write_1h_tokens=sum(
                count(mapping(each).get("inputTokens"))
                for each in items(said.get("cacheDetails"))
                if mapping(each).get("ttl") == "1h"
            ),
            service_tier=_tier(
                mapping(message.get("performanceConfig")).get("latency"),
                mapping(message.get("serviceTier")).get("type"),
            ),
            strangers=strangers("converse", said),
        )

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the ``metadata`` event; estimate when the stream ended before it."""
        for event in events.newest(b'"usage"'):
            usage = self.from_message(event, call)
            if usage is not None:
                return usage
        usage = self.from_message({"usage": events.late("usage")}, call)
        if usage is not None or not events.first:
            return usage
        spoken = (_spoken(event.get("delta")) for event in events.every())
        return call.estimated(events, spoken, model=model_in(call.path))


def _tier(latency: object, tier: object) -> str | None:
    if latency == "optimized":
        return PRIORITY
    return None if tier == "default" else text_or_none(tier)


class InvokeModel(ResponseFormat, frozen=True):
    """``POST /model/{id}/invoke`` and ``/invoke-with-response-stream``."""

    provider: str = "aws"
    tool_calls: ClassVar[ToolCallReader] = INVOKE_MODEL
    dialect: ClassVar[Dialect | None] = Dialect.BEDROCK

    def from_message(self, message: Message, call: Call) -> Usage | None:
        """Read the model's own ``usage`` where it is known, else the response headers."""
        usage = AnthropicMessages(self.provider).from_message(message, call)
        if usage is not None:
            return _told(usage, call)
        if call.header(_HEADER.format("input")) is None:
            return None
        usage = Usage(
            input_tokens=_said(call, "input"),
            output_tokens=_said(call, "output"),
            cache_read_tokens=_said(call, "cache-read-input"),
            cache_write_tokens=_said(call, "cache-write-input"),
            response_id=text_or_none(message.get("id")),
        )
        return _told(usage, call)

    def from_events(self, events: Events, call: Call) -> Usage | None:
        """Read the model's own events and the metrics that Bedrock adds to the last one."""
        own = AnthropicMessages(self.provider).from_events(events, call)
        if own is not None and not own.estimated:
            return _told(own, call)
        for event in events.newest(b'"amazon-bedrock-invocationMetrics"'):
            metrics = mapping(event.get("amazon-bedrock-invocationMetrics"))
            usage = Usage(
                input_tokens=count(metrics.get("inputTokenCount")),
                output_tokens=count(metrics.get("outputTokenCount")),
                cache_read_tokens=count(metrics.get("cacheReadInputTokenCount")),
                cache_write_tokens=count(metrics.get("cacheWriteInputTokenCount")),
                response_id=own.response_id if own is not None else None,
            )
            return _told(usage, call)
        if own is not None or not events.first:
            return own and _told(own, call)
        return call.estimated(events, events.every(), model=model_in(call.path))


def _told(usage: Usage, call: Call) -> Usage:
    """Return the usage with what Bedrock says of it in the path and the headers."""
    tier = _tier(
        call.header("x-amzn-bedrock-performanceconfig-latency"),
        call.header("x-amzn-bedrock-service-tier"),
    )
    return replaced(usage, model=model_in(call.path), service_tier=tier)


def model_in(path: str) -> str | None:
    """Return the model's id (or ARN), or that of a stored prompt, from the path."""
    found = _MODEL.search(path)
    return unquote(found[1]) if found else None


def _spoken(delta: object) -> object:
    """Return a delta's texts; a tool's input is a fragment of JSON in a string."""
    inner = mapping(delta)
    return [
        inner.get("text"),
        mapping(inner.get("toolUse")).get("input"),
        mapping(inner.get("reasoningContent")).get("text"),
    ]


def _said(call: Call, name: str) -> int:
    return count(call.header(_HEADER.format(name)))
