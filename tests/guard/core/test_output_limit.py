"""A limit put into a request, or its own lowered: in bytes, and never below what is of use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.bounds import InputRatios, bound_of, rejects_limit, with_output_limit
from guard.core.bounds.members import with_member
from guard.core.bounds.thinking import reasons
from guard.core.leases import fitting_output, worst_case
from guard.core.request_bound import RequestBound
from guard.core.usage.vendors import find_endpoint
from guard.core.wire import ModelRates

OPENAI, CHAT, RESPONSES = "api.openai.com", "/v1/chat/completions", "/v1/responses"
ANTHROPIC, MESSAGES = "api.anthropic.com", "/v1/messages"
GOOGLE = "generativelanguage.googleapis.com"
GEMINI_2, GEMINI_3 = (f"/v1beta/models/gemini-{v}:generateContent" for v in ("2.0-flash", "3-pro"))
BEDROCK = "bedrock-runtime.us-east-1.amazonaws.com"
CONVERSE = "/model/anthropic.claude-sonnet-4-5-v1:0/converse"
HELLO = [{"role": "user", "content": "Hello?"}]
PARTS = [{"role": "user", "parts": [{"text": "Hello?"}]}]
BLOCKS = [{"role": "user", "content": [{"text": "Hello?"}]}]
TOOL = {"type": "function", "function": {"name": "f"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}


def bound(host: str, path: str, body: Any) -> RequestBound:
    endpoint = find_endpoint("POST", host, path)
    assert endpoint is not None
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return bound_of(endpoint.format, path, data, InputRatios())


def limited(host: str, path: str, body: bytes, tokens: int, **options: Any) -> bytes | None:
    endpoint = find_endpoint("POST", host, path)
    assert endpoint is not None
    return with_output_limit(endpoint.format, path, body, tokens, **options)


class TestLeast:
    @pytest.mark.parametrize(
        ("host", "path", "body", "least"),
        [
            (OPENAI, CHAT, {"model": "gpt-4o", "messages": HELLO}, 256),
            (OPENAI, CHAT, {"model": "gpt-4o", "messages": HELLO, "tools": [TOOL]}, 4096),
            (OPENAI, CHAT, {"model": "gpt-4o", "messages": HELLO,
                            "response_format": {"type": "json_object"}}, 4096),
            (OPENAI, CHAT, {"model": "o3", "messages": HELLO}, 4096),
            (OPENAI, CHAT, {"model": "gpt-5", "messages": HELLO, "n": 2}, 4096),
            (OPENAI, CHAT, {"model": "x", "messages": HELLO, "reasoning_effort": "low"}, 4096),
            (OPENAI, CHAT, {"model": "gpt-4o", "messages": HELLO, "max_tokens": 32_000}, 1024),
            (OPENAI, CHAT, {"model": "gpt-4o", "messages": HELLO, "max_tokens": 100}, 100),
            (OPENAI, RESPONSES, {"model": "gpt-4.1", "input": "a"}, 256),
            (OPENAI, RESPONSES, {"model": "gpt-4.1", "input": "a", "tools": [TOOL]}, 4096),
            (OPENAI, RESPONSES, {"model": "gpt-4.1", "input": "a", "text": {
                "format": {"type": "json_object"}}}, 4096),
            (ANTHROPIC, MESSAGES, {"model": "claude-haiku-4-5", "messages": HELLO,
                                   "max_tokens": 32_000}, 1024),
            (ANTHROPIC, MESSAGES, {"model": "claude-haiku-4-5", "messages": HELLO,
                                   "max_tokens": 32_000, "thinking": {
                                       "type": "enabled", "budget_tokens": 16_000}}, 17_024),
            (GOOGLE, GEMINI_2, {"contents": PARTS}, 256),
            (GOOGLE, GEMINI_3, {"contents": PARTS}, 4096),
            (GOOGLE, GEMINI_2, {"contents": PARTS,
                                "tools": [{"functionDeclarations": []}]}, 4096),
            (GOOGLE, GEMINI_3, {"contents": PARTS, "generationConfig": {
                "thinkingConfig": {"thinkingBudget": 8192}}}, 9216),
            (BEDROCK, CONVERSE, {"messages": BLOCKS}, 256),
            (BEDROCK, CONVERSE, {"messages": BLOCKS, "inferenceConfig": {"maxTokens": 5000},
                                 "additionalModelRequestFields": {"thinking": {
                                     "type": "enabled", "budget_tokens": 2000}}}, 3024),
            ("api.cohere.com", "/v2/chat", {"model": "command-a", "messages": HELLO}, 256),
            ("ollama.com", "/api/chat", {"model": "llama3", "messages": HELLO}, 256),
        ],
    )  # fmt: skip
    def test_is_what_an_answer_needs(self, host: str, path: str, body: Any, least: int) -> None:
        assert bound(host, path, body).least_output == least
        with_image = {**body, "messages": [{"role": "user", "content": [IMAGE]}]}
        if "messages" in body and host == OPENAI:  # what the quick readers leave to the others
            assert bound(host, path, with_image).least_output == least

    @pytest.mark.parametrize(
        ("host", "path", "body"),
        [
            (BEDROCK, "/model/anthropic.claude-x/invoke", {"max_tokens": 8000}),
            (OPENAI, "/v1/embeddings", {"model": "m", "input": "a"}),
            (OPENAI, "/v1/images/generations", {"model": "gpt-image-1"}),
            (OPENAI, "/v1/audio/transcriptions", b"--form"),
            (OPENAI, CHAT, b""),  # generated while it is sent
            (ANTHROPIC, "/v1/messages/batches", {"requests": []}),
        ],
    )
    def test_is_none_where_no_number_can_be_put_in(self, host: str, path: str, body: Any) -> None:
        assert bound(host, path, body).least_output is None

    def test_answers_and_what_is_charged_beside_them_are_told(self) -> None:
        asked = {"model": "gpt-4o", "messages": HELLO, "n": 3, "max_tokens": 10}
        assert bound(OPENAI, CHAT, asked).answers == 3
        asked["prediction"] = {"type": "content", "content": "a" * 100}
        found = bound(OPENAI, CHAT, asked)
        assert found.output_tokens == 30 + found.beside_output
        assert found.beside_output > 100


@pytest.mark.parametrize(
    ("model", "does_reason"),
    [
        ("gpt-4o-mini", False), ("gpt-4.1", False), ("gpt-5-nano", True),
        ("openai/gpt-oss-120b", True), ("o1-pro", True), ("o4-mini", True),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", False),
        ("anthropic/claude-3.7-sonnet:thinking", True), ("claude-opus-5", False),
        ("gemini-2.0-flash", False), ("gemini-2.5-flash", True),
        ("deepseek-chat", False), ("deepseek-reasoner", True),
        ("deepseek-ai/DeepSeek-R1", True), ("mistral-large-latest", False),
        ("magistral-medium", True), ("Qwen/Qwen3-32B", True), ("grok-4", True),
        ("grok-3", False), ("grok-3-mini", True), ("command-a-03-2025", False),
        ("command-a-reasoning-08-2025", True), ("llama-3.3-70b-versatile", False),
        ("amazon.nova-lite-v1:0", False), ("my-deployment", False),
        (None, False),
    ],
)  # fmt: skip
def test_which_models_reason(model: str | None, does_reason: bool) -> None:
    assert reasons(model) == does_reason


class TestBytes:
    @pytest.mark.parametrize(
        ("host", "path", "body", "expected"),
        [
            (OPENAI, CHAT, b'{ "model":"gpt-4o" , "max_tokens" : 32000 ,"messages":[] }',
             b'{ "model":"gpt-4o" , "max_tokens" : 2048 ,"messages":[] }'),
            (OPENAI, CHAT, b'{"model":"gpt-4o","messages":[]}',
             b'{"max_completion_tokens":2048,"model":"gpt-4o","messages":[]}'),
            (OPENAI, CHAT, b'{"model":"gpt-4o","max_completion_tokens":null,"messages":[]}',
             b'{"model":"gpt-4o","max_completion_tokens":2048,"messages":[]}'),
            (OPENAI, CHAT, b'{"messages":[{"max_tokens":9}],"max_tokens":4e3,"model":"m"}',
             b'{"messages":[{"max_tokens":9}],"max_tokens":2048,"model":"m"}'),
            (OPENAI, CHAT, b'{"messages":[],"max_tokens":9000,"max_completion_tokens":8000}',
             b'{"messages":[],"max_tokens":2048,"max_completion_tokens":2048}'),
            (ANTHROPIC, MESSAGES, b'{"max_tokens":64000,"system":"\\"max_tokens\\":1"}',
             b'{"max_tokens":2048,"system":"\\"max_tokens\\":1"}'),
            (GOOGLE, GEMINI_3, b'{"generationConfig":{"topK":1},"contents":[]}',
             b'{"generationConfig":{"maxOutputTokens":2048,"topK":1},"contents":[]}'),
            (GOOGLE, GEMINI_3, b'{"generation_config":{"max_output_tokens":9999}}',
             b'{"generation_config":{"max_output_tokens":2048}}'),
            (BEDROCK, CONVERSE, b'{"inferenceConfig":{}}',
             b'{"inferenceConfig":{"maxTokens":2048}}'),
            ("ollama.com", "/api/chat", b'{"model":"m","options":{"num_predict":-1}}',
             b'{"model":"m","options":{"num_predict":2048}}'),
        ],
    )  # fmt: skip
    def test_one_field_changes(self, host: str, path: str, body: bytes, expected: bytes) -> None:
        changed = limited(host, path, body, 2048)
        assert changed == expected
        assert limited(host, path, changed, 2048) == changed, "a retry sends the same"

    def test_a_smaller_limit_stays(self) -> None:
        body = b'{"model":"m","max_tokens":100}'
        assert limited(OPENAI, CHAT, body, 2048) == body

    def test_the_other_name_is_put_in_once_the_vendor_has_refused_the_usual_one(self) -> None:
        body = b'{"model":"llama","messages":[]}'
        first = limited("api.groq.com", f"/openai{CHAT}", body, 512)
        assert first == b'{"max_tokens":512,"model":"llama","messages":[]}'
        second = limited("api.groq.com", f"/openai{CHAT}", body, 512, other_name=True)
        assert second == b'{"max_completion_tokens":512,"model":"llama","messages":[]}'
        assert rejects_limit(first, b"{'error': 'unknown parameter max_tokens'}")
        assert not rejects_limit(first, b"{'error': 'the prompt is too long'}")

    @given(
        st.dictionaries(
            st.text(max_size=3) | st.just("limit"),
            st.recursive(
                st.none() | st.integers() | st.text(max_size=9),
                lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x),
                max_leaves=6,
            ),
            max_size=4,
        ),
        st.sampled_from([("limit",), ("limit", "n"), ("a", "b", "c")]),
        st.sampled_from([None, 1]),
        st.booleans(),
    )
    def test_every_other_member_stays(
        self, value: Any, path: tuple[str, ...], indent: int | None, ascii_only: bool
    ) -> None:
        body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode(
            "utf-8", "surrogatepass"
        )
        try:
            body.decode()
        except UnicodeDecodeError:
            return
        changed = with_member(body, path, b"7")
        inner = value
        for name in path[:-1]:
            inner = inner.get(name) if isinstance(inner, dict) else inner
            inner = {} if inner is None else inner
        if not isinstance(inner, dict):
            assert changed is None
            return
        assert changed is not None
        expected = json.loads(body)
        inner = expected
        for name in path[:-1]:
            inner[name] = inner.get(name) or {} if inner.get(name) != {} else {}
            inner = inner[name]
        inner[path[-1]] = 7
        assert json.loads(changed) == expected


class TestFitting:
    @given(
        st.builds(
            RequestBound,
            st.just("openai"),
            st.just("m"),
            st.integers(0, 10**6),
            st.just(None),
            least_output=st.sampled_from([256, 1024, 4096, 17_024]),
            answers=st.integers(1, 5),
            beside_output=st.integers(0, 5000),
        ),
        st.none() | st.integers(256, 200_000),
        st.builds(
            ModelRates,
            *[st.just(1)] * 6,
            st.integers(0, 10**11),
            st.integers(0, 10**12),
            st.none() | st.integers(1, 10**6),
            st.none() | st.integers(1, 10**6),
        ),
        st.integers(0, 10**11),
    )
    def test_what_fits_costs_no_more_than_the_amount(
        self, asked: RequestBound, named: int | None, rates: ModelRates, amount: int
    ) -> None:
        if named is not None:
            asked = RequestBound(
                "openai", "m", asked.input_tokens, named * asked.answers + asked.beside_output,
                least_output=min(named, asked.least_output or 0),
                answers=asked.answers, beside_output=asked.beside_output,
            )  # fmt: skip
        each = fitting_output(rates, asked, amount)
        if each is None:
            return

        def cost(tokens: int) -> int:
            output = tokens * asked.answers + asked.beside_output
            worst = worst_case(rates, RequestBound("openai", "m", asked.input_tokens, output))
            assert worst is not None
            return worst[0]

        assert cost(each) <= amount
        assert asked.least_output is not None
        assert each >= min(asked.least_output, named or rates.largest_output_tokens or 10**9)
        assert named is None or each <= named

    def test_nothing_fits_where_no_limit_can_be_put_in(self) -> None:
        rates = ModelRates(1, 1, 1, 1, 1, 1, 1, 1, 4096, 8192)
        assert fitting_output(rates, RequestBound("aws", "m", 10), 10**9) is None
