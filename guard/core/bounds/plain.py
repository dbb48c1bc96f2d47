"""The usual requests, read at once: text only, no tool of the vendor's, every limit a number.

A request that holds anything else does not fit these shapes; it is looked through block by block.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct, field

from guard.core.bounds.input_factors import text_tokens
from guard.core.bounds.thinking import hides_output, least_output, reasons
from guard.core.input_ratios import InputRatios
from guard.core.rates import BATCH, OWN_KEY_PERMILLE, Terms
from guard.core.request_bound import RequestBound
from guard.core.usage.anthropic import AnthropicMessages
from guard.core.usage.bedrock import Converse, model_of
from guard.core.usage.gemini import Gemini
from guard.core.usage.openai import ChatCompletions
from guard.core.usage.openai_responses import Responses
from guard.core.usage.response_format import Call
from guard.core.wire import NAME_LENGTH_MAX, TOKENS_MAX, fitted

Limit = Annotated[int, Meta(ge=0, le=TOKENS_MAX)] | None
Model = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]

TOOL_USE_TOKENS: Final = 1_100
"""What Anthropic adds to a prompt with tools, and for those that it has defined itself."""

PATH_MODEL: Final = re.compile(r"(?:models|tunedModels|endpoints)/([^/:]+)")

TEXT: Final = Terms(text_only=True)
_NO_WRITES: Final = Terms(cache_writes=0, text_only=True)
_LONG_WRITES: Final = Terms(cache_writes=2, text_only=True)


def terms_of(model: str | None, tier: str | None, body: bytes) -> Terms:
    """Return the terms of a text where the vendor may write to a cache unasked."""
    is_claude = model is not None and "claude" in model  # through a router
    terms = _LONG_WRITES if is_claude and b'"cache_control"' in body and b'"1h"' in body else TEXT
    return terms if not tier or tier == BATCH else Terms(fitted(tier), terms.cache_writes, True)


def written(body: bytes) -> Terms:
    """Return the terms of a text where the body asks for what is written to a cache."""
    if b'"cache_control"' not in body and b'"cachePoint"' not in body:
        return _NO_WRITES
    return _LONG_WRITES if b'"1h"' in body else TEXT


# -- messages that are nothing but text -----------------------------------------------------------


class TextPart(Struct, gc=False):
    """A block of text in OpenAI's, Cohere's and Mistral's messages."""

    type: Literal["text", "refusal", "thinking", "input_text", "output_text"] = "text"


Text = str | list[TextPart] | None


class TextMessage(Struct, gc=False):
    """A message of chat completions, of Cohere's chat or of Ollama's."""

    content: Text = None
    audio: None = None
    images: None = None


class TextItem(Struct, gc=False):
    """One item of the input of OpenAI's responses."""

    type: Literal[
        "message", "function_call", "function_call_output", "reasoning", "custom_tool_call",
        "custom_tool_call_output",
    ] = "message"  # fmt: skip
    content: Text = None
    output: Text = None


class ResultPart(Struct, gc=False):
    """A block inside a tool's result, in Anthropic's messages."""

    type: Literal["text"]


class OwnTool(Struct, gc=False):
    """A tool that the caller runs."""

    type: Literal["function", "custom"] | None = None


Tools = list[OwnTool] | None


class AnthropicPart(Struct, gc=False):
    """A block of Anthropic's messages; ``input`` of a tool is the caller's own JSON."""

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    content: str | list[ResultPart] | None = None


class AnthropicMessage(Struct, gc=False):
    """One of Anthropic's messages."""

    content: str | list[AnthropicPart]


class GeminiPart(Struct, gc=False):
    """A part of Gemini's contents; ``functionResponse`` may hold parts of its own."""

    inline_data: None = field(default=None, name="inlineData")
    inline_data_: None = field(default=None, name="inline_data")
    file_data: None = field(default=None, name="fileData")
    file_data_: None = field(default=None, name="file_data")
    function_response: FunctionResponse | None = field(default=None, name="functionResponse")


class FunctionResponse(Struct, gc=False):
    """The result of a function, without images or files."""

    parts: None = None


class GeminiContent(Struct, gc=False):
    """One of Gemini's contents."""

    parts: list[GeminiPart] | GeminiPart | None = None


class ConversePart(Struct, gc=False):
    """A block of Bedrock's Converse."""

    image: None = None
    document: None = None
    video: None = None
    audio: None = None
    search_result: None = field(default=None, name="searchResult")
    tool_result: ToolResult | None = field(default=None, name="toolResult")


class ToolResult(Struct, gc=False):
    """A tool's result in Bedrock's Converse."""

    content: list[PlainResult] = []


class PlainResult(Struct, gc=False):
    """A block inside a tool's result, in Bedrock's Converse."""

    image: None = None
    document: None = None
    video: None = None
    text: Any = None


class ConverseMessage(Struct, gc=False):
    """A message of Bedrock's Converse."""

    content: list[ConversePart]


# -- requests -------------------------------------------------------------------------------------


class Thinking(Struct, gc=False):
    """How an answer is to be thought about before it is given."""

    type: str = "enabled"
    budget_tokens: int | None = None


def _bound(
    provider: str,
    model: str | None,
    input_tokens: int,
    named: int | None,
    text: int,
    streams: bool,
    is_structured: bool,
    thinking: Thinking | None,
    terms: Terms,
) -> RequestBound:
    thinks = thinking is not None and thinking.type != "disabled"
    does_reason = thinks or reasons(model)
    budget = 0 if thinking is None else thinking.budget_tokens or 0
    least = least_output(
        named, does_reason=does_reason, is_structured=is_structured, thinking=budget
    )
    hides = does_reason or hides_output(model)
    if provider == "openrouter":
        terms = Terms(terms.tier, terms.cache_writes, True, OWN_KEY_PERMILLE)
    return RequestBound(
        provider, model, input_tokens, named, text, streams, least, 1, 0, hides, terms
    )


class PlainChat(Struct, gc=False):
    """Chat completions."""

    model: Model
    messages: list[TextMessage]
    max_completion_tokens: Limit = None
    max_tokens: Limit = None
    stream: bool = False
    tools: Tools = None
    n: Literal[1] | None = None
    best_of: None = None
    prompt: None = None
    agent_id: None = None
    prediction: None = None
    web_search_options: None = None
    search_parameters: None = None
    plugins: None = None
    functions: None = None
    modalities: None = None
    audio: None = None
    service_tier: str | None = None
    thinking_budget: None = None
    response_format: Any = None
    reasoning_effort: Any = None
    reasoning: None = None
    thinking: Thinking | None = None


_chat: Final = msgspec.json.Decoder(PlainChat)


def chat(provider: str, path: str, body: bytes, ratios: InputRatios) -> RequestBound:
    """Read ``.../chat/completions``.

    Raises:
        msgspec.DecodeError: not a request of the usual shape.
    """
    said = _chat.decode(body)
    output, model = said.max_completion_tokens, fitted(said.model)
    if "-search-" in model or provider == "perplexity":
        raise msgspec.ValidationError("the model searches the web, which is charged by the search")
    text = text_tokens(model, body)
    if output is None or (said.max_tokens is not None and said.max_tokens > output):
        output = said.max_tokens  # with both names given, vendors differ in which one counts
    thinking = said.thinking
    if thinking is None and said.reasoning_effort is not None:
        thinking = Thinking()
    is_structured = said.tools is not None or said.response_format is not None
    tokens = ratios.tokens(model, text)
    terms, streams = terms_of(model, said.service_tier, body), said.stream
    return _bound(provider, model, tokens, output, text, streams, is_structured, thinking, terms)


class PlainResponse(Struct, gc=False):
    """OpenAI's responses."""

    model: Model
    input: str | list[TextItem]
    max_output_tokens: Limit = None
    stream: bool | None = None
    tools: Tools = None
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    text: Any = None
    reasoning: Any = None
    service_tier: str | None = None


_response: Final = msgspec.json.Decoder(PlainResponse)


def responses(provider: str, path: str, body: bytes, ratios: InputRatios) -> RequestBound:
    """Read ``.../responses``.

    Raises:
        msgspec.DecodeError: not a request of the usual shape.
    """
    said = _response.decode(body)
    model = fitted(said.model)
    text = text_tokens(model, body)
    tokens, named, streams = ratios.tokens(model, text), said.max_output_tokens, said.stream is True
    is_structured = said.tools is not None or said.text is not None
    thinking = None if said.reasoning is None else Thinking()
    terms = terms_of(model, said.service_tier, body)
    return _bound(provider, model, tokens, named, text, streams, is_structured, thinking, terms)


class PlainMessages(Struct, gc=False):
    """Anthropic's messages."""

    messages: list[AnthropicMessage]
    max_tokens: Limit
    model: Model | None = None
    stream: bool = False
    tools: Tools = None
    mcp_servers: None = None
    container: None = None
    context_management: None = None
    thinking: Thinking | None = None
    output_config: Any = None
    speed: None = None
    inference_geo: None = None


_messages: Final = msgspec.json.Decoder(PlainMessages)


def messages(provider: str, path: str, body: bytes, ratios: InputRatios) -> RequestBound:
    """Read Anthropic's ``/v1/messages``, and ``:rawPredict`` of Vertex AI.

    Raises:
        msgspec.DecodeError: not a request of the usual shape.
    """
    said = _messages.decode(body)
    model = google_model(path) if said.model is None else fitted(said.model)
    text = text_tokens(model, body)
    tokens = ratios.tokens(model, text)
    if said.tools:
        tokens += TOOL_USE_TOKENS
    is_structured = bool(said.tools) or said.output_config is not None
    named, streams, thinking = said.max_tokens, said.stream, said.thinking
    terms = written(body)
    return _bound(provider, model, tokens, named, text, streams, is_structured, thinking, terms)


class GoogleThinking(Struct, gc=False):
    """Gemini's thinking config."""

    budget: int | None = field(default=None, name="thinkingBudget")
    budget_: None = field(default=None, name="thinking_budget")


class PlainConfig(Struct, gc=False):
    """Gemini's generation config."""

    max_output_tokens: Limit = field(default=None, name="maxOutputTokens")
    candidate_count: Literal[1] | None = field(default=None, name="candidateCount")
    max_output_tokens_: None = field(default=None, name="max_output_tokens")
    candidate_count_: None = field(default=None, name="candidate_count")
    thinking: GoogleThinking | None = field(default=None, name="thinkingConfig")
    thinking_: None = field(default=None, name="thinking_config")
    mime: Any = field(default=None, name="responseMimeType")
    modalities: None = field(default=None, name="responseModalities")
    speech: None = field(default=None, name="speechConfig")


class GoogleTool(Struct, gc=False, forbid_unknown_fields=True):
    """Functions of the caller."""

    functions: Any = field(default=None, name="functionDeclarations")
    functions_: Any = field(default=None, name="function_declarations")


class PlainGenerate(Struct, gc=False):
    """Gemini's contents, to generate from."""

    contents: list[GeminiContent]
    config: PlainConfig | None = field(default=None, name="generationConfig")
    tools: list[GoogleTool] | None = None
    config_: None = field(default=None, name="generation_config")
    cached_content: None = field(default=None, name="cachedContent")
    cached_content_: None = field(default=None, name="cached_content")
    tier: None = field(default=None, name="serviceTier")
    tier_: None = field(default=None, name="service_tier")


_generate: Final = msgspec.json.Decoder(PlainGenerate)


def gemini(provider: str, path: str, body: bytes, ratios: InputRatios) -> RequestBound:
    """Read ``:generateContent`` and ``:streamGenerateContent``.

    Raises:
        msgspec.DecodeError: not a request of the usual shape.
    """
    said = _generate.decode(body)
    model = google_model(path)
    text = text_tokens(model, body)
    output, thinking, is_structured = None, None, bool(said.tools)
    if said.config is not None:
        output = said.config.max_output_tokens
        is_structured = is_structured or said.config.mime is not None
        if said.config.thinking is not None:
            thinking = Thinking(budget_tokens=said.config.thinking.budget)
    streams, tokens = path.endswith(":streamGenerateContent"), ratios.tokens(model, text)
    return _bound(provider, model, tokens, output, text, streams, is_structured, thinking, TEXT)


class PlainInference(Struct, gc=False):
    """Converse's inference config."""

    max_tokens: Limit = field(default=None, name="maxTokens")


class ConverseTool(Struct, gc=False):
    """A tool of the caller, or a cache point."""

    system_tool: None = field(default=None, name="systemTool")


class ConverseTools(Struct, gc=False):
    """Converse's tools."""

    tools: list[ConverseTool] = []


class PlainConverse(Struct, gc=False):
    """Bedrock's Converse."""

    messages: list[ConverseMessage]
    config: PlainInference | None = field(default=None, name="inferenceConfig")
    tools: ConverseTools | None = field(default=None, name="toolConfig")
    variables: None = field(default=None, name="promptVariables")
    more: None = field(default=None, name="additionalModelRequestFields")
    output_config: Any = field(default=None, name="outputConfig")


_converse: Final = msgspec.json.Decoder(PlainConverse)


def converse(provider: str, path: str, body: bytes, ratios: InputRatios) -> RequestBound:
    """Read ``/model/{id}/converse`` and ``/converse-stream``.

    Raises:
        msgspec.DecodeError: not a request of the usual shape.
    """
    said = _converse.decode(body)
    model = bedrock_model(path)
    text = text_tokens(model, body)
    if model is not None and ":prompt/" in model:
        raise msgspec.ValidationError("a stored prompt is not in the body")
    tokens = ratios.tokens(model, text)
    if said.tools is not None:
        tokens += TOOL_USE_TOKENS
    output = None if said.config is None else said.config.max_tokens
    is_structured = said.tools is not None or said.output_config is not None
    streams, terms = path.endswith("-stream"), written(body)
    return _bound(provider, model, tokens, output, text, streams, is_structured, None, terms)


@functools.lru_cache(1024)
def google_model(path: str) -> str | None:
    """Return the model that a path of Google names."""
    found = PATH_MODEL.search(path)
    return None if found is None else fitted(found[1])


@functools.lru_cache(1024)
def bedrock_model(path: str) -> str | None:
    """Return the model, or the stored prompt, that a path of Bedrock names."""
    found = model_of(Call(path))
    return None if found is None else fitted(found)


Reader = Callable[[str, str, bytes, InputRatios], RequestBound]

READERS: Final[dict[type, Reader]] = {
    ChatCompletions: chat,
    Responses: responses,
    AnthropicMessages: messages,
    Gemini: gemini,
    Converse: converse,
}
