"""What makes a request ask for a last answer, in each vendor's format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from guard.core.bounds import InputRatios, as_last_answer, bound_of
from guard.core.bounds.last_answer import SENTENCE
from guard.core.request_bound import LAST_ANSWER_TOKENS
from guard.core.usage import find_endpoint

CHAT = "api.openai.com", "/v1/chat/completions"
RESPONSES = "api.openai.com", "/v1/responses"
ANTHROPIC = "api.anthropic.com", "/v1/messages"
GEMINI = "generativelanguage.googleapis.com", "/v1beta/models/gemini-2.5-pro:generateContent"
CONVERSE = "bedrock-runtime.us-east-1.amazonaws.com", "/model/amazon.nova-pro-v1:0/converse"
INVOKE = "bedrock-runtime.us-east-1.amazonaws.com", "/model/mistral.mistral-large/invoke"
COHERE = "api.cohere.com", "/v2/chat"
OLLAMA = "localhost:11434", "/api/chat"
USER = {"role": "user", "content": "Look."}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
TEXT = {"type": "text", "text": SENTENCE}
APPENDED = f"Be brief.\n\n{SENTENCE}"

CASES: list[tuple[tuple[str, str], dict[str, Any], dict[str, Any]]] = [
    (CHAT, {"messages": [USER]}, {"messages": [{"role": "system", "content": SENTENCE}, USER]}),
    (
        CHAT,
        {"messages": [SYSTEM, USER], "tools": TOOLS, "tool_choice": "required"},
        {"messages": [{**SYSTEM, "content": APPENDED}, USER], "tool_choice": "none"},
    ),
    (
        CHAT,
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "Be"}]}, USER]},
        {"messages": [
            {"role": "developer", "content": [{"type": "text", "text": "Be"}, TEXT]}, USER
        ]},
    ),
    (RESPONSES, {"input": "Look."}, {"instructions": SENTENCE}),
    (
        RESPONSES,
        {"input": [USER], "instructions": "Be brief.", "tools": [{"type": "function"}]},
        {"instructions": APPENDED, "tool_choice": "none"},
    ),
    (ANTHROPIC, {"messages": [USER], "max_tokens": 9}, {"system": SENTENCE}),
    (
        ANTHROPIC,
        {"messages": [USER], "max_tokens": 9, "system": "Be brief.", "tools": [{"name": "look"}]},
        {"system": APPENDED, "tool_choice": {"type": "none"}},
    ),
    (
        ANTHROPIC,
        {"messages": [USER], "max_tokens": 9, "system": [{"type": "text", "text": "Be"}]},
        {"system": [{"type": "text", "text": "Be"}, TEXT]},
    ),
    (GEMINI, {"contents": []}, {"systemInstruction": {"parts": [{"text": SENTENCE}]}}),
    (
        GEMINI,
        {
            "contents": [], "tools": [{"functionDeclarations": []}],
            "system_instruction": {"role": "system", "parts": [{"text": "Be brief."}]},
            "tool_config": {"function_calling_config": {"mode": "ANY"}},
        },
        {
            "system_instruction": {
                "role": "system", "parts": [{"text": "Be brief."}, {"text": SENTENCE}],
            },
            "tool_config": {"function_calling_config": {"mode": "NONE"}},
        },
    ),
    (CONVERSE, {"messages": []}, {"system": [{"text": SENTENCE}]}),
    (
        CONVERSE,
        {"messages": [], "system": [{"text": "Be"}], "toolConfig": {"tools": [{}]}},
        {"system": [{"text": "Be"}, {"text": SENTENCE}]},
    ),
    (
        COHERE,
        {"messages": [SYSTEM, USER], "tools": TOOLS},
        {"messages": [{**SYSTEM, "content": APPENDED}, USER], "tool_choice": "NONE"},
    ),
    (
        OLLAMA,
        {"messages": [USER], "tools": TOOLS},
        {"messages": [{"role": "system", "content": SENTENCE}, USER], "tools": []},
    ),
]  # fmt: skip


def _asking(target: tuple[str, str], body: bytes) -> bytes:
    endpoint = find_endpoint("POST", *target)
    assert endpoint is not None
    return as_last_answer(endpoint.format, body)


@pytest.mark.parametrize(("target", "given", "changes"), CASES)
def test_the_model_is_told_and_may_call_no_tool(
    target: tuple[str, str], given: dict[str, Any], changes: dict[str, Any]
) -> None:
    given = {"model": "m", "temperature": 0.5, **given}
    assert json.loads(_asking(target, json.dumps(given).encode())) == {**given, **changes}


@pytest.mark.parametrize(("target", "given", "changes"), CASES)
def test_what_is_added_is_within_what_is_held_for_it(
    target: tuple[str, str], given: dict[str, Any], changes: dict[str, Any]
) -> None:
    body = json.dumps({"model": "m", **given}).encode()
    endpoint = find_endpoint("POST", *target)
    assert endpoint is not None
    ratios = InputRatios()
    plain = bound_of(endpoint.format, target[1], body, ratios).input_tokens
    asking = bound_of(endpoint.format, target[1], _asking(target, body), ratios).input_tokens
    assert plain is not None
    assert asking is not None
    assert 0 < asking - plain <= LAST_ANSWER_TOKENS


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (CHAT, b""),
        (CHAT, b"[]"),
        (CHAT, b'{"messages": 7'),
        (("api.openai.com", "/v1/completions"), b'{"prompt": "Once"}'),
        (("api.openai.com", "/v1/embeddings"), b'{"input": "Once"}'),
        (INVOKE, b'{"messages": [{"role": "user", "content": "Look."}]}'),
    ],
)
def test_a_body_of_another_form_stays_as_it_is(target: tuple[str, str], body: bytes) -> None:
    assert _asking(target, body) == body


def test_the_rest_of_a_body_stays_as_it_was_written() -> None:
    body = b'{ "model":"m",  "seed": 1e3, "messages": [], "system":null , "x":[1.0, 2] }'
    said = json.dumps(SENTENCE).encode()
    assert _asking(ANTHROPIC, body) == body.replace(b"null", said)
