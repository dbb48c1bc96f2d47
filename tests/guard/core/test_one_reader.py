"""One reader of a request's bound: what a request says does not depend on how it says nothing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from guard.core.bounds import InputRatios, bound_of
from guard.core.request_bound import RequestBound
from guard.core.usage import find_format

HELLO: Final = [{"role": "user", "content": "hello there"}]
TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {}}}
THINKS: Final = {"type": "enabled", "budget_tokens": 2000}
OFF: Final = {"type": "disabled"}
Body = dict[str, Any]
FORMATS: Final[dict[tuple[str, str], tuple[Body, dict[str, list[Any]]]]] = {
    ("api.openai.com", "/v1/chat/completions"): (
        {"model": "gpt-4.1", "messages": HELLO},
        {
            "max_tokens": [None, 0, 100], "max_completion_tokens": [None, 50],
            "stream": [True, False], "tools": [None, [], [TOOL]],
            "response_format": [None, {}, {"type": "json_object"}],
            "reasoning_effort": [None, "low", ""], "thinking": [None, OFF, THINKS],
            "service_tier": [None, "auto", "priority", ""], "n": [None, 1],
        },
    ),
    ("api.openai.com", "/v1/responses"): (
        {"model": "gpt-4.1", "input": "hello"},
        {
            "max_output_tokens": [None, 100], "stream": [None, True, False],
            "tools": [None, [], [TOOL]],
            "text": [None, {}, {"format": {}}, {"format": {"type": "text"}}, {"verbosity": "low"}],
            "reasoning": [None, {}, {"effort": "low"}, {"summary": "auto"}],
            "service_tier": [None, "auto", "flex"],
        },
    ),
    ("api.anthropic.com", "/v1/messages"): (
        {"model": "claude-opus-5", "messages": HELLO},
        {
            "max_tokens": [1, 4096], "stream": [True, False],
            "tools": [None, [], [{"name": "f", "input_schema": {}}]],
            "thinking": [None, OFF, THINKS], "output_config": [None, {}, {"format": {}}],
        },
    ),
    ("generativelanguage.googleapis.com", "/v1beta/models/gemini-2.0-flash:generateContent"): (
        {"contents": [{"parts": [{"text": "hi"}]}]},
        {
            "tools": [None, [], [{"functionDeclarations": []}]],
            "generationConfig": [
                None, {}, {"maxOutputTokens": 9}, {"responseMimeType": ""},
                {"responseMimeType": "text/plain"}, {"thinkingConfig": {}},
                {"thinkingConfig": {"thinkingBudget": -1}}, {"responseSchema": {}},
            ],
        },
    ),
    ("bedrock-runtime.us-east-1.amazonaws.com", "/model/anthropic.claude-3-haiku/converse"): (
        {"messages": [{"role": "user", "content": [{"text": "hi"}]}]},
        {
            "inferenceConfig": [None, {}, {"maxTokens": 9}],
            "toolConfig": [None, {}, {"tools": [{"toolSpec": {}}]}],
            "outputConfig": [None, {}, {"a": 1}],
        },
    ),
}  # fmt: skip
PIXEL: Final = "iVBORw0KGgo" + "A" * 100
IMAGES: Final[dict[str, tuple[str, Body]]] = {
    "/v1/chat/completions": (
        "messages", {"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}]},
    ),
    "/v1/responses": (
        "input", {"role": "user", "content": [
            {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}]},
    ),
    "/v1/messages": (
        "messages", {"role": "user", "content": [{"type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": PIXEL}}]},
    ),
    ":generateContent": (
        "contents", {"parts": [{"inlineData": {"mimeType": "image/png", "data": PIXEL}}]},
    ),
    "/converse": (
        "messages", {"role": "user", "content": [
            {"image": {"format": "png", "source": {"bytes": PIXEL}}}]},
    ),
}  # fmt: skip
RATIOS: Final = InputRatios()


def bodies() -> Iterator[tuple[Callable[[Body], RequestBound], str, Body]]:
    for (host, path), (base, options) in FORMATS.items():
        found = find_format(host, path)
        assert found is not None

        def bound(body: Body, found: Any = found, path: str = path) -> RequestBound:
            return bound_of(found, path, json.dumps(body).encode(), RATIOS)

        for values in itertools.product(*options.values()):
            said = dict(zip(options, values, strict=True))
            yield bound, path, base | {n: v for n, v in said.items() if v is not None}


def terms_apart_from_text(bound: RequestBound) -> tuple[Any, ...]:
    """All that a bound has but what depends on the length of the body, or on an image in it."""
    terms = bound.terms
    return (
        bound.model, bound.output_tokens, bound.streams, bound.least_output, bound.answers,
        bound.beside_output, bound.fees, bound.unnumbered, terms.tier, terms.cache_writes,
        terms.surcharge_permille,
    )  # fmt: skip


@pytest.mark.generator("requests that say nothing in other words")
def test_nothing_said_in_other_words_is_nothing(count_cases: Callable[[int], None]) -> None:
    """A limit depended on it: 256 tokens of a text, 4,096 of the same text beside an image."""
    count = 0
    for bound, path, body in bodies():
        found = bound(body)
        shown = terms_apart_from_text(found)
        assert shown[3] is not None, body
        without = {n: v for n, v in body.items() if v not in ({}, [], "", OFF)}
        assert terms_apart_from_text(bound(without)) == shown, body
        assert found.input_tokens is not None
        ends = next(end for end in IMAGES if path.endswith(end))
        name, message = IMAGES[ends]
        before = body[name] if isinstance(body[name], list) else [{"content": body[name]}]
        pictured = bound({**body, name: [*before, message]})
        assert terms_apart_from_text(pictured) == shown, body
        assert pictured.input_tokens is not None
        assert pictured.input_tokens > found.input_tokens
        count += 3
    count_cases(count)


def test_what_was_decided_where_two_readers_differed() -> None:
    def least(path: str, host: str = "api.openai.com", **members: Any) -> int | None:
        base = FORMATS[host, path][0]
        found = find_format(host, path)
        assert found is not None
        return bound_of(found, path, json.dumps(base | members).encode(), RATIOS).least_output

    chat, responses = "/v1/chat/completions", "/v1/responses"
    assert least(chat, thinking=OFF) == 256, "switched off, it is not thinking"
    assert least(chat, thinking={"type": "adaptive"}) == 4096
    assert least(chat, response_format={}) == least(responses, text={}) == 256
    assert least(responses, text={"verbosity": "low"}) == 256, "no JSON is asked for"
    assert least(responses, reasoning={}) == 256
    host, path = (
        "bedrock-runtime.us-east-1.amazonaws.com",
        "/model/anthropic.claude-3-haiku/converse",
    )
    assert least(path, host, toolConfig={}, outputConfig={}) == 256
