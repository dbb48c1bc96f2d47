"""The Gemini API."""

from __future__ import annotations

from typing import Any

from guard.core.usage import Usage
from tests.guard.instrumentation.standin.reply import TEXT, WORDS, Reply, encoded, sse


def generate(number: int, model: str, *, stream: bool, as_sse: bool) -> Reply:
    identity = f"gem-{number}"
    usage = Usage(
        model=f"{model}-001",
        input_tokens=210 + number,
        output_tokens=70 + number,
        cache_read_tokens=40,
        reasoning_tokens=19,
        response_id=identity,
    )

    def message(text: str, visible: int, finish: str | None) -> dict[str, Any]:
        candidate: dict[str, Any] = {
            "content": {"role": "model", "parts": [{"text": text}]}, "index": 0,
        }  # fmt: skip
        if finish:
            candidate["finishReason"] = finish
        return {
            "candidates": [candidate],
            "usageMetadata": {
                "promptTokenCount": usage.input_tokens + 40 - 7,
                "toolUsePromptTokenCount": 7,
                "cachedContentTokenCount": 40,
                "candidatesTokenCount": visible,
                "thoughtsTokenCount": 19,
                "totalTokenCount": usage.input_tokens + 59 + visible,
            },
            "modelVersion": f"{model}-001",
            "responseId": identity,
        }

    if not stream:
        return Reply(usage, encoded(message(TEXT, usage.output_tokens, "STOP")))
    last = len(WORDS) - 1
    messages = [
        message(word, usage.output_tokens if i == last else i + 1, "STOP" if i == last else None)
        for i, word in enumerate(WORDS)
    ]
    if as_sse:
        return Reply(usage, events=sse(*messages), content_type="text/event-stream")
    pieces = [b"[" + encoded(messages[0])]
    pieces += [b"\n,\r\n" + encoded(each) for each in messages[1:]]
    return Reply(usage, events=(*pieces, b"]"))


def embed(number: int, model: str, request: dict[str, Any]) -> Reply:
    texts = [
        part["text"]
        for each in request.get("requests", [request])
        for part in each["content"]["parts"]
    ]
    size = sum(len(text.encode()) for text in texts)
    usage = Usage(model=model, input_tokens=-(-size // 4), estimated=True)
    vectors = [{"values": [0.5, 0.25]} for _ in texts]
    body = {"embeddings": vectors} if "requests" in request else {"embedding": vectors[0]}
    return Reply(usage, encoded(body))
