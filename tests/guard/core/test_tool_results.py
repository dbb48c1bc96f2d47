"""The results of tools in requests, in every vendor's format."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.usage.tool_results import new_tool_results

CHAT = [
    {"role": "user", "content": "Clean up."},
    {"role": "assistant", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "a", "arguments": "{}"}},
        {"id": "c2", "type": "function", "function": {"name": "b", "arguments": "{}"}},
    ]},
    {"role": "tool", "tool_call_id": "c1", "content": "gone"},
    {"role": "tool", "tool_call_id": "c2", "content": "gone"},
]  # fmt: skip
ANTHROPIC = [
    {"role": "user", "content": "Clean up."},
    {"role": "assistant", "content": [{"type": "text", "text": "I will."},
                                      {"type": "tool_use", "id": "t1", "name": "a", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "gone"}]},
]  # fmt: skip
RESPONSES = [
    {"role": "user", "content": "Clean up."},
    {"type": "function_call", "call_id": "r1", "id": "fc_1", "name": "a", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "r1", "output": "gone"},
]
GEMINI = [
    {"role": "user", "parts": [{"text": "Clean up."}]},
    {"role": "model", "parts": [{"functionCall": {"name": "a", "args": {}}}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "a", "response": {}}}]},
]
BEDROCK = [
    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "b1", "name": "a", "input": {}}}]},
    {"role": "user", "content": [{"toolResult": {"toolUseId": "b1", "content": []}}]},
]
OLLAMA = [
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "a"}}]},
    {"role": "tool", "tool_name": "a", "content": "gone"},
]
CASES: dict[str, tuple[str, list[Any], list[tuple[str, str | None]]]] = {
    "chat": ("messages", CHAT, [("a", "c1"), ("b", "c2")]),
    "anthropic": ("messages", ANTHROPIC, [("a", "t1")]),
    "responses": ("input", RESPONSES, [("a", "r1")]),
    "gemini": ("contents", GEMINI, [("a", None)]),
    "bedrock": ("messages", BEDROCK, [("a", "b1")]),
    "ollama": ("messages", OLLAMA, [("a", None)]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_format(case: str) -> None:
    field, turns, expected = CASES[case]
    assert new_tool_results(msgspec.json.encode({field: turns})) == expected


@pytest.mark.parametrize("case", CASES)
def test_what_was_sent_before_is_not_new(case: str) -> None:
    field, turns, _ = CASES[case]
    answered = [*turns, {"role": "model" if field == "contents" else "assistant", "content": "Ok."},
                {"role": "user", "content": "Thanks."}]  # fmt: skip
    assert new_tool_results(msgspec.json.encode({field: answered})) == []


ANY = st.recursive(
    st.none() | st.integers() | st.sampled_from(["tool", "assistant", "function_call_output", "a"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["messages", "input", "role", "content", "type", "tool_calls", "id",
                             "function", "name", "toolResult", "parts", "call_id"]),
            inner, max_size=4,
        )
    ),
    max_leaves=20,
)  # fmt: skip


@given(ANY)
def test_no_body_raises(value: Any) -> None:
    body = msgspec.json.encode(value)
    new_tool_results(body + b' "tool"')
    new_tool_results(msgspec.json.encode({"messages": [value, {"role": "tool", "content": value}]}))
