"""Puts a limit on the answer into a request that has none, where the vendor takes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from guard.core.usage.bedrock import Converse
from guard.core.usage.cohere import Cohere
from guard.core.usage.gemini import Gemini, Interactions
from guard.core.usage.message import Message, mapping, parse
from guard.core.usage.ollama import Ollama
from guard.core.usage.openai import ChatCompletions
from guard.core.usage.openai_responses import Responses
from guard.core.usage.openai_runs import ThreadRuns
from guard.core.usage.response_format import ResponseFormat

_OPENAI_MODELS: Final = ("gpt-", "o1", "o3", "o4", "chatgpt")
"""Beginnings of models that refuse the older ``max_tokens``."""


def with_output_limit(
    response_format: ResponseFormat, path: str, body: bytes, tokens: int
) -> bytes | None:
    """Return the request's body with a limit on its answer; None where none can be put in.

    The request must not have a limit yet.

    Args:
        response_format: the format of the endpoint that the URL belongs to.
        path: of the URL.
        body: of the request.
        tokens: the limit.
    """
    put = _WRITERS.get(type(response_format))
    request = mapping(parse(body)) if put is not None and body[:1] == b"{" else {}
    if put is None or not request:
        return None
    # Each writer returns the members to replace, with what the caller has set in them.
    changed = put(request, path, response_format.provider, tokens)
    return None if changed is None else msgspec.json.encode({**request, **changed})


def _chat(request: Message, path: str, provider: str, tokens: int) -> Message | None:
    if not path.endswith("/completions"):
        return None
    newer = provider == "azure" or str(request.get("model")).startswith(_OPENAI_MODELS)
    return {"max_completion_tokens" if newer and "messages" in request else "max_tokens": tokens}


def _responses(request: Message, path: str, provider: str, tokens: int) -> Message | None:
    return {"max_output_tokens": tokens} if path.endswith("/responses") else None


def _run(request: Message, path: str, provider: str, tokens: int) -> Message | None:
    return {"max_completion_tokens": tokens} if path.endswith("/runs") else None


def _gemini(request: Message, path: str, provider: str, tokens: int) -> Message | None:
    if not path.endswith("enerateContent"):
        return None
    # The spelling that the request uses, so that its other settings stay in one place.
    name = "generation_config" if "generation_config" in request else "generationConfig"
    return {name: {**mapping(request.get(name)), "maxOutputTokens": tokens}}


def _interaction(request: Message, path: str, provider: str, tokens: int) -> Message | None:
    config = {**mapping(request.get("generation_config")), "max_output_tokens": tokens}
    return {"generation_config": config}


def _cohere(request: Message, path: str, provider: str, tokens: int) -> Message | None:
    return {"max_tokens": tokens} if path.endswith(("/chat", "/generate")) else None


def _ollama(request: Message, path: str, provider: str, tokens: int) -> Message | None:
    if path.endswith("/embed"):
        return None
    return {"options": {**mapping(request.get("options")), "num_predict": tokens}}


def _converse(request: Message, path: str, provider: str, tokens: int) -> Message | None:
    config = {**mapping(request.get("inferenceConfig")), "maxTokens": tokens}
    return {"inferenceConfig": config}


_Writer = Callable[[Message, str, str, int], Message | None]

_WRITERS: Final[dict[type[Any], _Writer]] = {
    ChatCompletions: _chat,
    Responses: _responses,
    ThreadRuns: _run,
    Gemini: _gemini,
    Interactions: _interaction,
    Cohere: _cohere,
    Ollama: _ollama,
    Converse: _converse,
}
