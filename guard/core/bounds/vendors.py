"""Limits in the requests of Anthropic, Google, Cohere and Ollama."""

from __future__ import annotations

from typing import Final

import msgspec

from guard.core.bounds.asked import (
    RequestLimits,
    answered,
    embedded,
    is_present,
    limit,
    name,
    section,
)
from guard.core.bounds.thinking import thinking_budget
from guard.core.fees import by_the_piece
from guard.core.usage.gemini import model_in
from guard.core.usage.message import Message, mapping

_GOOGLE_SCHEMAS: Final = (
    "responseSchema", "response_schema", "responseJsonSchema", "response_json_schema",
    "responseMimeType", "response_mime_type",
)  # fmt: skip

EMBEDDED: Final = ("texts", "inputs", "images", "documents")
"""The members of Cohere's requests that hold what is embedded or ranked."""


def messages(path: str, said: Message) -> RequestLimits:
    """Read Anthropic's ``/v1/messages``, and ``:rawPredict`` of Vertex AI."""
    thinking = mapping(said.get("thinking"))
    return answered(
        name(said.get("model")) or model_in(path),
        limit(said.get("max_tokens"), said.get("max_tokens_to_sample")),
        streams=said.get("stream") is True,
        open_ended=b"compact" in msgspec.json.encode(said.get("context_management")),
        is_structured=is_present(said.get("tools")) or is_present(said.get("output_config")),
        thinks=thinking.get("type") not in (None, "disabled"),
        thinking=thinking_budget(thinking.get("budget_tokens")),
    )


def gemini(path: str, said: Message) -> RequestLimits:
    """Read ``:generateContent``, ``:streamGenerateContent`` and the methods of embeddings."""
    model = model_in(path)
    method = path.rpartition(":")[2]
    if method in ("predict", "predictLongRunning"):
        embeds = "embedding" in (model or "") or "gecko" in (model or "") or by_the_piece(model)
        if embeds:
            return embedded(model, said.get("instances"))
        return RequestLimits(model, open_ended=True)
    if method in ("embedContent", "batchEmbedContents"):
        return embedded(model, said.get("requests"))
    # Google takes both spellings of each name.
    config = section(said, "generationConfig", "generation_config")
    output = limit(config.get("maxOutputTokens"), config.get("max_output_tokens"))
    thinking = section(config, "thinkingConfig", "thinking_config")
    return answered(
        model,
        output,
        config.get("candidateCount"),
        config.get("candidate_count"),
        streams=method == "streamGenerateContent",
        is_structured=is_present(said.get("tools")) or any(map(config.get, _GOOGLE_SCHEMAS)),
        thinks=is_present(thinking),
        thinking=thinking_budget(thinking.get("thinkingBudget"), thinking.get("thinking_budget")),
        takes_limit=method in ("generateContent", "streamGenerateContent"),
    )


def interaction(path: str, said: Message) -> RequestLimits:
    """Read Gemini's ``/interactions``."""
    return answered(
        name(said.get("model")),
        limit(section(said, "generation_config").get("max_output_tokens")),
        streams=said.get("stream") is True,
        is_structured=is_present(said.get("tools")) or is_present(said.get("response_format")),
    )


def cohere(path: str, said: Message) -> RequestLimits:
    """Read ``/v2/chat``, ``/v2/embed``, ``/v2/rerank`` and their version 1."""
    model = name(said.get("model"))
    if path.endswith(("/embed", "/rerank")):
        return embedded(model, *map(said.get, EMBEDDED))
    thinking = mapping(said.get("thinking"))
    return answered(
        model,
        limit(said.get("max_tokens")),
        said.get("num_generations"),
        streams=said.get("stream") is True,
        is_structured=is_present(said.get("tools")) or is_present(said.get("response_format")),
        thinks=thinking.get("type") not in (None, "disabled"),
        thinking=thinking_budget(thinking.get("token_budget")),
        takes_limit=path.endswith(("/chat", "/generate")),
    )


def ollama(path: str, said: Message) -> RequestLimits:
    """Read ``/api/chat``, ``/api/generate`` and ``/api/embed``; they stream by default."""
    model = name(said.get("model"))
    if path.endswith("/embed"):
        return embedded(model, said.get("input"))
    return answered(
        model,
        limit(section(said, "options").get("num_predict")),
        streams=said.get("stream") is not False,
        is_structured=is_present(said.get("tools")) or is_present(said.get("format")),
        thinks=said.get("think") not in (None, False),
    )
