"""Cohere's API, version 2."""

from __future__ import annotations

from typing import Any

from guard.core.usage import Usage
from tests.guard.instrumentation.standin.reply import TEXT, WORDS, Reply, encoded, sse


def chat(number: int, request: dict[str, Any]) -> Reply:
    identity = f"co-{number}"
    usage = Usage(
        model=request["model"],
        input_tokens=80 + number,
        output_tokens=25 + number,
        response_id=identity,
    )
    said = {
        "billed_units": {
            "input_tokens": float(usage.input_tokens), "output_tokens": float(usage.output_tokens),
        },
        "tokens": {
            "input_tokens": usage.input_tokens + 500.0,
            "output_tokens": float(usage.output_tokens),
        },
    }  # fmt: skip
    if not request.get("stream"):
        message = {"role": "assistant", "content": [{"type": "text", "text": TEXT}]}
        body = {"id": identity, "finish_reason": "COMPLETE", "message": message, "usage": said}
        return Reply(usage, encoded(body))
    events = [
        {"id": identity, "type": "message-start", "delta": {"message": {"role": "assistant"}}},
        {"type": "content-start", "index": 0,
         "delta": {"message": {"content": {"type": "text", "text": ""}}}},
        *({"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": word}}}}
          for word in WORDS),
        {"type": "content-end", "index": 0},
        {"type": "message-end", "id": identity,
         "delta": {"finish_reason": "COMPLETE", "usage": said}},
    ]  # fmt: skip
    return Reply(usage, events=sse(*events, name="type"), content_type="text/event-stream")


def embed(number: int, request: dict[str, Any]) -> Reply:
    usage = Usage(model=request["model"], input_tokens=9 + number, response_id=f"emb-{number}")
    body = {
        "id": f"emb-{number}",
        "embeddings": {"float": [[0.5, 0.25]]},
        "texts": request.get("texts", []),
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": usage.input_tokens},
        },
        "response_type": "embeddings_by_type",
    }
    return Reply(usage, encoded(body))


def rerank(number: int, request: dict[str, Any]) -> Reply:
    usage = Usage(model=request["model"], response_id=f"rr-{number}", units={"search_units": 1.0})
    body = {
        "id": f"rr-{number}",
        "results": [{"index": 0, "relevance_score": 0.9}],
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }
    return Reply(usage, encoded(body))
