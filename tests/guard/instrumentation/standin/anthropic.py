"""Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

from guard.core.usage import Usage
from tests.guard.instrumentation.standin.reply import TEXT, WORDS, Reply, encoded, sse


def messages(number: int, request: dict[str, Any]) -> Reply:
    identity, model = f"msg_{number}", request["model"]
    usage = Usage(
        model=model,
        input_tokens=300 + number,
        output_tokens=45 + number,
        cache_read_tokens=2048,
        cache_write_tokens=512,
        response_id=identity,
    )
    asked = {
        "input_tokens": usage.input_tokens,
        "cache_read_input_tokens": 2048,
        "cache_creation_input_tokens": 512,
    }
    base = {"id": identity, "type": "message", "role": "assistant", "model": model}
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    if not request.get("stream"):
        content = [{"type": "text", "text": TEXT}]
        said = {**asked, "output_tokens": usage.output_tokens}
        return Reply(usage, encoded({**base, "content": content, **ending, "usage": said}))
    begun = {**base, "content": [], "stop_reason": None, "stop_sequence": None}
    events = [
        {"type": "message_start", "message": {**begun, "usage": {**asked, "output_tokens": 3}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0,
           "delta": {"type": "text_delta", "text": word}} for word in WORDS),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending,
         "usage": {"input_tokens": None, "output_tokens": 20}},
        {"type": "message_delta", "delta": ending,
         "usage": {"output_tokens": usage.output_tokens, "cache_read_input_tokens": 2048}},
        {"type": "message_stop"},
    ]  # fmt: skip
    return Reply(usage, events=sse(*events, name="type"), content_type="text/event-stream")
