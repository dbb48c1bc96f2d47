"""Every set of a vendor's own tools is held for at least what the vendor says that they add."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from guard.core.bounds import InputRatios, bound_of
from guard.core.request_bound import RequestBound
from guard.core.usage.vendors import find_endpoint

OPENAI, ANTHROPIC = "api.openai.com", "api.anthropic.com"
BEDROCK: Final = "bedrock-runtime.us-east-1.amazonaws.com"
GEMINI: Final = "/v1beta/models/gemini-3-pro:generateContent"
HELLO: Final = [{"role": "user", "content": "hello"}]

# https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview#pricing and
# https://platform.claude.com/docs/en/about-claude/pricing#tool-use-pricing, read in November 2026:
# the prompt for tools by model, then each tool; those of a toolset have that prompt in them.
PROMPTS: Final = {
    "claude-opus-4-7": 804, "claude-opus-4-8": 410, "claude-sonnet-5": 474,
    "claude-haiku-4-5": 588, "claude-3-opus-20240229": 530,
}  # fmt: skip
CLAUDES: Final = {
    "bash_20250124": 245, "text_editor_20250728": 700, "text_editor_20250124": 700,
    "computer_20250124": 735 + 499, "computer_20251124": 735 + 499,
    "computer_toolset_20260801": 4_590, "browser_toolset_20260801": 6_670 + 880,
    "memory_20250818": 0, "custom": 0,
}  # fmt: skip
OPENAIS: Final = ("function", "custom", "computer", "computer_use_preview", "local_shell",
                  "apply_patch", "namespace", "tool_search")  # fmt: skip
OPENAIS_RUN: Final = ("web_search", "web_search_preview", "file_search", "code_interpreter",
                      "image_generation", "mcp", "shell")  # fmt: skip
GEMINIS: Final = ("functionDeclarations", "computerUse", "google_search", "codeExecution",
                  "urlContext", "fileSearch", "googleMaps", "retrieval")  # fmt: skip


def bound(host: str, path: str, body: dict[str, Any]) -> RequestBound:
    endpoint = find_endpoint("POST", host, path)
    assert endpoint is not None
    return bound_of(endpoint.format, path, json.dumps(body).encode(), InputRatios(), ())


def subsets(names: Any) -> Iterator[tuple[Any, ...]]:
    names = list(names)
    for size in range(1, len(names) + 1):
        yield from itertools.combinations(names, size)


@pytest.mark.generator("sets of vendors' tools")
class TestEverySet:
    def test_of_anthropics_holds_the_documented_sum(self, count_cases: Any) -> None:
        for model, prompt in PROMPTS.items():
            base = {"model": model, "max_tokens": 9, "messages": HELLO}
            bare = bound(ANTHROPIC, "/v1/messages", base).input_tokens
            for kinds in subsets(CLAUDES):
                tools = [{"type": kind, "name": kind} for kind in kinds]
                found = bound(ANTHROPIC, "/v1/messages", {**base, "tools": tools})
                documented = prompt + sum(map(CLAUDES.__getitem__, kinds))
                assert bare is not None
                assert found.input_tokens is not None, kinds
                assert found.input_tokens - bare >= documented, (model, kinds)
                assert not found.unknown, kinds
                count_cases(1)

    def test_is_held_too_where_others_serve_claude(self, count_cases: Any) -> None:
        tool = {"toolSpec": {"name": "f", "inputSchema": {"json": {}}}}
        for kinds in subsets(("bash_20250124", "text_editor_20250728", "computer_20250124")):
            own = [{"type": kind, "name": kind} for kind in kinds]
            path = "/model/anthropic.claude-opus-4-7/converse"
            body = {"messages": [{"role": "user", "content": [{"text": "hello"}]}]}
            bare = bound(BEDROCK, path, body).input_tokens
            more = {"additionalModelRequestFields": {"tools": own}}
            found = bound(BEDROCK, path, {**body, "toolConfig": {"tools": [tool]}, **more})
            assert bare is not None
            assert found.input_tokens is not None
            assert found.input_tokens - bare >= 804 + sum(map(CLAUDES.__getitem__, kinds)), kinds
            count_cases(1)

    @pytest.mark.parametrize(
        ("host", "path"),
        [
            (ANTHROPIC, "/v1/chat/completions"),
            ("openrouter.ai", "/api/v1/chat/completions"),
            ("openrouter.ai", "/api/v1/responses"),
        ],
    )
    def test_of_the_callers_has_claudes_prompt_in_any_format(self, host: str, path: str) -> None:
        function = {"name": "f", "parameters": {}}
        tool = {"type": "function", **function} if "responses" in path else {
            "type": "function", "function": function}  # fmt: skip
        said = {"input": "hello"} if "responses" in path else {"messages": HELLO}
        limit = "max_output_tokens" if "responses" in path else "max_tokens"
        body = {"model": "anthropic/claude-opus-4.7", limit: 9, **said}
        bare, found = (bound(host, path, each) for each in (body, {**body, "tools": [tool]}))
        assert bare.input_tokens is not None
        assert found.input_tokens is not None
        assert found.input_tokens - bare.input_tokens >= 804

    def test_of_openais_is_held_or_costs_the_context(self, count_cases: Any) -> None:
        base = {"model": "gpt-5", "input": "hello", "max_output_tokens": 9}
        for kinds in subsets(OPENAIS):
            found = bound(OPENAI, "/v1/responses", {**base, "tools": [
                {"type": kind, "name": "f"} for kind in kinds]})  # fmt: skip
            assert found.input_tokens is not None, kinds
            assert not found.unknown
            count_cases(1)
        for kinds in subsets(OPENAIS_RUN):
            found = bound(OPENAI, "/v1/responses", {**base, "tools": [
                {"type": kind} for kind in kinds]})  # fmt: skip
            assert found.input_tokens is None, kinds
            count_cases(1)

    def test_of_geminis_is_held_or_costs_the_context(self, count_cases: Any) -> None:
        base = {"contents": [{"parts": [{"text": "hello"}]}]}
        bare = bound("generativelanguage.googleapis.com", GEMINI, base).input_tokens
        for kinds in subsets(GEMINIS):
            found = bound("generativelanguage.googleapis.com", GEMINI,
                          {**base, "tools": [{kind: {}} for kind in kinds]})  # fmt: skip
            at_caller = set(kinds) <= {"functionDeclarations", "computerUse"}
            assert (found.input_tokens is not None) == at_caller, kinds
            if found.input_tokens is not None and "computerUse" in kinds:
                assert bare is not None
                assert found.input_tokens - bare >= 4_590
            count_cases(1)


class TestSearchesOfFilesWithANumber:
    BODY: Final[dict[str, Any]] = {
        "model": "gpt-5", "input": "hello", "max_output_tokens": 100,
        "tools": [{"type": "file_search", "vector_store_ids": ["v"], "max_num_results": 3}],
    }  # fmt: skip

    def test_are_bounded_by_what_they_can_find(self) -> None:
        found = bound(OPENAI, "/v1/responses", {**self.BODY, "max_tool_calls": 2})
        assert found.unnumbered == ""
        assert found.input_tokens is not None
        # The model reads what the first call finds twice, what the second finds once.
        assert 3 * 3 * 4_096 < found.input_tokens < 100_000

    def test_grow_with_each_call(self) -> None:
        sizes = [bound(OPENAI, "/v1/responses", {**self.BODY, "max_tool_calls": calls}).input_tokens
                 for calls in range(6)]  # fmt: skip
        assert None not in sizes
        assert sizes == sorted(set(sizes), key=lambda each: each or 0)

    @pytest.mark.parametrize(
        "more",
        [
            {},
            {"max_tool_calls": "2"},
            {"max_tool_calls": 2, "max_output_tokens": None},
            {"max_tool_calls": 2, "tools": [*BODY["tools"], {"type": "mcp"}]},
        ],
    )
    def test_without_one_cost_the_context(self, more: dict[str, Any]) -> None:
        assert bound(OPENAI, "/v1/responses", {**self.BODY, **more}).input_tokens is None

    def test_a_number_of_results_that_is_none_is_the_largest(self) -> None:
        def held(**tool: Any) -> int:
            tools = [{**self.BODY["tools"][0], **tool}]
            body = {**self.BODY, "max_tool_calls": 1, "tools": tools}
            return bound(OPENAI, "/v1/responses", body).input_tokens or 0

        assert min(held(max_num_results=each) for each in (9_999, None, 0)) >= 50 * 8_192
        assert held(max_num_results=49) < 50 * 8_192
