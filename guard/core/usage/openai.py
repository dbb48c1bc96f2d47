"""OpenAI's chat-completions format, also spoken by many other vendors.

Cached and reasoning tokens are subsets of the prompt and the completion there; here the buckets
are disjoint. A stream says its usage only when ``stream_options.include_usage`` asked for it, in
the last chunk; without it the tokens are estimated and flagged.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from guard.core.usage.base import Usage, count, mapping, parse, sse_payloads, text_or_none

_CHARACTERS_PER_TOKEN: Final = 4


@attrs.frozen
class ChatCompletions:
    """``POST .../chat/completions``.

    Attributes:
        provider: the vendor behind the host.
    """

    provider: str

    def from_body(self, body: bytes) -> Usage | None:
        """Read ``usage`` of a chat completion."""
        return _usage(mapping(parse(body)))

    def from_stream(self, head: bytes, tail: bytes, chunks: int, request: bytes) -> Usage | None:
        """Read the last chunk that holds ``usage``; estimate when none does."""
        for payload in reversed(sse_payloads(tail or head)):
            if b'"usage"' in payload:
                usage = _usage(mapping(parse(payload)))
                if usage is not None:
                    return usage
        payloads = sse_payloads(head)
        return _estimate(chunks, request, mapping(parse(payloads[0]))) if payloads else None


def _usage(response: dict[str, Any]) -> Usage | None:
    usage = response.get("usage")
    if not isinstance(usage, dict):
        return None
    prompt = mapping(usage.get("prompt_tokens_details"))
    completion = mapping(usage.get("completion_tokens_details"))
    cache_read = count(prompt.get("cached_tokens"))
    cache_write = count(prompt.get("cache_write_tokens"))
    audio_in, audio_out = count(prompt.get("audio_tokens")), count(completion.get("audio_tokens"))
    reasoning = count(completion.get("reasoning_tokens"))
    return Usage(
        model=text_or_none(response.get("model")),
        input_tokens=max(
            0, count(usage.get("prompt_tokens")) - cache_read - cache_write - audio_in
        ),
        output_tokens=max(0, count(usage.get("completion_tokens")) - reasoning - audio_out),
        cache_read_tokens=cache_read,
        cache_write_tokens=cache_write,
        reasoning_tokens=reasoning,
        audio_tokens=audio_in + audio_out,
        response_id=text_or_none(response.get("id")),
    )


def _estimate(chunks: int, request: bytes, first: dict[str, Any]) -> Usage:
    """Estimate: about a token a chunk, and about four characters a token of the prompt."""
    asked = mapping(parse(request))
    messages = asked.get("messages")
    characters = 0
    for message in messages if isinstance(messages, list) else []:
        content = mapping(message).get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        characters += sum(len(text_or_none(mapping(part).get("text")) or "") for part in parts)
    return Usage(
        model=text_or_none(first.get("model")) or text_or_none(asked.get("model")),
        input_tokens=-(-characters // _CHARACTERS_PER_TOKEN),
        output_tokens=chunks,
        response_id=text_or_none(first.get("id")),
        estimated=True,
    )
