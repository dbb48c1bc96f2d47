"""Ollama's own API."""

from __future__ import annotations

from typing import Any

from guard.core.usage import Usage
from tests.guard.instrumentation.standin.reply import TEXT, WORDS, Reply, encoded, lines

_TIMES = {
    "total_duration": 5_000_000, "load_duration": 1, "prompt_eval_duration": 2, "eval_duration": 3,
}  # fmt: skip


def answer(number: int, request: dict[str, Any], kind: str) -> Reply:
    model = request["model"]
    usage = Usage(model=model, input_tokens=26 + number, output_tokens=90 + number)
    base = {"model": model, "created_at": "2026-11-20T10:00:00Z"}

    def said(text: str, *, done: bool) -> dict[str, Any]:
        spoken = (
            {"message": {"role": "assistant", "content": text}}
            if kind == "chat"
            else {"response": text}
        )
        counts = {"prompt_eval_count": usage.input_tokens, "eval_count": usage.output_tokens}
        ending = {"done_reason": "stop", **_TIMES, **counts} if done else {}
        return {**base, **spoken, "done": done, **ending}

    if request.get("stream") is False:
        return Reply(usage, encoded(said(TEXT, done=True)))
    messages = [*(said(word, done=False) for word in WORDS), said("", done=True)]
    return Reply(usage, events=lines(*messages), content_type="application/x-ndjson")


def embed(number: int, request: dict[str, Any]) -> Reply:
    usage = Usage(model=request["model"], input_tokens=8 + number)
    body = {
        "model": request["model"], "embeddings": [[0.5, 0.25]], "total_duration": 1,
        "load_duration": 1, "prompt_eval_count": usage.input_tokens,
    }  # fmt: skip
    return Reply(usage, encoded(body))
