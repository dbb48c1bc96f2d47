"""Tells a model that its answer is the last one that a budget pays for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from guard.core.bounds.members import with_member
from guard.core.usage.bedrock import Converse
from guard.core.usage.cohere import Cohere
from guard.core.usage.message import Message, items, mapping, parse
from guard.core.usage.openai import ChatCompletions
from guard.core.usage.response_format import Dialect, MemberPath, ResponseFormat

SENTENCE: Final = (
    "guard: this is the last answer that the budget pays for. Call no tools. Say what is done, "
    "what is not, and what should come next."
)
"""What the system prompt of such a request ends with."""

_Change = tuple[MemberPath, Any]


def as_last_answer(response_format: ResponseFormat, body: bytes) -> bytes:
    """Return a request's body that asks for a last answer, without calls of tools.

    :data:`SENTENCE` is added to its system prompt, and its tools stay declared, since the
    conversation may show calls of them, but may not be called. A body of another form stays as it
    is.

    Args:
        response_format: the format of the endpoint that the URL belongs to.
        body: the body of the request.

    >>> from guard.core.usage.anthropic import AnthropicMessages
    >>> as_last_answer(AnthropicMessages(), b'{"messages":[]}')[:41]
    b'{"system":"guard: this is the last answer'
    """
    request = mapping(parse(body)) if body[:1] == b"{" else {}
    for path, value in _changes(response_format, request):
        changed = with_member(body, path, msgspec.json.encode(value))
        if changed is not None:
            body = changed
    return body


def _changes(response_format: ResponseFormat, request: Message) -> Iterator[_Change]:
    tools = bool(request.get("tools"))
    match response_format.dialect:
        case Dialect.ANTHROPIC if "messages" in request:
            yield ("system",), _with_sentence(request.get("system"))
            if tools:
                yield ("tool_choice",), {"type": "none"}
        case Dialect.RESPONSES if "input" in request:
            yield ("instructions",), _with_sentence(request.get("instructions"))
            if tools:
                yield ("tool_choice",), "none"
        case Dialect.GEMINI if "contents" in request:
            name = "system_instruction" if "system_instruction" in request else "systemInstruction"
            parts = items(mapping(request.get(name)).get("parts"))
            yield (name, "parts"), [*parts, {"text": SENTENCE}]
            if tools:
                config = "tool_config" if "tool_config" in request else "toolConfig"
                calling = "functionCallingConfig"
                if "function_calling_config" in mapping(request.get(config)):
                    calling = "function_calling_config"
                yield (config, calling), {"mode": "NONE"}
        case Dialect.BEDROCK if isinstance(response_format, Converse):
            # It has no way to forbid tools, and a conversation that has used some declares them.
            yield ("system",), [*items(request.get("system")), {"text": SENTENCE}]
        case Dialect.OLLAMA if "messages" in request:
            yield ("messages",), _messages(request)
            if tools:
                yield ("tools",), []
        case None if isinstance(response_format, ChatCompletions | Cohere) and (
            "messages" in request
        ):
            yield ("messages",), _messages(request)
            if tools:
                is_cohere = isinstance(response_format, Cohere)
                yield ("tool_choice",), "NONE" if is_cohere else "none"
        case _:
            pass


def _messages(request: Message) -> list[Any]:
    """Return the messages of a chat; one system message more where servers would refuse two."""
    messages = items(request.get("messages"))
    first = mapping(messages[0]) if messages else {}
    if first.get("role") in ("system", "developer"):
        return [{**first, "content": _with_sentence(first.get("content"))}, *messages[1:]]
    return [{"role": "system", "content": SENTENCE}, *messages]


def _with_sentence(prompt: Any) -> Any:
    """Return a system prompt, text or a list of blocks, with the sentence at its end."""
    if isinstance(prompt, list):
        return [*prompt, {"type": "text", "text": SENTENCE}]
    return f"{prompt}\n\n{SENTENCE}" if isinstance(prompt, str) and prompt else SENTENCE
