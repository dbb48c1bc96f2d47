"""From a request's format, path and body to its bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from guard.core.bounds import bedrock, openai, plain, vendors
from guard.core.bounds.asked import AskedOutput
from guard.core.bounds.media import measure
from guard.core.input_ratios import InputRatios
from guard.core.request_bound import RequestBound
from guard.core.usage.anthropic import AnthropicMessages
from guard.core.usage.bedrock import Converse, InvokeModel
from guard.core.usage.cohere import Cohere
from guard.core.usage.gemini import Gemini, Interactions
from guard.core.usage.message import Message
from guard.core.usage.ollama import Ollama
from guard.core.usage.openai import ChatCompletions
from guard.core.usage.openai_responses import Responses
from guard.core.usage.openai_runs import ThreadRuns
from guard.core.usage.response_format import Call, ResponseFormat
from guard.core.wire import NAME_LENGTH_MAX, TOKENS_MAX

_BODY_BYTES_MAX: Final = 32 * 1024 * 1024
"""A larger body is not read."""

_READERS: Final[dict[type, Callable[[str, Message], AskedOutput]]] = {
    ChatCompletions: openai.chat,
    Responses: openai.responses,
    ThreadRuns: openai.thread_run,
    AnthropicMessages: vendors.messages,
    Gemini: vendors.gemini,
    Interactions: vendors.interaction,
    Cohere: vendors.cohere,
    Ollama: vendors.ollama,
    Converse: bedrock.converse,
    InvokeModel: bedrock.invoke,
}


def bound_of(
    response_format: ResponseFormat, path: str, body: bytes, ratios: InputRatios
) -> RequestBound:
    """Bound one LLM request; never raises.

    A body that is not JSON, too large or of a shape that is not known bounds nothing.

    Args:
        response_format: the format of the endpoint that the URL belongs to.
        path: of the URL.
        body: of the request; empty when it was not kept.
        ratios: how many tokens a prompt of some size has at most.
    """
    kind = type(response_format)
    quick = plain.READERS.get(kind)
    if quick is not None and len(body) <= _BODY_BYTES_MAX:
        try:
            return quick(response_format.provider, path, body, ratios)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # another shape, or no JSON
    read = _READERS.get(kind)
    if read is None or body[:1] != b"{" or len(body) > _BODY_BYTES_MAX:
        return _unbounded(response_format, path, body)
    try:
        said = msgspec.json.decode(body)
        return _bounded(response_format.provider, read(path, said), said, len(body), ratios)
    except (ValueError, RecursionError):  # no JSON, or a member of another shape
        return _unbounded(response_format, path, body)


def _bounded(
    provider: str, asked: AskedOutput, said: Message, size_bytes: int, ratios: InputRatios
) -> RequestBound:
    model = asked.model
    if model is not None and len(model) > NAME_LENGTH_MAX:
        model = model[:NAME_LENGTH_MAX]
    if asked.open_ended:
        return RequestBound(provider, model, None, asked.output_tokens, 0, asked.streams)
    media = measure(said, model)
    if not media.bounded:
        return RequestBound(provider, model, None, asked.output_tokens, 0, asked.streams)
    if media.encoded_bytes or media.tokens:
        tokens = ratios.tokens(model, size_bytes - media.encoded_bytes) + media.tokens
        tokens = min(tokens + asked.extra_tokens, TOKENS_MAX)
        return RequestBound(provider, model, tokens, asked.output_tokens, 0, asked.streams)
    tokens = ratios.tokens(model, size_bytes) + asked.extra_tokens
    return RequestBound(provider, model, tokens, asked.output_tokens, size_bytes, asked.streams)


def _unbounded(response_format: ResponseFormat, path: str, body: bytes) -> RequestBound:
    """Return what is left: the model, where a form or the path names it."""
    model = Call(path, lambda: body).model() if len(body) <= _BODY_BYTES_MAX else None
    if model is not None:
        model = model[:NAME_LENGTH_MAX]
    return RequestBound(response_format.provider, model)
