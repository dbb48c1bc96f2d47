"""What a request can be charged besides tokens: the units that it allows, and what it leaves open.

Only requests that hold something unusual come here; those of text alone have no fees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from guard.core import fees
from guard.core.bounds.asked import is_present
from guard.core.bounds.images import EDITED_IMAGE_TOKENS, image_tokens
from guard.core.usage.anthropic import AnthropicMessages
from guard.core.usage.gemini import Gemini, Interactions
from guard.core.usage.message import Message, items, mapping
from guard.core.usage.openai import ChatCompletions
from guard.core.usage.openai_responses import Responses
from guard.core.wire import UNITS_MAX

OPENAI: Final = ("openai", "azure")
"""Vendors whose fees are OpenAI's."""


class Paid(Struct, frozen=True):
    """What one request can be charged besides tokens.

    Attributes:
        fees: the most units of each line of ``guard.core.fees``; one where that is open.
        unnumbered: what it may be charged any number of times, and what would bound that; empty
            where all is bounded.
    """

    fees: dict[str, int] | None = None
    unnumbered: str = ""


NOTHING: Final = Paid()


_PATHS: Final = ("/images/", "/audio/", "/videos", ":predict")
_MARKS: Final = (
    b"search", b"Search", b"code_interpreter", b"container", b"sonar", b"image_generation",
    b"oogleMaps", b"google_maps",
)  # fmt: skip


def may_be_paid(path: str, body: bytes) -> bool:
    """Return cheaply whether a request may be charged besides tokens."""
    return any(mark in path for mark in _PATHS) or any(mark in body for mark in _MARKS)


def paid(kind: type, provider: str, path: str, model: str | None, said: Message) -> Paid:
    """Return what a request can be charged besides tokens.

    Args:
        kind: the kind of its format.
        provider: whose format it is.
        path: the path of the URL.
        model: that it asks for.
        said: its body.
    """
    if kind is ChatCompletions and provider in OPENAI:
        return _chat(model, said)
    if kind is ChatCompletions and provider == "perplexity":
        return _perplexity(model, said)
    if kind is Responses and provider in OPENAI:
        return _responses(path, model, said)
    if kind is AnthropicMessages:
        return _messages(said)
    if kind is Gemini or kind is Interactions:
        return _gemini(model, said)
    return NOTHING


def _chat(model: str | None, said: Message) -> Paid:
    """Read chat completions: some models search the web once for each answer."""
    if not searches(model):
        return NOTHING
    answers = said.get("n")
    number = answers if type(answers) is int and 1 < answers <= UNITS_MAX else 1
    return Paid({fees.openai_search(model, model or ""): number})


def searches(model: str | None) -> bool:
    """Return whether a model of chat completions searches the web for each answer.

    >>> searches("gpt-4o-mini-search-preview-2025-03-11"), searches("gpt-5-search-api")
    (True, True)
    >>> searches("gpt-4o")
    False
    """
    return model is not None and "-search-" in model


def _perplexity(model: str | None, said: Message) -> Paid:
    """Read a request to Sonar, which is charged by the request as well."""
    if model is None:
        return NOTHING
    if "deep-research" in model:
        return Paid({fees.PERPLEXITY_SEARCH: 1}, "searches whose number no field limits")
    options = mapping(said.get("web_search_options"))
    kind = options.get("search_type")
    line = fees.perplexity_request(model, options.get("search_context_size"), kind)
    return NOTHING if line is None else Paid({line: 1})


def _responses(path: str, model: str | None, said: Message) -> Paid:
    tools = said.get("tools")
    if not is_present(tools):
        return NOTHING
    found: dict[str, int] = {}
    calls: list[str] = []
    images: list[Message] = []
    for tool in _objects(tools):
        kind = str(tool.get("type"))
        if kind.startswith("web_search"):
            calls.append(fees.openai_search(model, kind))
        elif kind == "file_search":
            calls.append(fees.OPENAI_FILE_SEARCH)
        elif kind == "image_generation":
            images.append(tool)
        elif (container := fees.openai_container_of(tool)) is not None:
            found[container] = found.get(container, 0) + 1
    if not calls and not images:
        return Paid(found) if found else NOTHING
    most = said.get("max_tool_calls")
    number = most if type(most) is int and most >= 0 else None  # of all tools together
    fewest = 1 if number is None else number
    if calls:
        found[max(calls, key=lambda line: fees.FEES[line].nanousd)] = min(fewest, UNITS_MAX)
    if images:
        found.update(_drawn(images, said, fewest))
    if number is not None:
        return Paid(found)
    return Paid(found, "searches or images without a number: set max_tool_calls")


_PROMPT_TOKENS: Final = 32_000
"""A prompt of an image has no more: so many characters are taken
(https://platform.openai.com/docs/api-reference/images, 2026-11)."""

_IMAGES_MAX: Final = 16
"""How many images one edit takes (the same page)."""


def _drawn(tools: list[Message], said: Message, number: int) -> dict[str, int]:
    """Return the most tokens of the images that a response makes with its tool.

    Args:
        tools: the tools that make images.
        said: the request's body.
        number: how many images.
    """
    asked = msgspec.json.encode(said.get("input"))
    linked = any(said.get(each) for each in ("previous_response_id", "conversation", "prompt"))
    shown = _IMAGES_MAX if linked or b'"item_reference"' in asked else asked.count(b"image")
    found: dict[str, int] = {}
    for tool in tools:
        line = fees.image_tool(tool.get("model"))
        model = tool.get("model")
        each = image_tokens(model if type(model) is str else None, {**tool, "n": 1})
        edits = tool.get("action") != "generate"
        # What was made before can be edited in the same response.
        seen = min(_IMAGES_MAX, shown + number - 1) if edits else 0
        for name, tokens in (
            (f"{line} output", each),
            (f"{line} image", EDITED_IMAGE_TOKENS * seen),
            (f"{line} text", _PROMPT_TOKENS),
        ):
            if tokens:
                found[name] = min(max(found.get(name, 0), tokens * number), UNITS_MAX)
    return found


def _messages(said: Message) -> Paid:
    number, unnumbered = 0, ""
    for tool in _objects(said.get("tools")):
        if not str(tool.get("type")).startswith("web_search"):
            continue
        most = tool.get("max_uses")
        if type(most) is int and most >= 0:
            number += most
        else:
            number, unnumbered = number + 1, "web searches without a number: set max_uses"
    if not number:
        return NOTHING
    return Paid({fees.ANTHROPIC_SEARCH: min(number, UNITS_MAX)}, unnumbered)


_GOOGLE_SEARCHES: Final = frozenset({
    "googleSearch", "google_search", "googleSearchRetrieval", "google_search_retrieval",
})  # fmt: skip


_GOOGLE_MAPS: Final = frozenset({"googleMaps", "google_maps"})
_ENTERPRISE: Final = frozenset({"enterpriseWebSearch", "enterprise_web_search"})


def _gemini(model: str | None, said: Message) -> Paid:
    found: dict[str, int] = {}
    for tool in _objects(said.get("tools")):
        named = {*tool, tool["type"]} if type(tool.get("type")) is str else set(tool)
        if not _GOOGLE_MAPS.isdisjoint(named):
            found[fees.GOOGLE_MAPPED_PROMPT] = 1
        if not _ENTERPRISE.isdisjoint(named):
            found[fees.GOOGLE_ENTERPRISE_PROMPT] = 1
        if not _GOOGLE_SEARCHES.isdisjoint(named):
            found[fees.GOOGLE_SEARCHED_PROMPT] = 1
    if not found or fees.google_search(model) == fees.GOOGLE_SEARCHED_PROMPT:
        return Paid(found) if found else NOTHING
    # Newer models are charged for each query of any of these.
    return Paid(
        {fees.GOOGLE_SEARCH: 1}, "Google searches, each charged, whose number no field limits"
    )


def _objects(tools: Any) -> Iterator[Message]:
    return (mapping(tool) for tool in items(tools))
