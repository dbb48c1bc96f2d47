"""Limits in the requests of Anthropic, Google, Cohere and Ollama."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from guard.core.bounds.asked import NOTHING, AskedOutput, given, limit, name, run_by_vendor, times
from guard.core.bounds.plain import TOOL_USE_TOKENS, google_model

_OWN_ANTHROPIC_TOOLS: Final = ("custom", "bash_", "text_editor_", "computer_", "memory_")


class _Messages(Struct, gc=False):
    model: Any = None
    max_tokens: Any = None
    max_tokens_to_sample: Any = None
    stream: Any = None
    mcp_servers: Raw = NOTHING
    container: Raw = NOTHING
    context_management: Raw = NOTHING
    tools: Raw = NOTHING


_messages: Final = msgspec.json.Decoder(_Messages)


def messages(path: str, body: bytes) -> AskedOutput:
    """Read Anthropic's ``/v1/messages``, and ``:rawPredict`` of Vertex AI.

    Raises:
        msgspec.DecodeError: the body is not a JSON object.
    """
    said = _messages.decode(body)
    return AskedOutput(
        name(said.model) or google_model(path),
        limit(said.max_tokens, said.max_tokens_to_sample),
        said.stream is True,
        open_ended=(
            given(said.mcp_servers)
            or given(said.container)
            or (given(said.context_management) and b"compact" in bytes(said.context_management))
            or run_by_vendor(said.tools, _OWN_ANTHROPIC_TOOLS)
        ),
        extra_tokens=TOOL_USE_TOKENS if given(said.tools) else 0,
    )


class _Config(Struct, gc=False):
    """Google takes both spellings."""

    max_output_tokens: Any = field(default=None, name="maxOutputTokens")
    max_output_tokens_: Any = field(default=None, name="max_output_tokens")
    candidate_count: Any = field(default=None, name="candidateCount")
    candidate_count_: Any = field(default=None, name="candidate_count")


_NO_CONFIG: Final = _Config()


class _Generate(Struct, gc=False):
    config: _Config | None = field(default=None, name="generationConfig")
    config_: _Config | None = field(default=None, name="generation_config")
    cached_content: Any = field(default=None, name="cachedContent")
    cached_content_: Any = field(default=None, name="cached_content")
    tools: Raw = NOTHING


_generate: Final = msgspec.json.Decoder(_Generate)
_google_tools: Final = msgspec.json.Decoder(list[dict[str, Raw]])
_OWN_GOOGLE_TOOLS: Final = frozenset({
    "functionDeclarations", "function_declarations", "computerUse", "computer_use",
})  # fmt: skip


def gemini(path: str, body: bytes) -> AskedOutput:
    """Read ``:generateContent``, ``:streamGenerateContent`` and the methods of embeddings.

    Raises:
        msgspec.DecodeError: the body is not such a JSON object.
    """
    model = google_model(path)
    method = path.rpartition(":")[2]
    if method == "predict":
        embeds = "embedding" in (model or "") or "gecko" in (model or "")
        return AskedOutput(model, 0 if embeds else None, open_ended=not embeds)
    if method in ("embedContent", "batchEmbedContents"):
        return AskedOutput(model, 0)
    said = _generate.decode(body)
    config = said.config or said.config_ or _NO_CONFIG
    output = limit(config.max_output_tokens, config.max_output_tokens_)
    return AskedOutput(
        model,
        times(output, config.candidate_count, config.candidate_count_),
        method == "streamGenerateContent",
        open_ended=(
            said.cached_content is not None
            or said.cached_content_ is not None
            or _run_by_google(said.tools)
        ),
    )


def _run_by_google(tools: Raw) -> bool:
    if not given(tools):
        return False
    try:
        return any(not _OWN_GOOGLE_TOOLS.issuperset(tool) for tool in _google_tools.decode(tools))
    except msgspec.DecodeError:
        return True


class _Interaction(Struct, gc=False):
    model: Any = None
    agent: Any = None
    stream: Any = None
    previous_interaction_id: Any = None
    generation_config: _Config | None = None
    tools: Raw = NOTHING


_interaction: Final = msgspec.json.Decoder(_Interaction)


def interaction(path: str, body: bytes) -> AskedOutput:
    """Read Gemini's ``/interactions``.

    Raises:
        msgspec.DecodeError: the body is not such a JSON object.
    """
    said = _interaction.decode(body)
    config = said.generation_config or _NO_CONFIG
    return AskedOutput(
        name(said.model),
        limit(config.max_output_tokens_),
        said.stream is True,
        open_ended=(
            said.agent is not None
            or said.previous_interaction_id is not None
            or run_by_vendor(said.tools, ("function",))
        ),
    )


class _Cohere(Struct, gc=False):
    model: Any = None
    max_tokens: Any = None
    num_generations: Any = None
    stream: Any = None
    conversation_id: Any = None
    connectors: Raw = NOTHING


_cohere: Final = msgspec.json.Decoder(_Cohere)


def cohere(path: str, body: bytes) -> AskedOutput:
    """Read ``/v2/chat``, ``/v2/embed``, ``/v2/rerank`` and their version 1.

    Raises:
        msgspec.DecodeError: the body is not a JSON object.
    """
    said = _cohere.decode(body)
    if path.endswith(("/embed", "/rerank")):
        return AskedOutput(name(said.model), 0)
    return AskedOutput(
        name(said.model),
        times(limit(said.max_tokens), said.num_generations),
        said.stream is True,
        open_ended=said.conversation_id is not None or given(said.connectors),
    )


class _Options(Struct, gc=False):
    num_predict: Any = None


class _Ollama(Struct, gc=False):
    model: Any = None
    stream: Any = None
    options: _Options | None = None


_ollama: Final = msgspec.json.Decoder(_Ollama)


def ollama(path: str, body: bytes) -> AskedOutput:
    """Read ``/api/chat``, ``/api/generate`` and ``/api/embed``; they stream by default.

    Raises:
        msgspec.DecodeError: the body is not such a JSON object.
    """
    said = _ollama.decode(body)
    if path.endswith("/embed"):
        return AskedOutput(name(said.model), 0)
    predicted = None if said.options is None else said.options.num_predict
    return AskedOutput(name(said.model), limit(predicted), said.stream is not False)
