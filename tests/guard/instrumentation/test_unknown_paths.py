"""Paths of vendors' own hosts: free is what is listed, and under a limit nothing else passes."""

from __future__ import annotations

import asyncio
import http.client
import re
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
import requests

import guard
from guard.core.usage import find_endpoint
from guard.scope.scope import Scope
from tests.guard.instrumentation.conftest import Observed
from tests.support import sdk_facts

OPENAI, ANTHROPIC = "api.openai.com", "api.anthropic.com"
GOOGLE, MISTRAL = "generativelanguage.googleapis.com", "api.mistral.ai"

COSTLY = [
    ("POST", OPENAI, "/v1/agents/sessions"), ("POST", OPENAI, "/v1/agents/sessions/s/events"),
    ("POST", OPENAI, "/v1/evals"), ("POST", OPENAI, "/v1/evals/e/runs"),
    ("POST", OPENAI, "/v1/fine_tuning/alpha/graders/run"), ("POST", OPENAI, "/v1/containers"),
    ("POST", OPENAI, "/v1/realtime/client_secrets"), ("POST", OPENAI, "/v1/realtime/sessions"),
    ("POST", OPENAI, "/v1/vector_stores/v/search"), ("POST", OPENAI, "/v1/responses/of/tomorrow"),
    ("POST", "eu.api.openai.com", "/v1/evals/e/runs"),
    ("POST", "x.openai.azure.com", "/openai/v1/evals/e/runs"),
    ("POST", ANTHROPIC, "/v1/sessions"), ("POST", ANTHROPIC, "/v1/sessions/s/events"),
    ("POST", ANTHROPIC, "/v1/dreams"), ("POST", ANTHROPIC, "/v1/complete"),
    ("POST", ANTHROPIC, "/v1/deployments/d/run"),
    ("POST", GOOGLE, "/v1beta/cachedContents"), ("PATCH", GOOGLE, "/v1beta/cachedContents/c"),
    ("POST", GOOGLE, "/v1beta/fileSearchStores/s:importFile"),
    ("POST", GOOGLE, "/upload/v1beta/fileSearchStores/s:uploadToFileSearchStore"),
    ("POST", GOOGLE, "/v1beta/models/gemini-embedding-001:asyncBatchEmbedContent"),
    ("POST", GOOGLE, "/v1beta/auth_tokens"), ("PUT", MISTRAL, "/v1/workflows/w/execute"),
    ("POST", MISTRAL, "/v1/client/sessions"), ("POST", "api.perplexity.ai", "/search"),
    ("POST", "api.cohere.com", "/v1/embed-jobs"), ("POST", OPENAI, "/V1/FILES/../evals"),
]  # fmt: skip
FREE = [
    ("POST", OPENAI, "/v1/files"), ("POST", OPENAI, "/v1/uploads/u/parts"),
    ("POST", OPENAI, "/v1/moderations"), ("POST", OPENAI, "/v1/batches/b/cancel"),
    ("POST", OPENAI, "/v1/responses/r/cancel"), ("POST", OPENAI, "/v1/responses/input_tokens"),
    ("POST", OPENAI, "/v1/vector_stores/v/file_batches"), ("POST", OPENAI, "/v1/threads"),
    ("POST", OPENAI, "/v1/organization/projects/p/users"), ("POST", OPENAI, "//v1/files/"),
    ("POST", "x.openai.azure.com", "/openai/files"), ("POST", "api.groq.com", "/openai/v1/files"),
    ("POST", ANTHROPIC, "/v1/messages/count_tokens"), ("POST", ANTHROPIC, "/v1/files"),
    ("POST", ANTHROPIC, "/v1/messages/batches/b/cancel"), ("POST", ANTHROPIC, "/v1/skills"),
    ("POST", ANTHROPIC, "/api/event_logging/batch"),
    ("POST", ANTHROPIC, "/api/claude_code/metrics"),
    ("POST", ANTHROPIC, "/api/oauth/claude_cli/create_api_key"),
    ("PUT", ANTHROPIC, "/v1/session_ingress/session/s"), ("POST", ANTHROPIC, "/v1/oauth/token"),
    ("POST", GOOGLE, "/v1beta/models/g:countTokens"), ("POST", GOOGLE, "/upload/v1beta/files"),
    ("POST", GOOGLE, "/v1beta/openai/files"), ("POST", GOOGLE, "/v1beta/batches/b:cancel"),
    ("PATCH", MISTRAL, "/v1/agents/a"), ("PUT", MISTRAL, "/v1/libraries/l"),
    ("POST", MISTRAL, "/v1/moderations"), ("POST", "api.cohere.com", "/v1/tokenize"),
    ("PATCH", "openrouter.ai", "/api/v1/keys/k"), ("POST", "openrouter.ai", "/api/v1/auth/keys"),
    ("POST", "api.moonshot.ai", "/v1/tokenizers/estimate-token-count"),
    ("POST", "api.together.xyz", "/v1/files/upload"),
]  # fmt: skip
WORK = [
    (MISTRAL, "/v1/ocr"), (MISTRAL, "/v1/conversations/c/restart"), (MISTRAL, "/v1/audio/speech"),
    ("api.cohere.com", "/v1/classify"), ("api.groq.com", "/openai/v1/audio/speech"),
    ("dashscope.aliyuncs.com", "/api/v1/services/aigc/text-generation/generation"),
    ("api.minimax.io", "/v1/text/chatcompletion_v2"), ("api.together.xyz", "/v1/rerank"),
    (OPENAI, "/v1/chat/completions"), (OPENAI, "/v1/responses/compact"), (OPENAI, "/v1/videos"),
    (OPENAI, "/v1/threads/t/runs"), (OPENAI, "/v1/fine_tuning/jobs"), (OPENAI, "/v1/batches"),
    ("openrouter.ai", "/api/v1/messages"), ("api.deepseek.com", "/beta/completions"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "host", "path"), COSTLY)
def test_what_is_on_no_list_is_unknown(method: str, host: str, path: str) -> None:
    found = find_endpoint(method, host, path)
    assert found is not None
    assert found.is_unknown


@pytest.mark.parametrize(("method", "host", "path"), FREE)
def test_what_is_free_is_neither_held_nor_unknown(method: str, host: str, path: str) -> None:
    found = find_endpoint(method, host, path)
    assert found is None or not (found.is_unknown or found.is_unlisted or found.asks)
    assert (found is None) == (method != "POST"), "answers may report what they used"


@pytest.mark.parametrize(("host", "path"), WORK)
def test_where_a_model_works_is_known(host: str, path: str) -> None:
    found = find_endpoint("POST", host, path)
    assert found is not None
    assert found.asks
    assert not found.is_unknown


@pytest.mark.parametrize(
    ("method", "host", "path"),
    [
        ("GET", OPENAI, "/v1/evals"), ("DELETE", OPENAI, "/v1/containers/c"),
        ("POST", "llm.example.com", "/v1/agents/sessions"),
        ("POST", "europe-west1-aiplatform.googleapis.com", "/v1/projects/p/cachedContents"),
        ("POST", "x.services.ai.azure.com", "/api/projects/p/evaluations"),
        ("POST", "router.huggingface.co", "/api/anything"),
        ("PATCH", "aiplatform.googleapis.com", "/v1/projects/p/cachedContents/c"),
    ],
)  # fmt: skip
def test_only_changes_at_a_vendors_own_host_are_unknown(method: str, host: str, path: str) -> None:
    found = find_endpoint(method, host, path)
    assert found is None or not found.is_unknown


SPELLED = (
    "/V1/Chat/Completions", "//v1//chat/completions/", "/v1/chat/completions;a=b",
    "/v1/chat/completions ", "/v1/chat/completions#a", "/v1/chat/completions\0",
    "/v1\\chat\\completions",
)  # fmt: skip


@pytest.mark.parametrize("path", SPELLED)
@pytest.mark.parametrize("host", [OPENAI, "llm.example.com", "127.0.0.1"])
@pytest.mark.parametrize("method", ["POST", "QUERY", "TOMORROW"])
def test_a_models_path_is_known_however_it_is_spelled(method: str, host: str, path: str) -> None:
    """Some server reads each of them as the plain path; and a method of tomorrow may ask, too."""
    found = find_endpoint(method, host, path)
    assert found is not None
    assert found.asks
    assert not found.is_unknown


UNKNOWN = {
    "openai": """
        agents/automations agents/automations/{} agents/automations/{}/invocations
        agents/automations/{}/resume agents/environments agents/environments/templates
        agents/environments/templates/{} agents/environments/{}/files agents/sessions
        agents/sessions/{} agents/sessions/{}/events audio/voice_consents audio/voice_consents/{}
        audio/voices chatkit/sessions containers content_provenance_checks decisions evals evals/{}
        evals/{}/runs fine_tuning/alpha/graders/run fine_tuning/jobs/{}/resume live/sessions
        live/sessions/{}/accept live/sessions/{}/fork live/sessions/{}/refer realtime/calls
        realtime/calls/{}/accept realtime/calls/{}/refer realtime/client_secrets realtime/sessions
        realtime/transcription_sessions realtime/translations/client_secrets
    """,
    "anthropic": """
        deployments deployments/{} deployments/{}/run deployments/{}/unpause dreams sessions
        sessions/{} sessions/{}/events
    """,
    "mistralai": """
        audio/agents audio/agents/{} audio/sessions audio/voices audio/voices/{} client/sessions
        connectors/{}/tools/{}/call context/search-indexes context/search-indexes/{}
        context/search-indexes/{}/documents context/search-indexes/{}/grep
        context/search-indexes/{}/navigate context/search-indexes/{}/read
        context/search-indexes/{}/search context/search-indexes/{}/summary_field/{}
        libraries/{}/documents libraries/{}/documents/{}/reprocess
        observability/dataset-records/{}/live-judging
        observability/evaluation-runs_v2/{}/statistics/compute observability/judges
        observability/judges/{} observability/judges/{}/live-judging observability/pipelines
        observability/pipelines/{} observability/spans/evaluations/search/latest rag/deployments
        rag/deployments/{}/metrics rag/ingestion_pipeline_configurations
        rag/ingestion_pipeline_configurations/{}/run_info triggers workflows/deployments
        workflows/deployments/{} workflows/deployments/{}/restart workflows/deployments/{}/start
        workflows/deployments/{}/unharden workflows/executions/{}/queries
        workflows/executions/{}/reset workflows/executions/{}/signals
        workflows/executions/{}/updates workflows/registrations/{}/execute workflows/schedules
        workflows/schedules/{} workflows/schedules/{}/resume workflows/schedules/{}/trigger
        workflows/{} workflows/{}/execute
    """,
    "cohere": "embed-jobs parse",
    "groq": "",
}
"""Paths of the vendors' clients that begin work without a bound, or are not understood."""


@pytest.mark.parametrize("package", UNKNOWN)
def test_of_the_paths_of_a_vendors_client_those_are_unknown(package: str) -> None:
    """A newer client may bring further ones: judge them, in the lists or here."""
    unjudged = {
        re.sub(r"\{[^}]*\}", "{}", path.partition("/")[2]).partition("/")[2].lstrip("/")
        for path in sdk_facts.unjudged_paths(package)
    }
    assert unjudged == set(UNKNOWN[package].split())


def refuse(reason: str, scope: Scope) -> None:
    raise AssertionError(reason)


@pytest.fixture
def limited(observed: Observed) -> Observed:
    observed.instrumentation.refuse_unseen = refuse
    return observed


def answering(sent: list[str]) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.url.path)
        return httpx.Response(200, json={"id": "it"})

    return answer


def test_under_a_limit_a_vendors_client_gets_its_own_error_at_once(limited: Observed) -> None:
    sent: list[str] = []
    client: Any = httpx.Client(transport=httpx.MockTransport(answering(sent)))
    vendor = openai.OpenAI(api_key="none", http_client=client)
    with pytest.raises(openai.BadRequestError, match=r"/v1/containers costs is not known"):
        vendor.containers.create(name="a")
    with pytest.raises(
        openai.BadRequestError, match=r"--trust path:api.openai.com/v1/agents/sessions"
    ):
        vendor.post("/agents/sessions", cast_to=object)
    vendor.files.create(file=b"{}", purpose="batch")
    assert sent == ["/v1/files"]
    named = dict(limited.instrumentation.unseen._all())
    assert named == {
        "refused:api.openai.com/v1/containers": 1, "refused:api.openai.com/v1/agents/sessions": 1,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "x-method-override"])
def test_a_method_that_a_header_names_is_the_requests(limited: Observed, name: str) -> None:
    """Google's servers take it: a GET with it creates, and asks models."""
    sent: list[str] = []
    client = httpx.Client(transport=httpx.MockTransport(answering(sent)))
    refused = client.get(f"https://{GOOGLE}/v1beta/cachedContents", headers={name: "POST"})
    assert "is not known" in refused.text
    assert client.get(f"https://{GOOGLE}/v1beta/cachedContents").status_code == 200
    assert sent == ["/v1beta/cachedContents"]


def test_a_path_that_is_trusted_goes(limited: Observed) -> None:
    sent: list[str] = []
    limited.instrumentation.trusted = frozenset({"path:api.openai.com/v1/containers"})
    client: Any = httpx.Client(transport=httpx.MockTransport(answering(sent)))
    vendor = openai.OpenAI(api_key="none", http_client=client)
    vendor.containers.create(name="a")
    with pytest.raises(openai.BadRequestError, match="is not known"):
        vendor.post("/agents/sessions", cast_to=object)
    assert sent == ["/v1/containers"]


def test_under_a_limit_an_asynchronous_client_gets_it_too(limited: Observed) -> None:
    sent: list[str] = []

    async def create() -> None:
        client: Any = httpx.AsyncClient(transport=httpx.MockTransport(answering(sent)))
        async with openai.AsyncOpenAI(api_key="none", http_client=client) as vendor:
            await vendor.containers.create(name="a")

    with pytest.raises(openai.BadRequestError, match="is not known"):
        asyncio.run(create())
    assert sent == []


def test_under_a_limit_other_clients_get_an_exception_that_the_program_can_handle(
    limited: Observed,
) -> None:
    url = "https://api.openai.com/v1/evals/e/runs"
    with pytest.raises(guard.GuardBlockedException, match="is not known"):
        requests.post(url, json={}, timeout=5)
    connection = http.client.HTTPSConnection("api.openai.com")
    with pytest.raises(guard.GuardBlockedException, match="is not known"):
        connection.request("POST", "/v1/%65vals/e/runs", "{}")
    assert dict(limited.instrumentation.unseen._all()) == {
        "refused:api.openai.com/v1/evals/e/runs": 2
    }


def test_without_a_limit_it_goes_and_is_named(observed: Observed) -> None:
    sent: list[str] = []
    client = httpx.Client(transport=httpx.MockTransport(answering(sent)))
    answer = client.post("https://api.openai.com/v1/containers", json={})
    assert (answer.status_code, sent) == (200, ["/v1/containers"])
    counts: Any = dict(observed.instrumentation.unseen.counts())
    assert counts == {"api.openai.com/v1/containers": 1}
