"""Vendors that say their usage a little differently, compared with the published extractors."""

from __future__ import annotations

from typing import Any

import pytest
from genai_prices import data_snapshot

from guard.core.usage import Call, Usage, find_endpoint, read_body
from tests.guard.instrumentation.standin.reply import encoded

OPENAI = {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140}
ANTHROPIC = {
    "input_tokens": 10, "output_tokens": 50, "cache_read_input_tokens": 7,
    "cache_creation_input_tokens": 3, "output_tokens_details": {"thinking_tokens": 20},
}  # fmt: skip
GEMINI = {
    "promptTokenCount": 100, "candidatesTokenCount": 30, "thoughtsTokenCount": 12,
    "cachedContentTokenCount": 25, "toolUsePromptTokenCount": 4, "totalTokenCount": 146,
}  # fmt: skip
RESPONSE = {
    "input_tokens": 90, "output_tokens": 60, "total_tokens": 150,
    "input_tokens_details": {"cached_tokens": 30},
    "output_tokens_details": {"reasoning_tokens": 25},
}  # fmt: skip

ADVISED: dict[str, Any] = {
    "model": "claude-haiku-4-5",
    "usage": {
        "input_tokens": 400, "output_tokens": 900, "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0, "service_tier": "priority", "speed": "fast",
        "inference_geo": "us", "iterations": [
            {"type": "message", "input_tokens": 400, "output_tokens": 300},
            {"type": "advisor_message", "model": "claude-opus-4-6", "input_tokens": 100_000,
             "output_tokens": 1_600, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 9,
             "cache_creation": {"ephemeral_1h_input_tokens": 4}},
            {"type": "message", "input_tokens": 900, "output_tokens": 600,
             "cache_read_input_tokens": 50},
            {"type": "advisor_message", "model": "claude-opus-4-6", "input_tokens": 200_000,
             "output_tokens": 1_000},
            {"type": "compaction", "input_tokens": 5_000, "output_tokens": 70},
        ],
    },
}  # fmt: skip
"""An advisor was asked twice. The totals leave it out, and show the first prompt only."""


def read(url: str, message: Any, method: str = "POST", **headers: str) -> Usage | None:
    host, _, path = url.partition("/")
    endpoint = find_endpoint(method, host, f"/{path}")
    assert endpoint is not None
    request = encoded({"model": "asked"})
    said = {"content-type": "application/json", **headers}
    call = Call(f"/{path}", lambda: request, said.get)
    return read_body(endpoint.format, encoded(message), call)


def buckets(usage: Usage | None) -> tuple[int, ...]:
    assert usage is not None
    return (
        usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens,
        usage.reasoning_tokens, usage.audio_tokens,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("url", "message", "expected"),
    [
        ("api.deepseek.com/chat/completions",
         {"usage": {**OPENAI, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}},
         (36, 40, 64, 0, 0, 0)),
        ("api.x.ai/v1/chat/completions",
         {"usage": {**OPENAI, "total_tokens": 240,
                    "completion_tokens_details": {"reasoning_tokens": 100}}},
         (100, 40, 0, 0, 100, 0)),
        ("api.perplexity.ai/chat/completions",
         {"usage": {**OPENAI, "reasoning_tokens": 11, "citation_tokens": 5, "total_tokens": 156}},
         (100, 45, 0, 0, 11, 0)),
        ("api.openai.com/v1/chat/completions",
         {"usage": {**OPENAI, "completion_tokens_details": {"reasoning_tokens": 15,
                                                            "audio_tokens": 5}}},
         (100, 20, 0, 0, 15, 5)),
        ("x.openai.azure.com/openai/deployments/mine/chat/completions", {"usage": OPENAI},
         (100, 40, 0, 0, 0, 0)),
        ("localhost/v1/responses", {"usage": RESPONSE}, (60, 35, 30, 0, 25, 0)),
        ("api.anthropic.com/v1/messages", {"usage": ANTHROPIC}, (10, 30, 7, 3, 20, 0)),
        ("us-east5-aiplatform.googleapis.com/v1/publishers/anthropic/models/c:rawPredict",
         {"usage": ANTHROPIC}, (10, 30, 7, 3, 20, 0)),
        ("bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude/invoke",
         {"usage": ANTHROPIC}, (10, 30, 7, 3, 20, 0)),
        ("api.anthropic.com/v1/messages",
         {"usage": {**ANTHROPIC, "iterations": [
             {"type": "compaction", "input_tokens": 1000, "output_tokens": 100},
             {"type": "message", "input_tokens": 10, "output_tokens": 50}]}},
         (1010, 130, 7, 3, 20, 0)),
        ("generativelanguage.googleapis.com/v1beta/models/g:generateContent",
         {"usageMetadata": GEMINI}, (79, 30, 25, 0, 12, 0)),
        ("aiplatform.googleapis.com/v1/publishers/google/models/g:generateContent",
         {"usageMetadata": {**GEMINI, "promptTokensDetails": [
             {"modality": "TEXT", "tokenCount": 60}, {"modality": "AUDIO", "tokenCount": 40}]}},
         (39, 30, 25, 0, 12, 40)),
        ("generativelanguage.googleapis.com/v1beta/interactions",
         {"usage": {"total_input_tokens": 50, "total_cached_tokens": 20, "total_output_tokens": 9,
                    "total_thought_tokens": 4, "total_tool_use_tokens": 2}},
         (32, 9, 20, 0, 4, 0)),
        ("api.cohere.com/v2/chat",
         {"usage": {"billed_units": {"input_tokens": 8.0, "output_tokens": 3.0},
                    "tokens": {"input_tokens": 70.0, "output_tokens": 3.0}, "cached_tokens": 2}},
         (6, 3, 2, 0, 0, 0)),
        ("api.cohere.com/v1/chat",
         {"meta": {"tokens": {"input_tokens": 70, "output_tokens": 3}}}, (70, 3, 0, 0, 0, 0)),
        ("localhost/api/chat", {"done": True, "eval_count": 5}, (0, 5, 0, 0, 0, 0)),
        ("aiplatform.googleapis.com/v1/publishers/google/models/e:predict",
         {"predictions": [{"embeddings": {"statistics": {"token_count": 6}, "values": []}}] * 2},
         (12, 0, 0, 0, 0, 0)),
        ("api.openai.com/v1/something/new", {"usage": RESPONSE}, (60, 35, 30, 0, 25, 0)),
        ("api.mistral.ai/v1/something/new", {"usage": OPENAI}, (100, 40, 0, 0, 0, 0)),
    ],
)  # fmt: skip
def test_disjoint_buckets(url: str, message: Any, expected: tuple[int, ...]) -> None:
    assert buckets(read(url, message)) == expected


@pytest.mark.parametrize(
    ("path", "usage"),
    [
        ("openrouter.ai/api/v1/responses", {**RESPONSE, "cost": 0.00125}),
        ("openrouter.ai/api/v1/messages", {**ANTHROPIC, "cost": 0.00125}),
        ("openrouter.ai/api/v1/embeddings", {"prompt_tokens": 9, "cost": 0.00125}),
        ("openrouter.ai/api/v1/something/new", {**RESPONSE, "cost": 0.00125}),
        ("openrouter.ai/api/v1/images/generations", {"cost": 0.00125}),
        ("api.perplexity.ai/v1/responses", {**RESPONSE, "cost": {"total_cost": 0.00125}}),
        ("api.x.ai/v1/chat/completions", {**OPENAI, "cost_in_usd_ticks": 12_499_991}),
        ("api.x.ai/v1/responses", {**RESPONSE, "cost_in_usd_ticks": 12_500_000}),
        ("api.x.ai/v1/images/generations", {"cost_in_usd_ticks": 12_500_000}),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_price_that_the_vendor_says_in_any_format(
    path: str, usage: dict[str, Any], streamed: bool
) -> None:
    message: dict[str, Any] = {"model": "m", "usage": usage}
    if not streamed:
        found = read(path, message)
    else:
        if "/responses" in path:
            message = {"type": "response.completed", "response": message}
        if "/messages" in path:
            message = {"type": "message_delta", "usage": usage}
        endpoint = find_endpoint("POST", path.partition("/")[0], path[path.index("/") :])
        assert endpoint is not None
        call = Call(path[path.index("/") :], header={"content-type": "text/event-stream"}.get)
        found = read_body(endpoint.format, b"data: %b\n\n" % encoded(message), call)
    assert found is not None
    assert found.cost_nanousd == 1_250_000


def test_a_price_that_the_vendor_says_is_for_all_models_of_the_answer() -> None:
    message = {**ADVISED, "usage": {**ADVISED["usage"], "cost": 2.5}}
    found = read("openrouter.ai/api/v1/messages", message)
    assert found is not None
    assert (found.cost_nanousd, found.others) == (2_500_000_000, ())


def test_a_price_that_the_vendor_says() -> None:
    said = {"usage": {**OPENAI, "cost": 0.00125}}
    found = read("openrouter.ai/api/v1/chat/completions", said)
    assert found is not None
    assert found.cost_nanousd == 1_250_000
    elsewhere = read("api.openai.com/v1/chat/completions", said)
    assert elsewhere is not None
    assert elsewhere.cost_nanousd is None


@pytest.mark.parametrize("streamed", [False, True])
def test_the_advisor_of_an_answer_is_charged_as_the_model_that_it_is(streamed: bool) -> None:
    body = encoded(ADVISED)
    if streamed:
        opening = {"model": ADVISED["model"], "usage": {"input_tokens": 400, "output_tokens": 1}}
        events = (
            {"type": "message_start", "message": opening},
            {"type": "message_delta", "usage": ADVISED["usage"]},
            {"type": "message_stop"},
        )
        body = b"".join(b"data: %b\n\n" % encoded(event) for event in events)
    endpoint = find_endpoint("POST", "api.anthropic.com", "/v1/messages")
    assert endpoint is not None
    kind = "text/event-stream" if streamed else "application/json"
    call = Call("/v1/messages", header={"content-type": kind}.get)
    found = read_body(endpoint.format, body, call)
    assert buckets(found) == (1_300 + 5_000, 900 + 70, 50, 0, 0, 0)
    assert found is not None
    assert (found.service_tier, found.estimated) == ("fast", False)
    (advisor,) = found.others
    assert buckets(advisor) == (300_000, 2_600, 7, 9, 0, 0)
    assert (advisor.model, advisor.cache_write_1h_tokens) == ("claude-opus-4-6", 4)
    assert (advisor.service_tier, advisor.surcharge_permille) == ("priority", 1100)


def test_other_models_of_an_answer_are_those_that_its_iterations_name() -> None:
    def found(*steps: dict[str, Any], **totals: int) -> Usage:
        usage = {**ANTHROPIC, **totals, "iterations": [{**ANTHROPIC, **each} for each in steps]}
        message = {"model": "claude-sonnet-4-5-20250929", "usage": usage}
        read_one = read("api.anthropic.com/v1/messages", message)
        assert read_one is not None
        return read_one

    own = found({"type": "message", "model": "claude-sonnet-4-5"}, {"type": "message"})
    assert (own.input_tokens, own.others) == (20, ())
    declined = {"type": "message", "model": "claude-fable-5", "input_tokens": 30}
    served = {"type": "fallback_message", "model": "claude-sonnet-4-5-20250929"}
    fallen = found(declined, served)
    assert fallen.input_tokens == 10
    assert [(each.model, each.input_tokens) for each in fallen.others] == [("claude-fable-5", 30)]
    same = found({"type": "advisor_message", "model": "claude-sonnet-4-5-20250929"})
    assert (same.input_tokens, len(same.others)) == (10, 1), "no total has an advisor's tokens"
    assert found({"type": "of a later kind"}, input_tokens=90).input_tokens == 90
    assert found({"type": "advisor_message"}).others[0].input_tokens == 10


def test_zero_is_not_missing() -> None:
    zero = {"usage": {"input_tokens": 0, "output_tokens": 0}}
    assert buckets(read("api.anthropic.com/v1/messages", zero)) == (0, 0, 0, 0, 0, 0)
    assert read("api.anthropic.com/v1/messages", {"usage": None}) is None


def test_headers_of_invoke_model() -> None:
    path = "bedrock-runtime.eu-west-1.amazonaws.com/model/meta.llama/invoke"
    said = {"x-amzn-bedrock-input-token-count": "12", "x-amzn-bedrock-output-token-count": "3"}
    found = read(path, {"generation": "x"}, **said)
    assert buckets(found) == (12, 3, 0, 0, 0, 0)
    assert found is not None
    assert found.model == "meta.llama"


@pytest.mark.parametrize(
    ("path", "message"),
    [("/v1/responses/resp_1", {"object": "response", "status": "in_progress", "usage": None}),
     ("/v1/batches/batch_1", {"object": "batch", "status": "validating"})],
)  # fmt: skip
def test_polling_for_what_is_not_done(path: str, message: Any) -> None:
    found = read(f"api.openai.com{path}", {"id": "it", **message}, "GET")
    assert found is not None
    assert (found.later, found.response_id) == (True, "it")


@pytest.mark.parametrize("status", ["failed", "cancelled", "incomplete", "completed"])
def test_an_end_without_usage_is_no_promise_of_it(status: str) -> None:
    message = {"id": "it", "object": "response", "status": status, "usage": None}
    for path, method in (("/v1/responses/it", "GET"), ("/v1/responses", "POST")):
        found = read(f"api.openai.com{path}", message, method)
        assert found is not None
        assert (found.later, found.estimate, found.response_id) == (False, "bound", "it")


def test_a_finished_batch() -> None:
    message = {"id": "batch_1", "object": "batch", "status": "completed", "usage": RESPONSE,
               "model": "gpt-5"}  # fmt: skip
    found = read("api.openai.com/v1/batches/batch_1", message, "GET")
    assert buckets(found) == (60, 35, 30, 0, 25, 0)


@pytest.mark.parametrize(
    ("method", "host", "path"),
    [("GET", "api.openai.com", "/v1/models"), ("POST", "api.openai.com", "/v1/files"),
     ("POST", "api.openai.com", "/v1/responses/resp_1/cancel"),
     ("POST", "api.anthropic.com", "/v1/messages/count_tokens"),
     ("POST", "generativelanguage.googleapis.com", "/v1beta/models/g:countTokens"),
     ("POST", "bedrock-runtime.us-east-1.amazonaws.com", "/model/m/count-tokens"),
     ("POST", "api.openai.com", "/v1/traces/ingest"),
     ("POST", "api.openai.com", "/v1/vector_stores/vs_1/search"),
     ("POST", "x.cognitiveservices.azure.com", "/contentsafety/text:analyze"),
     ("POST", "us-central1-aiplatform.googleapis.com", "/v1/p/l/indexEndpoints/7:findNeighbors"),
     ("POST", "api.mistral.ai", "/v1/agents"),
     ("DELETE", "api.openai.com", "/v1/responses/resp_1"), ("POST", "example.com", "/v1/things"),
     ("GET", "example.com", "/"), ("POST", "bedrock-runtime.evil.com", "/x")],
)  # fmt: skip
def test_what_is_no_llm_call(method: str, host: str, path: str) -> None:
    """No kill stops it and no host is reported for it, whatever it answers."""
    found = find_endpoint(method, host, path)
    assert found is None or not (found.asks or found.certain)


RUN = {"id": "run_1", "object": "thread.run", "model": "gpt-4o"}


@pytest.mark.parametrize(
    ("url", "usage", "method", "expected"),
    [
        ("api.mistral.ai/v1/conversations", {"prompt_tokens": 7, "completion_tokens": 3}, "POST",
         (7, 3)),
        ("api.mistral.ai/v1/conversations/conv_1", {"prompt_tokens": 7, "completion_tokens": 3},
         "POST", (7, 3)),
        ("api.openai.com/v1/responses/compact", {"input_tokens": 9, "output_tokens": 4}, "POST",
         (9, 4)),
        ("api.openai.com/v1/threads/t/runs/run_1", {"prompt_tokens": 5, "completion_tokens": 2},
         "GET", (5, 2)),
        ("api.openai.com/v1/something/new", {"prompt_tokens": 5, "completion_tokens": 2}, "POST",
         (5, 2)),
        ("api.openai.com/v1/evals/e/items", {"input_tokens": 5, "output_tokens": 2}, "POST",
         (5, 2)),
    ],
)  # fmt: skip
def test_urls_that_no_file_of_its_own_reads(
    url: str, usage: dict[str, int], method: str, expected: tuple[int, int]
) -> None:
    found = read(url, {"id": "x", "usage": usage}, method)
    assert found is not None
    assert (found.input_tokens, found.output_tokens) == expected


def test_a_run_is_pending_until_it_has_ended() -> None:
    runs = "api.openai.com/v1/threads/t/runs"
    begun = read(runs, {**RUN, "status": "queued", "usage": None})
    assert begun is not None
    assert (begun.later, begun.response_id) == (True, RUN["id"])
    ended = {**RUN, "status": "completed", "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    assert buckets(read(f"{runs}/run_1", ended, "GET"))[:2] == (5, 2)


@pytest.mark.parametrize(
    ("host", "path"),
    [
        (
            "bedrock-agent-runtime.eu-west-1.amazonaws.com",
            "/agents/A/agentAliases/B/sessions/C/text",
        ),
        ("bedrock-agent-runtime.eu-west-1.amazonaws.com", "/retrieveAndGenerate"),
        ("api.openai.com", "/v1/audio/speech"),
    ],
)
def test_a_model_at_work_that_says_no_usage_is_reported(host: str, path: str) -> None:
    found = find_endpoint("POST", host, path)
    assert found is not None
    assert found.certain
    assert found.asks


PUBLISHED = [
    ("openai", "chat", "api.openai.com/v1/chat/completions",
     {**OPENAI, "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 5},
      "completion_tokens_details": {"reasoning_tokens": 9}}),
    ("openai", "responses", "api.openai.com/v1/responses", RESPONSE),
    ("openai", "embeddings", "api.openai.com/v1/embeddings", {"prompt_tokens": 8}),
    ("anthropic", "default", "api.anthropic.com/v1/messages", ANTHROPIC),
    ("google", "default", "generativelanguage.googleapis.com/v1beta/models/g:generateContent",
     GEMINI),
    ("aws", "default", "bedrock-runtime.us-east-1.amazonaws.com/model/m/converse",
     {"inputTokens": 5, "outputTokens": 6, "cacheReadInputTokens": 7, "cacheWriteInputTokens": 8}),
    ("mistral", "default", "api.mistral.ai/v1/chat/completions", OPENAI),
    ("x-ai", "chat", "api.x.ai/v1/chat/completions",
     {**OPENAI, "total_tokens": 153, "completion_tokens_details": {"reasoning_tokens": 13}}),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "flavour", "url", "said"), PUBLISHED)
def test_the_sums_agree_with_the_published_extractors(
    provider: str, flavour: str, url: str, said: dict[str, Any]
) -> None:
    """``genai-prices`` counts caches and reasoning as subsets: the sums have to be the same."""
    key = "usageMetadata" if provider == "google" else "usage"
    message = {"model": "m", "modelVersion": "m", key: said}
    snapshot = data_snapshot.get_snapshot()
    publisher = next(p for p in snapshot.providers if p.id == provider)
    if provider == "aws":
        message["model"] = "m"
    _, theirs = publisher.extract_usage(message, api_flavor=flavour)
    ours = read(url, message)
    assert ours is not None
    inputs = ours.input_tokens + ours.cache_read_tokens + ours.cache_write_tokens
    assert inputs == (theirs.input_tokens or 0)
    assert ours.output_tokens + ours.reasoning_tokens == (theirs.output_tokens or 0)
    assert ours.cache_read_tokens == (theirs.cache_read_tokens or 0)
    assert ours.cache_write_tokens == (theirs.cache_write_tokens or 0)
