"""Amazon Bedrock's runtime: Converse and InvokeModel."""

from __future__ import annotations

import base64

from guard.core.usage import Usage
from tests.guard.instrumentation.standin.reply import TEXT, WORDS, Reply, aws_frame, encoded

_STREAM = "application/vnd.amazon.eventstream"


def converse(number: int, model: str, *, stream: bool) -> Reply:
    usage = Usage(
        model=model,
        input_tokens=410 + number,
        output_tokens=33 + number,
        cache_read_tokens=100,
        cache_write_tokens=20,
    )
    said = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens + 120,
        "cacheReadInputTokens": 100,
        "cacheWriteInputTokens": 20,
    }
    if not stream:
        body = {
            "output": {"message": {"role": "assistant", "content": [{"text": TEXT}]}},
            "stopReason": "end_turn",
            "usage": said,
            "metrics": {"latencyMs": 5},
        }
        return Reply(usage, encoded(body))
    messages = [
        ("messageStart", {"role": "assistant"}),
        *(("contentBlockDelta", {"delta": {"text": w}, "contentBlockIndex": 0}) for w in WORDS),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("messageStop", {"stopReason": "end_turn"}),
        ("metadata", {"usage": said, "metrics": {"latencyMs": 5}}),
    ]
    events = tuple(aws_frame(name, encoded(message)) for name, message in messages)
    return Reply(usage, events=events, content_type=_STREAM)


def invoke(number: int, model: str, *, stream: bool) -> Reply:
    """A model of another vendor than Anthropic: only headers and metrics count."""
    usage = Usage(model=model, input_tokens=120 + number, output_tokens=60 + number)
    if not stream:
        headers = {
            "x-amzn-bedrock-input-token-count": str(usage.input_tokens),
            "x-amzn-bedrock-output-token-count": str(usage.output_tokens),
        }
        return Reply(usage, encoded({"generation": TEXT}), headers=headers)
    metrics = {
        "inputTokenCount": usage.input_tokens, "outputTokenCount": usage.output_tokens,
        "invocationLatency": 5, "firstByteLatency": 1,
    }  # fmt: skip
    messages = [
        *({"generation": word} for word in WORDS),
        {"generation": "", "amazon-bedrock-invocationMetrics": metrics},
    ]
    events = tuple(
        aws_frame("chunk", encoded({"bytes": base64.b64encode(encoded(each)).decode()}))
        for each in messages
    )
    return Reply(usage, events=events, content_type=_STREAM)
