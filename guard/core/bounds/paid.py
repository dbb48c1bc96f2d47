"""What a request can be charged besides tokens: the units that it allows, and what it leaves open.

Only requests that hold something unusual come here; those of text alone have no fees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from guard.core import fees
from guard.core.bounds.asked import given
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
        fees: the most units of each line of ``guard.core.fees``; of what it leaves open, one.
        unnumbered: what it may be charged any number of times, and what would bound that; empty
            where all is bounded.
    """

    fees: dict[str, int] | None = None
    unnumbered: str = ""


NOTHING: Final = Paid()


_PATHS: Final = ("/images/", "/audio/", "/videos", ":predict")
_MARKS: Final = (b"search", b"Search", b"code_interpreter", b"container")


def may_be_paid(path: str, body: bytes) -> bool:
    """Tell cheaply whether a request may be charged besides tokens."""
    return any(mark in path for mark in _PATHS) or any(mark in body for mark in _MARKS)


def paid(kind: type, provider: str, path: str, model: str | None, said: Message) -> Paid:
    """Return what a request can be charged besides tokens.

    Args:
        kind: of its format.
        provider: whose format it is.
        path: of the URL.
        model: that it asks for.
        said: its body.
    """
    if kind is ChatCompletions and provider in OPENAI:
        return _chat(model, said)
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
    """Tell whether a model of chat completions searches the web for each answer.

    >>> searches("gpt-4o-mini-search-preview-2025-03-11"), searches("gpt-5-search-api")
    (True, True)
    >>> searches("gpt-4o")
    False
    """
    return model is not None and "-search-" in model


def _responses(path: str, model: str | None, said: Message) -> Paid:
    tools = said.get("tools")
    if not given(tools):
        return NOTHING
    found: dict[str, int] = {}
    calls: list[str] = []
    for tool in _objects(tools):
        kind = str(tool.get("type"))
        if kind.startswith("web_search"):
            calls.append(fees.openai_search(model, kind))
        elif kind == "file_search":
            calls.append(fees.OPENAI_FILE_SEARCH)
        elif (container := fees.openai_container_of(tool)) is not None:
            found[container] = found.get(container, 0) + 1
    if not calls:
        return Paid(found) if found else NOTHING
    dearest = max(calls, key=lambda line: fees.FEES[line].nanousd)
    most = said.get("max_tool_calls")
    if type(most) is int and most >= 0:  # of all tools together
        found[dearest] = min(most, UNITS_MAX)
        return Paid(found)
    found[dearest] = 1
    return Paid(found, "searches without a number: set max_tool_calls")


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


def _gemini(model: str | None, said: Message) -> Paid:
    if not any(
        tool.get("type") == "google_search" or not _GOOGLE_SEARCHES.isdisjoint(tool)
        for tool in _objects(said.get("tools"))
    ):
        return NOTHING
    line = fees.google_search(model)
    if line == fees.GOOGLE_SEARCHED_PROMPT:
        return Paid({line: 1})
    return Paid({line: 1}, "Google searches, each charged, whose number no field limits")


def _objects(tools: Any) -> Iterator[Message]:
    return (mapping(tool) for tool in items(tools))
