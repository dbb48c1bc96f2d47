"""What a request can cost at most, read from the bodies that real clients send."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard.core.bounds import InputRatios, bound_of, with_output_limit
from guard.core.bounds.media import image_tokens
from guard.core.request_bound import RequestBound
from guard.core.usage.vendors import find_endpoint

OPENAI, CHAT = "api.openai.com", "/v1/chat/completions"
RESPONSES = "/v1/responses"
ANTHROPIC, MESSAGES = "api.anthropic.com", "/v1/messages"
GOOGLE = "generativelanguage.googleapis.com"
GENERATE = "/v1beta/models/gemini-3-pro:generateContent"
BEDROCK = "bedrock-runtime.us-east-1.amazonaws.com"
CONVERSE = "/model/anthropic.claude-sonnet-5-v1:0/converse"
COHERE, OLLAMA = "api.cohere.com", "ollama.com"

HELLO = [{"role": "user", "content": "Hello?"}]
GEMINI_HELLO = [{"role": "user", "parts": [{"text": "Hello?"}]}]
CONVERSE_HELLO = [{"role": "user", "content": [{"text": "Hello?"}]}]
PNG = base64.b64encode(b"\x89PNG" * 30_000).decode()
PDF = base64.b64encode(b"%PDF" * 5_000).decode()


def bound(host: str, path: str, body: Any, ratios: InputRatios | None = None) -> RequestBound:
    endpoint = find_endpoint("POST", host, path)
    assert endpoint is not None
    assert endpoint.asks
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return bound_of(endpoint.format, path, data, ratios or InputRatios())


class TestOutput:
    @pytest.mark.parametrize(
        ("host", "path", "body", "model", "tokens"),
        [
            (OPENAI, CHAT, {"model": "gpt-5", "max_completion_tokens": 100}, "gpt-5", 100),
            (OPENAI, CHAT, {"model": "gpt-4o", "max_tokens": 7, "n": 3}, "gpt-4o", 21),
            (OPENAI, CHAT, {"model": "m", "messages": HELLO, "max_completion_tokens": 7,
                            "max_tokens": 9}, "m", 9),
            (OPENAI, CHAT, {"model": "gpt-5", "max_tokens": None}, "gpt-5", None),
            (OPENAI, CHAT, {"model": "gpt-5", "max_tokens": -1}, "gpt-5", None),
            (OPENAI, CHAT, {"model": "gpt-5", "max_tokens": "9"}, "gpt-5", None),
            ("api.mistral.ai", CHAT, {"model": "mistral-large", "max_tokens": 5}, "mistral-large",
             5),
            ("x.openai.azure.com", "/openai/deployments/mine/chat/completions",
             {"max_tokens": 5}, "mine", 5),
            (OPENAI, "/v1/completions", {"model": "davinci", "prompt": "a"}, None, None),
            (OPENAI, "/v1/completions",
             {"model": "m", "prompt": "a", "max_tokens": 10, "n": 2, "best_of": 4}, "m", 40),
            (OPENAI, "/v1/completions",
             {"model": "m", "prompt": ["a", "b", "c"], "max_tokens": 10}, "m", 30),
            (OPENAI, "/v1/completions",
             {"model": "m", "prompt": [1, 2, 3, 4], "max_tokens": 10}, "m", 10),
            (OPENAI, RESPONSES, {"model": "gpt-5", "max_output_tokens": 30}, "gpt-5", 30),
            (OPENAI, "/v1/embeddings", {"model": "te", "input": "a"}, "te", 0),
            (OPENAI, "/v1/images/generations", {"model": "gpt-image-1", "n": 2, "quality": "low"},
             "gpt-image-1", 820),
            (OPENAI, "/v1/threads/t/runs", {"assistant_id": "a", "max_completion_tokens": 9}, None,
             9),
            (ANTHROPIC, MESSAGES, {"model": "claude-x", "max_tokens": 64}, "claude-x", 64),
            ("europe-west1-aiplatform.googleapis.com",
             "/v1/projects/p/locations/l/publishers/anthropic/models/claude-x:streamRawPredict",
             {"max_tokens": 64}, "claude-x", 64),
            (GOOGLE, GENERATE, {"generationConfig": {"maxOutputTokens": 5, "candidateCount": 2}},
             "gemini-3-pro", 10),
            (GOOGLE, GENERATE, {"generation_config": {"max_output_tokens": 5}}, "gemini-3-pro", 5),
            (GOOGLE, GENERATE, {"contents": GEMINI_HELLO}, "gemini-3-pro", None),
            (GOOGLE, "/v1beta/models/ge:embedContent", {"content": GEMINI_HELLO[0]}, "ge", 0),
            (GOOGLE, "/v1beta/interactions",
             {"model": "gemini-x", "generation_config": {"max_output_tokens": 3}}, "gemini-x", 3),
            (BEDROCK, CONVERSE, {"inferenceConfig": {"maxTokens": 77}},
             "anthropic.claude-sonnet-5-v1:0", 77),
            (BEDROCK, "/model/anthropic.claude-x/invoke", {"max_tokens": 8}, "anthropic.claude-x",
             8),
            (BEDROCK, "/model/amazon.nova-x/invoke", {"inferenceConfig": {"max_new_tokens": 8}},
             "amazon.nova-x", 8),
            (BEDROCK, "/model/amazon.titan-x/invoke",
             {"textGenerationConfig": {"maxTokenCount": 8}}, "amazon.titan-x", 8),
            (BEDROCK, "/model/meta.llama3/invoke", {"max_gen_len": 8}, "meta.llama3", 8),
            (BEDROCK, "/model/ai21.jamba/invoke", {"max_tokens": 8, "n": 2}, "ai21.jamba", 16),
            (BEDROCK, "/model/cohere.command/invoke", {"max_tokens": 8, "num_generations": 2},
             "cohere.command", 16),
            (BEDROCK, "/model/amazon.titan-embed-text-v2/invoke", {"inputText": "a"},
             "amazon.titan-embed-text-v2", 0),
            (COHERE, "/v2/chat", {"model": "command-a", "max_tokens": 4}, "command-a", 4),
            (COHERE, "/v2/embed", {"model": "embed-v4"}, "embed-v4", 0),
            (COHERE, "/v2/rerank", {"model": "rerank-v4"}, "rerank-v4", 0),
            (OLLAMA, "/api/chat", {"model": "llama", "options": {"num_predict": 4}}, "llama", 4),
            (OLLAMA, "/api/chat", {"model": "llama", "options": {"num_predict": -1}}, "llama",
             None),
            (OLLAMA, "/api/embed", {"model": "llama"}, "llama", 0),
        ],
    )  # fmt: skip
    def test_is_read_in_each_vendors_words(
        self, host: str, path: str, body: Any, model: str | None, tokens: int | None
    ) -> None:
        found = bound(host, path, body)
        assert found.output_tokens == tokens
        if model is not None:
            assert found.model == model

    @pytest.mark.parametrize(
        ("host", "path", "body", "streams"),
        [
            (OPENAI, CHAT, {"stream": True}, True),
            (OPENAI, CHAT, {"stream": False}, False),
            (GOOGLE, GENERATE.replace("generate", "streamGenerate"), {}, True),
            (BEDROCK, f"{CONVERSE}-stream", {}, True),
            (BEDROCK, "/model/m/invoke-with-response-stream", {}, True),
            (OLLAMA, "/api/chat", {}, True),
        ],
    )
    def test_tells_whether_it_streams(self, host: str, path: str, body: Any, streams: bool) -> None:
        assert bound(host, path, body).streams is streams


class TestInput:
    def test_is_bounded_by_its_bytes_where_it_is_short(self) -> None:
        asked = {"model": "m", "messages": [{"content": "Hi"}]}
        found = bound(OPENAI, CHAT, asked)
        assert found.text_tokens == len(json.dumps(asked))
        assert found.input_tokens == found.text_tokens + 32

    def test_is_bounded_by_the_kinds_of_its_bytes(self) -> None:
        def tokens(text: str) -> int:
            asked = {"model": "gpt-5", "messages": [{"role": "user", "content": text}]}
            return bound(OPENAI, CHAT, asked).input_tokens or 0

        words = tokens("To be, or not to be, that is the question. " * 100)
        assert 1000 < words < 4300 / 2
        assert tokens("9f86d081" * 540) > 1.5 * words
        assert tokens("த" * 1433) > 2 * 1433, "as many tokens as it has alone"
        assert tokens("a\u00e9" * 2000) < 2.5 * 2000, "an escape is read as its character"

    def test_tools_and_schemas_count(self) -> None:
        tool = {"type": "function", "function": {"name": "f", "description": "long " * 500}}
        small = bound(OPENAI, CHAT, {"model": "m", "messages": HELLO})
        large = bound(OPENAI, CHAT, {"model": "m", "messages": HELLO, "tools": [tool]})
        assert (large.input_tokens or 0) > (small.input_tokens or 0) + 2500 / 5

    def test_anthropics_tools_bring_a_prompt_of_their_own(self) -> None:
        tool = {"name": "f", "input_schema": {"type": "object"}}
        asked = {"model": "claude-x", "max_tokens": 1, "messages": HELLO, "tools": [tool]}
        assert (bound(ANTHROPIC, MESSAGES, asked).input_tokens or 0) > 1000

    @pytest.mark.parametrize(
        ("host", "path", "body"),
        [
            (OPENAI, RESPONSES, {"input": "a", "previous_response_id": "resp_1"}),
            (OPENAI, RESPONSES, {"input": "a", "conversation": "conv_1"}),
            (OPENAI, RESPONSES, {"prompt": {"id": "pmpt_1"}}),
            (OPENAI, RESPONSES, {"input": [{"type": "item_reference", "id": "i"}]}),
            (OPENAI, RESPONSES, {"input": "a", "tools": [{"type": "web_search"}]}),
            (OPENAI, RESPONSES, {"input": [{"role": "user", "content": [
                {"type": "input_file", "file_id": "file-1"}]}]}),
            (OPENAI, CHAT, {"messages": HELLO, "web_search_options": {"x": 1}}),
            (OPENAI, CHAT, {"messages": [{"role": "user", "content": [
                {"type": "file", "file": {"file_id": "file-1"}}]}]}),
            (OPENAI, CHAT, {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}),
            ("api.mistral.ai", CHAT, {"messages": [{"role": "user", "content": [
                {"type": "document_url", "document_url": "https://x/y.pdf"}]}]}),
            (OPENAI, "/v1/threads/t/runs", {"assistant_id": "a"}),
            (OPENAI, "/v1/audio/transcriptions", {"model": "gpt-4o-transcribe"}),
            (ANTHROPIC, MESSAGES, {"messages": HELLO, "mcp_servers": [{"type": "url"}]}),
            (ANTHROPIC, MESSAGES, {"messages": HELLO, "tools": [
                {"type": "web_search_20250305", "name": "web_search"}]}),
            (ANTHROPIC, MESSAGES, {"messages": [{"role": "user", "content": [
                {"type": "document", "source": {"type": "file", "file_id": "f"}}]}]}),
            (ANTHROPIC, MESSAGES, {"messages": [{"role": "user", "content": [
                {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}]}]}),
            (GOOGLE, GENERATE, {"contents": GEMINI_HELLO, "cachedContent": "cachedContents/1"}),
            (GOOGLE, GENERATE, {"contents": GEMINI_HELLO, "tools": [{"urlContext": {}}]}),
            (GOOGLE, GENERATE, {"contents": [{"parts": [
                {"fileData": {"mimeType": "video/mp4", "fileUri": "https://y"}}]}]}),
            (GOOGLE, GENERATE, {"contents": [{"parts": [
                {"inlineData": {"mimeType": "video/mp4", "data": PNG}}]}]}),
            (GOOGLE, "/v1beta/interactions", {"input": "a", "previous_interaction_id": "i"}),
            (BEDROCK, CONVERSE, {"messages": [{"role": "user", "content": [{"document": {
                "format": "pdf", "name": "n", "source": {"s3Location": {"uri": "s3://x"}}}}]}]}),
            (BEDROCK, "/model/arn:aws:bedrock:us-east-1:1:prompt/AB/converse",
             {"messages": CONVERSE_HELLO}),
            (COHERE, "/v1/chat", {"message": "a", "conversation_id": "c"}),
            (COHERE, "/v1/chat", {"message": "a", "connectors": [{"id": "web-search"}]}),
        ],
    )  # fmt: skip
    def test_has_no_bound_where_the_body_does_not_hold_all_of_it(
        self, host: str, path: str, body: Any
    ) -> None:
        assert bound(host, path, {"model": "m", **body}).input_tokens is None

    @pytest.mark.parametrize(
        ("host", "path", "body", "images"),
        [
            (OPENAI, CHAT, {"model": "gpt-5.5", "messages": [{"role": "user", "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}]}, 2),
            (OPENAI, RESPONSES, {"model": "gpt-5.5", "input": [{"role": "user", "content": [
                {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}]}]}, 1),
            (OPENAI, RESPONSES, {"model": "gpt-5.5", "input": [
                {"type": "computer_call_output", "call_id": "c", "output": {
                    "type": "computer_screenshot",
                    "image_url": f"data:image/png;base64,{PNG}"}}]}, 1),
            (ANTHROPIC, MESSAGES, {"model": "claude-opus-5", "max_tokens": 1, "messages": [
                {"role": "user", "content": [{"type": "image", "source": {
                    "type": "base64", "media_type": "image/png", "data": PNG}}]}]}, 1),
            (ANTHROPIC, MESSAGES, {"model": "claude-opus-5", "max_tokens": 1, "messages": [
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
                    "content": [{"type": "image", "source": {
                        "type": "base64", "media_type": "image/png", "data": PNG}}]}]}]}, 1),
            (GOOGLE, GENERATE, {"contents": [{"parts": [
                {"inlineData": {"mimeType": "image/png", "data": PNG}},
                {"inline_data": {"mime_type": "image/png", "data": PNG}}]}]}, 2),
            (BEDROCK, CONVERSE, {"messages": [{"role": "user", "content": [
                {"image": {"format": "png", "source": {"bytes": PNG}}}]}]}, 1),
            (OLLAMA, "/api/chat", {"model": "llava", "messages": [
                {"role": "user", "content": "a", "images": [PNG, PNG]}]}, 2),
            (COHERE, "/v2/chat", {"model": "command-a-vision", "messages": [
                {"role": "user", "content": [
                    {"type": "image_url",
                     "image_url": {"url": f"data:image/png;base64,{PNG}"}}]}]}, 1),
        ],
    )  # fmt: skip
    def test_an_image_counts_by_the_vendors_rules_and_not_by_its_bytes(
        self, host: str, path: str, body: Any, images: int
    ) -> None:
        found = bound(host, path, body)
        assert found.input_tokens is not None
        assert found.text_tokens == 0, "an image teaches nothing about text"
        flat = images * image_tokens(found.model)
        assert flat < found.input_tokens < flat + 500

    def test_a_files_tokens_follow_its_size(self) -> None:
        def tokens(document: str) -> int:
            source = {"type": "base64", "media_type": "application/pdf", "data": document}
            part = {"type": "document", "source": source}
            asked = {"model": "claude-x", "messages": [{"role": "user", "content": [part]}]}
            return bound(ANTHROPIC, MESSAGES, asked).input_tokens or 0

        assert 10 * 4600 <= tokens(PDF) < tokens(PDF * 2)

    def test_a_file_of_bedrock_has_its_format_one_level_above(self) -> None:
        document = {"format": "pdf", "name": "n", "source": {"bytes": PDF}}
        asked = {"messages": [{"role": "user", "content": [{"document": document}]}]}
        assert (bound(BEDROCK, CONVERSE, asked).input_tokens or 0) >= 10 * 4600

    def test_audio_counts_by_its_length(self) -> None:
        part = {"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}
        asked = {"model": "gpt-audio", "messages": [{"role": "user", "content": [part]}]}
        found = bound(OPENAI, CHAT, asked)
        assert 120_000 / 25 <= (found.input_tokens or 0) < 120_000 / 25 + 400

    @pytest.mark.parametrize(
        "text", [f"data:image/png;base64,{PNG}", json.dumps({"image_url": {"url": PNG}})]
    )
    def test_text_that_looks_like_an_image_is_text(self, text: str) -> None:
        """Otherwise a prompt could make itself cheap."""
        image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
        parts = [{"type": "text", "text": text}, image]
        asked = {"model": "gpt-5", "messages": [{"role": "user", "content": parts}]}
        assert (bound(OPENAI, CHAT, asked).input_tokens or 0) > len(text) / 3

    def test_arguments_that_look_like_an_image_are_text(self) -> None:
        call = {"type": "tool_use", "id": "t", "name": "f",
                "input": {"url": f"data:image/png;base64,{PNG}"}}  # fmt: skip
        image = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
        asked = {"model": "claude-x", "max_tokens": 1, "messages": [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [image]}]}  # fmt: skip
        assert (bound(ANTHROPIC, MESSAGES, asked).input_tokens or 0) > len(PNG) / 3


class TestWhatCannotBeRead:
    @pytest.mark.parametrize(
        "body",
        [b"", b"{", b"[]", b'{"model": ', b"null", b"\xff\xfe", b'{"messages": 3, "model": [1]}',
         b'{"a":' * 5000, b"{" * 100_000],
    )  # fmt: skip
    @pytest.mark.parametrize(
        ("host", "path"),
        [(OPENAI, CHAT), (OPENAI, RESPONSES), (ANTHROPIC, MESSAGES), (GOOGLE, GENERATE),
         (BEDROCK, CONVERSE), (BEDROCK, "/model/m/invoke"), (COHERE, "/v2/chat"),
         (OLLAMA, "/api/chat"), (OPENAI, "/v1/audio/speech")],
    )  # fmt: skip
    def test_is_unbounded_and_no_error(self, host: str, path: str, body: bytes) -> None:
        assert bound(host, path, body).output_tokens is None

    def test_a_forms_model_is_known(self) -> None:
        form = (
            b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ngpt-4o-transcribe\r\n--x--'
        )
        found = bound(OPENAI, "/v1/audio/transcriptions", form)
        assert (found.model, found.input_tokens) == ("gpt-4o-transcribe", None)

    def test_a_huge_body_is_not_read(self) -> None:
        body = b'{"model":"m","messages":[{"role":"user","content":"' + b"a" * (33 << 20) + b'"}]}'
        assert bound(OPENAI, CHAT, body).input_tokens is None

    @given(st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
            st.sampled_from(["messages", "content", "type", "image_url", "url", "source", "data",
                             "tools", "generationConfig", "maxOutputTokens", "max_tokens", "n",
                             "parts", "inlineData", "input", "contents", "model", "prompt"]),
            inner, max_size=4),
        max_leaves=20,
    ).filter(lambda value: isinstance(value, dict)))  # fmt: skip
    def test_nothing_raises(self, body: Any) -> None:
        for host, path in ((OPENAI, CHAT), (OPENAI, RESPONSES), (ANTHROPIC, MESSAGES),
                           (GOOGLE, GENERATE), (BEDROCK, CONVERSE), (OLLAMA, "/api/chat"),
                           (OPENAI, "/v1/completions")):  # fmt: skip
            found = bound(host, path, body)
            assert found.output_tokens is None or found.output_tokens >= 0
            assert found.input_tokens is None or found.input_tokens > 0


class TestRatios:
    def test_a_model_with_shorter_tokens_is_bounded_higher(self) -> None:
        ratios = InputRatios()
        before = bound(OPENAI, CHAT, {"model": "m", "messages": HELLO}, ratios).input_tokens
        ratios.learn("m", 4_000, 6_000)
        assert ratios.tokens("m", 4_000) >= 6_000
        after = bound(OPENAI, CHAT, {"model": "m", "messages": HELLO}, ratios).input_tokens
        assert (after or 0) > (before or 0)
        assert ratios.tokens("other", 10_000) == InputRatios().tokens("other", 10_000)

    def test_what_is_added_to_a_short_prompt_does_not_make_long_ones_dear(self) -> None:
        ratios = InputRatios()
        ratios.learn("m", 100, 700)
        assert 700 <= ratios.tokens("m", 100) < 1000
        assert ratios.tokens("m", 300_000) < 301_500

    @given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)), max_size=20))
    def test_a_bound_never_falls(self, answers: list[tuple[int, int]]) -> None:
        ratios, before = InputRatios(), 0
        for text_tokens, tokens in answers:
            ratios.learn("m", text_tokens, tokens)
            now = ratios.tokens("m", 10_000)
            assert now >= before
            before = now

    def test_are_kept_for_a_bounded_number_of_models(self) -> None:
        ratios = InputRatios()
        for number in range(5000):
            ratios.learn(f"m{number}", 8_000, 9_000)
        assert len(ratios._known) <= 1024


class TestLimit:
    @pytest.mark.parametrize(
        ("host", "path", "body", "member"),
        [
            (OPENAI, CHAT, {"model": "gpt-5", "messages": HELLO}, ["max_completion_tokens"]),
            ("api.groq.com", f"/openai{CHAT}", {"model": "llama", "messages": HELLO},
             ["max_tokens"]),
            (OPENAI, "/v1/completions", {"model": "m", "prompt": "a"}, ["max_tokens"]),
            (OPENAI, RESPONSES, {"model": "gpt-5", "input": "a"}, ["max_output_tokens"]),
            (GOOGLE, GENERATE, {"contents": GEMINI_HELLO, "generationConfig": {"topK": 1}},
             ["generationConfig", "maxOutputTokens"]),
            (BEDROCK, CONVERSE, {"messages": CONVERSE_HELLO}, ["inferenceConfig", "maxTokens"]),
            (COHERE, "/v2/chat", {"model": "c", "messages": HELLO}, ["max_tokens"]),
            (OLLAMA, "/api/chat", {"model": "l", "messages": HELLO}, ["options", "num_predict"]),
            (OPENAI, "/v1/threads/t/runs", {"assistant_id": "a"}, ["max_completion_tokens"]),
        ],
    )  # fmt: skip
    def test_is_put_in_and_read_again(
        self, host: str, path: str, body: dict[str, Any], member: list[str]
    ) -> None:
        endpoint = find_endpoint("POST", host, path)
        assert endpoint is not None
        changed = with_output_limit(endpoint.format, path, json.dumps(body).encode(), 123)
        assert changed is not None
        value: Any = json.loads(changed)
        for name in member:
            value = value[name]
        assert value == 123
        assert bound(host, path, changed).output_tokens == 123
        for name, old in body.items():
            kept = json.loads(changed)[name]
            assert kept == old or old.items() <= kept.items()

    @pytest.mark.parametrize(
        ("host", "path", "body"),
        [
            (OPENAI, "/v1/embeddings", b'{"model":"m","input":"a"}'),
            (OPENAI, CHAT, b"--form"),
            (OPENAI, CHAT, b"{broken"),
            (OPENAI, "/v1/images/generations", b'{"model":"m"}'),
            (BEDROCK, "/model/m/invoke", b'{"prompt":"a"}'),
            (OLLAMA, "/api/embed", b'{"model":"m"}'),
        ],
    )
    def test_stays_out_where_none_is_taken(self, host: str, path: str, body: bytes) -> None:
        endpoint = find_endpoint("POST", host, path)
        assert endpoint is not None
        assert with_output_limit(endpoint.format, path, body, 5) is None
