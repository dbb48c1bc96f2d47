"""The vendor's key lies behind the proxy: programs have guard's key, and get nothing else."""

from __future__ import annotations

import asyncio
import base64
import gzip
import http.client
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import anthropic
import attrs
import httpx
import openai
import pytest
from google import genai

from guard.gateway.embedded import Gateway, run_gateway
from guard.proxy.account_names import EventScrubber, is_error
from guard.proxy.accounts import UpstreamAccounts
from guard.proxy.custody import Custody, NotPassedError, check_body, with_safety_identifier
from guard.proxy.stored_work import stored_work
from guard.proxy.upstreams import Upstreams
from tests.proxy.test_team import Caller, operator_of, serving
from tests.support.recording_vendor import RecordingVendor
from tests.support.waiting import WAIT_S, until

CANARY = "canary-of-the-account-0123456789"
CHAT: dict[str, Any] = {
    "model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}],
}  # fmt: skip
RESPONSE: dict[str, Any] = {"model": "gpt-4o", "max_output_tokens": 50, "input": "hi"}
MESSAGES: dict[str, Any] = {**CHAT, "model": "claude-haiku-4-5"}
GENERATE: dict[str, Any] = {
    "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
    "generationConfig": {"maxOutputTokens": 50},
}
GEMINI = "/gemini/v1beta/models/gemini-2.5-flash:generateContent"
GOOD = {
    "/openai/v1/chat/completions": (CHAT, "authorization", f"Bearer {CANARY}"),
    "/openai/v1/responses": (RESPONSE, "authorization", f"Bearer {CANARY}"),
    "/anthropic/v1/messages": (MESSAGES, "x-api-key", CANARY),
    GEMINI: (GENERATE, "x-goog-api-key", CANARY),
    "/custom/own/v1/chat/completions": (CHAT, "authorization", f"Bearer {CANARY}"),
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with run_gateway() as running:
        yield running


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingVendor]:
    vendor = RecordingVendor()
    yield vendor
    vendor.close()


@attrs.frozen
class Custodian:
    """A proxy that holds a key, its account's file, and a caller."""

    url: str
    folder: Path
    caller: Caller
    other: Caller

    def send(
        self, method: str, target: str, headers: list[tuple[str, str]], body: bytes
    ) -> tuple[int, bytes]:
        """Send a request exactly as it is given; return the status, and all that is answered."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=WAIT_S)
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        found = str(answer.getheaders()).encode() + answer.read()
        connection.close()
        return answer.status, found


@pytest.fixture(scope="module")
def custodian(
    gateway: Gateway, upstream: RecordingVendor, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Custodian]:
    folder = tmp_path_factory.mktemp("accounts")
    (folder / "key").write_text(CANARY + "\n")
    names = {"openai": "openai", "anthropic": "anthropic", "gemini": "gemini", "own": "custom/own"}
    common = f'origins = ["{upstream.url}"]\ncredential_file = "key"\n'
    (folder / "accounts.toml").write_text(
        '[azure]\norigins = ["https://ours.openai.azure.com"]\ncredential_file = "key"\n'
        + "".join(f'[{name}]\nvendor = "{vendor}"\n{common}' for name, vendor in names.items())
    )
    operator = operator_of(gateway, gateway.organisation_id)
    made = operator.create_key_full("proxy", role="proxy", every_organisation=True)
    settings = {"GUARD_API_URL": gateway.base_url, "GUARD_API_KEY": made["api_key"]}
    caller, other = Caller.of(gateway), Caller.of(gateway)
    with serving("--accounts", str(folder / "accounts.toml"), **settings) as (url, _):
        yield Custodian(url, folder, caller, other)


@pytest.fixture(autouse=True)
def _forget(upstream: RecordingVendor) -> None:
    upstream.requests.clear()
    upstream.status, upstream.said = 200, None


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize(
    "place", ["authorization", "x-api-key", "x-goog-api-key", "api-key", "x-guard-key"]
)
def test_exactly_one_credential_goes_upstream(
    custodian: Custodian, upstream: RecordingVendor, path: str, place: str
) -> None:
    body, name, value = GOOD[path]
    key = custodian.caller.key
    headers = [(place, f"Bearer {key}" if place == "authorization" else key),
               ("content-type", "application/json")]  # fmt: skip
    status, answer = custodian.send("POST", path, headers, json.dumps(body).encode())
    assert status == 200, answer
    (request,) = upstream.requests
    assert request.values(name) == [value]
    assert str(request.headers).count(CANARY) == 1
    assert custodian.caller.key not in f"{request.target} {request.headers}"
    assert request.body == json.dumps(body).encode()
    assert request.values("accept-encoding") == ["identity"], "or its errors could not be read"
    assert b"hush" not in answer
    assert b"149984" not in answer
    assert b"req_1" in answer


def test_the_vendors_clients_take_guards_key_for_theirs(custodian: Custodian) -> None:
    url, key = custodian.url, custodian.caller.key
    with openai.OpenAI(base_url=f"{url}/openai/v1", api_key=key) as client:
        assert client.chat.completions.create(**CHAT).choices[0].message.content == "hi"
        assert client.responses.create(**RESPONSE).id == "resp_1"
    with anthropic.Anthropic(base_url=f"{url}/anthropic", api_key=key) as messages:
        assert messages.messages.create(**MESSAGES).stop_reason == "end_turn"
    google = genai.Client(api_key=key, http_options={"base_url": f"{url}/gemini"})
    assert google.models.generate_content(model="gemini-2.5-flash", contents="hi").text == "hi"
    until(lambda: custodian.caller.charged() > 0)


JSON = ("content-type", "application/json")
JSON_BYTES = (b"content-type", b"application/json")
STORED: dict[str, list[tuple[str, Any]]] = {
    "/openai/v1/responses": [
        ("previous_response_id", "resp_1"), ("Previous_Response_Id", "resp_1"),
        ("conversation", "conv_1"), ("conversation", {"id": "conv_1"}), ("CONVERSATION", "conv_1"),
        ("prompt", {"id": "pmpt_1"}), ("background", True),
        ("input", [{"type": "item_reference", "id": "msg_1"}]), ("input", [{"id": "msg_1"}]),
        ("input", [{"id": "msg_1", "type": "message"}]),
        ("input", [{"type": "reasoning", "id": "rs_1", "summary": []}]),
        ("input", [{"type": "image_generation_call", "id": "ig_1"}]),
        ("input", [{"type": "compaction", "id": "cmp_1", "encrypted_content": ""}]),
        ("input", [{"type": "tool_of_tomorrow", "id": "t_1", "status": "completed"}]),
        ("input", [{"type": "message", "id": "msg_1", "role": "user", "content": []}]),
        ("input", [{"Type": "reasoning", "id": "rs_1", "content": []}]),
        ("input", [{"iD": "msg_1", "content": []}]),
        ("input", {"type": "tool_use", "input": {"file_id": "file-1"}}),
        ("sKILLS", ["s"]), ("\u017fkill\u017f", ["s"]), ("conversation\x00", "conv_1"),
        ("file_\ud800", "file-1"), ("conversation" + "x" * 100_000, "conv_1"),
        ("containers", ["cntr_1"]), ("memories", ["m"]), ("threads", ["t"]), ("presets", ["p"]),
        ("models", ["openai/gpt-4o", "@preset/ours"]),
        ("data_sources", [{"type": "azure_search", "parameters": {
            "authentication": {"type": "system_assigned_managed_identity"}}}]),
        ("extra", {"parameters": {"conversation": "conv_1"}}),
        ("tools", [{"type": "web_search", "headers": {"conversation": "conv_1"}}]),
        ("tools", [{"type": "shell", "environment": {"type": "local", "skill_id": "s"}}]),
        ("tools", [{"type": "shell", "environment": "env_1"}]),
        ("input", [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]),
        ("input", [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]),
        ("input", [{"type": "function_call_output", "call_id": "c",
                    "output": [{"type": "input_file", "file_id": "file-1"}]}]),
        ("tools", [{"type": "file_search", "vector_store_ids": ["vs_1"]}]),
        ("tools", [{"type": "code_interpreter", "container": "cntr_1"}]),
        ("tools", [{"type": "code_interpreter",
                    "container": {"type": "auto", "file_ids": ["file-1"]}}]),
        ("tools", [{"type": "shell", "environment": {"type": "container_reference",
                                                     "container_id": "cntr_1"}}]),
        ("tools", [{"type": "mcp", "server_label": "d", "connector_id": "connector_dropbox"}]),
        ("tools", [{"type": "image_generation", "input_image_mask": {"file_id": "file-1"}}]),
    ],
    "/openai/v1/chat/completions": [
        ("messages", [{"role": "user", "content": [{"type": "file",
                                                    "file": {"file_id": "file-1"}}]}]),
        ("messages", [{"role": "assistant", "audio": {"id": "audio_1"}}]),
        ("audio", {"format": "wav", "voice": {"id": "voice_1"}}),
        ("dataSources", [{"type": "azure_search"}]), ("model", "openai/gpt-4o@preset/ours"),
        ("model", "ag:1234:ours"),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {
            "url": "https://generativelanguage.googleapis.com/v1beta/files/1"}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url",
                                                    "image_url": "gs://bucket/1"}]}]),
        ("thread_id", "thread_1"), ("assistant_id", "asst_1"), ("session_id", "s"),
        ("preset", "ours"), ("store_names", ["a"]), ("knowledge_base_id", "k"),
    ],
    "/anthropic/v1/messages": [
        ("container", "container_1"), ("container", {"skills": [{"skill_id": "pdf"}]}),
        ("messages", [{"role": "user", "content": [
            {"type": "document", "source": {"type": "file", "file_id": "file_1"}}]}]),
        ("messages", [{"role": "user", "content": [
            {"type": "container_upload", "file_id": "file_1"}]}]),
        ("messages", [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": [
                {"type": "image", "source": {"type": "file", "file_id": "file_1"}}]}]}]),
        ("memory_store_id", "m"), ("vaults", ["v"]),
    ],
    GEMINI: [
        ("cachedContent", "cachedContents/1"), ("cached_content", "cachedContents/1"),
        ("cachedcontent", "cachedContents/1"),
        ("contents", [{"parts": [{"fileData": {"fileUri": "https://generativelanguage.googleapis"
                                               ".com/v1beta/files/1"}}]}]),
        ("contents", [{"parts": [{"file_data": {"file_uri": "gs://bucket/1"}}]}]),
        ("tools", [{"fileSearch": {"fileSearchStoreNames": ["fileSearchStores/1"]}}]),
        ("tools", [{"file_search": {"file_search_store_names": ["fileSearchStores/1"]}}]),
        ("previousInteractionId", "1"),
        ("tools", [{"retrieval": {"vertexAiSearch": {"datastore": "d"}}}]),
        ("tools", [{"retrieval": {"vertexRagStore": {"ragResources": [{"ragCorpora": "c"}]}}}]),
    ],
}  # fmt: skip
"""Members that name stored work, in a request that would pass without them."""

STATEFUL = (
    "GET /openai/v1/files", "GET /openai/v1/files/file-1/content",
    "DELETE /openai/v1/files/file-1", "POST /openai/v1/files", "POST /openai/v1/batches",
    "GET /openai/v1/batches", "GET /openai/v1/responses/resp_1",
    "DELETE /openai/v1/responses/resp_1", "GET /openai/v1/responses/resp_1/input_items",
    "POST /openai/v1/responses/resp_1/cancel", "POST /openai/v1/responses/compact",
    "GET /openai/v1/chat/completions", "GET /openai/v1/chat/completions/c/messages",
    "POST /openai/v1/chat/completions/c", "POST /openai/v1/conversations",
    "GET /openai/v1/conversations/conv_1/items", "GET /openai/v1/vector_stores",
    "POST /openai/v1/vector_stores/vs_1/search", "GET /openai/v1/containers",
    "GET /openai/v1/containers/c/files/f/content", "POST /openai/v1/threads",
    "GET /openai/v1/organization/api_keys", "POST /openai/v1/organization/admin_api_keys",
    "POST /openai/v1/realtime/client_secrets", "POST /openai/v1/fine_tuning/jobs",
    "GET /openai/v1/skills", "POST /openai/v1/uploads", "POST /openai/v1/evals",
    "PUT /openai/v1/chat/completions", "PATCH /openai/v1/responses",
    "POST /openai//v1/chat/completions", "POST /openai/v1/chat/completions/",
    "POST /openai/v1/chat%2fcompletions", "POST /openai/V1/chat/completions",
    "POST /openai/v1/chat/completions;a=b", "POST /openai/v1/responses%3Fa=b",
    "POST /openai/v1/files/../chat/completions", "POST /openai/v1/%2e%2e/v1/files",
    "POST /openai/v1/chat/completions%00", "POST /openai/v1/chat/completions%23",
    "POST /anthropic/v1/messages/batches", "GET /anthropic/v1/messages/batches/b/results",
    "POST /anthropic/v1/files", "GET /anthropic/v1/files/f/content",
    "GET /anthropic/v1/organizations/api_keys", "POST /anthropic/v1/skills",
    "POST /anthropic/v1/sessions", "POST /anthropic/v1/environments", "GET /anthropic/v1/vaults",
    "POST /anthropic/api/event_logging/batch", "GET /anthropic/api/oauth/profile",
    "HEAD /anthropic/v1/messages", "POST /anthropic/v1/messages/",
    "POST /anthropic/v1/messages%2fbatches", "POST /anthropic/v1/messages/../files",
    "GET /gemini/v1beta/files", "POST /gemini/upload/v1beta/files",
    "GET /gemini/v1beta/cachedContents", "POST /gemini/v1beta/cachedContents",
    "POST /gemini/v1beta/tunedModels/t:generateContent", "GET /gemini/v1beta/fileSearchStores",
    "POST /gemini/v1beta/models/m:batchGenerateContent", "POST /gemini/v1beta/interactions",
    "POST /gemini/v1beta/models/m:predictLongRunning", "GET /gemini/v1beta/operations/o",
    "POST /gemini/v1beta/models/..%2ffiles:generateContent",
    "POST /gemini/v1beta/models/m:generateContent:x", "POST /gemini/v1beta/corpora",
    "POST /azure/other/openai/v1/chat/completions",
    "POST /azure/ours.openai.azure.com.evil.example/openai/v1/chat/completions",
    "POST /azure/ours.openai.azure.com@evil.example/openai/v1/chat/completions",
    "POST /azure/evil.westeurope.cloudapp.azure.com/openai/v1/chat/completions",
    "POST /azure/ours.cognitiveservices.azure.com/openai/v1/chat/completions",
    "POST /azure/ours.openai.azure.com:8080/openai/v1/chat/completions",
    "POST /azure/ours%2eopenai.azure.com/openai/v1/chat/completions",
    "POST /azure//openai/v1/chat/completions",
    "POST /custom/other/v1/chat/completions", "POST /custom//v1/chat/completions",
    "POST /groq/openai/v1/chat/completions", "POST /openrouter/api/v1/chat/completions",
    "POST /mistral/v1/chat/completions", "POST /vertex/v1/projects/p/locations/l/endpoints",
    "POST /bedrock/us-east-1/model/m/converse", "POST /codex/backend-api/codex/responses",
    "POST /ollama/api/chat", "POST /http://evil.example/v1/chat/completions",
    "POST /openai@evil.example/v1/chat/completions", "POST //evil.example/v1/chat/completions",
    "POST /k/KEY/http://evil.example/", "GET /", "GET /openai", "POST /openai",
    "OPTIONS /openai/v1/chat/completions", "TRACE /openai/v1/chat/completions",
    "CONNECT /openai/v1/chat/completions",
)  # fmt: skip
"""What reaches stored work, another host, or the account itself."""

BESIDE = (
    ("authorization", "Bearer sk-evil"), ("authorization", "Basic ZXZpbDpldmls"),
    ("Authorization", "bearer sk-evil"), ("x-api-key", "sk-evil"), ("X-Api-Key", "sk-evil"),
    ("x-goog-api-key", "evil"), ("api-key", "evil"), ("proxy-authorization", "Basic ZXZpbA=="),
    ("cookie", "session=evil"), ("openai-organization", "org-evil"),
    ("OpenAI-Project", "proj_evil"), ("x-goog-user-project", "evil"),
    ("anthropic-organization-id", "evil"), ("x-amz-security-token", "evil"),
    ("x-amz-target", "evil"), ("idempotency-key", "evil"), ("x-forwarded-host", "evil.example"),
    ("forwarded", "host=evil.example"), ("x-http-method-override", "DELETE"),
    ("x-original-url", "/v1/files"), ("x-rewrite-url", "/v1/files"), ("host", "evil.example"),
    ("connection", "authorization"), ("connection", "x-api-key, x-goog-api-key"),
    ("anthropic-workspace-id", "evil"), ("x-guard-evil", "evil"), ("traceparent", "evil"),
    ("x-ms-evil", "evil"), ("ocp-apim-subscription-key", "evil"), ("x-provider-api-key", "evil"),
)  # fmt: skip
"""What goes beside guard's key, and never upstream."""

QUERIES = (
    ("key=evil", True), ("access_token=evil", True), ("api_key=evil", True), ("alt=sse", True),
    ("%6bey=evil", True), ("key=evil&key=evil2", True), ("beta=true", True),
    ("$httpHeaders=x-goog-api-key:evil", False), ("upload_protocol=evil", False),
    ("oauth_token=evil", False), ("KEY=evil", False), ("callback=evil", False),
    ("fields=evil", False), ("quotaUser=evil", False), ("include=evil", False),
)  # fmt: skip
"""Queries, and whether a request passes without them, or does not pass."""

SPELLINGS: tuple[tuple[str, Callable[[bytes], bytes], list[tuple[str, str]]], ...] = (
    ("named twice", lambda body: body[:-1] + b', "conversation": null, "conversation": "c"}', []),
    ("in two cases", lambda body: body[:-1] + b', "Seed": 1, "seed": 1}', []),
    ("escaped", lambda body: body[:-1] + rb', "conversat\u0069on": "conv_1"}', []),
    ("long s", lambda body: body[:-1] + ', "conver\u017fation": "conv_1"}'.encode(), []),
    ("compressed", gzip.compress, [("content-encoding", "gzip")]),
    ("compressed in secret", gzip.compress, []),
    ("of UTF-16", lambda body: body.decode().encode("utf-16"), []),
    ("with a mark", lambda body: b"\xef\xbb\xbf" + body, []),
    ("no JSON", lambda body: body[:-1], []),
    ("two values", lambda body: body + body, []),
    ("empty", lambda body: b"", []),
    ("deep", lambda body: body[:-1] + b', "a": ' + b"[" * 5000 + b"]" * 5000 + b"}", []),
    ("of another kind", lambda body: body, [("content-type", "text/plain")]),
    ("of two kinds", lambda body: body, [("content-type", "multipart/form-data; boundary=x")]),
    ("of another charset", lambda body: body, [("content-type", "application/json;charset=utf-7")]),
    (
        "of two kinds in one",
        lambda body: body,
        [("content-type", "application/json; , multipart/form-data; boundary=x")],
    ),
    ("with no kind", lambda body: body, [("content-type", "")]),
    ("of a million parts", lambda body: body[:-1] + b', "a": [' + b"0," * 1_000_000 + b"0]}", []),
    ("of many lists", lambda body: body[:-1] + b', "a": [' + b"[]," * 200_000 + b"0]}", []),
    ("a form", lambda body: b"--x\r\n\r\n--x--", [("content-type", "multipart/form-data")]),
)
"""Bodies that two readers may read differently."""


def attempts(
    own: str, others: str
) -> Iterator[tuple[str, str, list[tuple[str, str]], bytes, bool]]:
    """Yield hostile requests, and whether what they are without it may go upstream."""

    def key(value: str = own) -> list[tuple[str, str]]:
        return [("x-guard-key", value), JSON]

    for line in STATEFUL:
        method, target = line.split(" ", 1)
        yield method, target.replace("KEY", own), key(), json.dumps(CHAT).encode(), False
    for path, members in STORED.items():
        for name, value in members:
            body = json.dumps({**GOOD[path][0], name: value}).encode()
            yield "POST", path, key(), body, False
    for path, header in itertools.product(GOOD, BESIDE):
        yield "POST", path, [*key(), header], json.dumps(GOOD[path][0]).encode(), True
    for path, (query, passes) in itertools.product(GOOD, QUERIES):
        yield "POST", f"{path}?{query}", key(), json.dumps(GOOD[path][0]).encode(), passes
    for path, (_, spelled, headers) in itertools.product(GOOD, SPELLINGS):
        given = headers if any(name == "content-type" for name, _ in headers) else [JSON, *headers]
        if headers == [("content-type", "multipart/form-data; boundary=x")]:
            given = [JSON, *headers]
        body = spelled(json.dumps(GOOD[path][0]).encode())
        yield "POST", path, [("x-guard-key", own), *given], body, False
    # Another's money: its key beside one's own, and keys that are none.
    for path, place in itertools.product(GOOD, ("x-api-key", "authorization", "api-key")):
        value = f"Bearer {others}" if place == "authorization" else others
        body = json.dumps(GOOD[path][0]).encode()
        yield "POST", path, [*key(), (place, value)], body, False
        yield "POST", f"/k/{own}{path}", [(place, value), JSON], body, False
        yield "POST", f"{path}?key={others}", key(), body, False
        yield "POST", path, [(place, "gdk_nobody"), JSON], body, False
        yield "POST", path, [(place, CANARY), JSON], body, False


@pytest.mark.generator("ways to get at the paying key, another's work, another host, its money")
def test_nobody_reaches_what_is_anothers(
    custodian: Custodian, upstream: RecordingVendor, count_cases: Callable[[int], None]
) -> None:
    tried = 0
    before = custodian.other.charged()
    for method, target, headers, body, may_pass in attempts(
        custodian.caller.key, custodian.other.key
    ):
        upstream.requests.clear()
        case = f"{method} {target} {headers} {body[:300]!r}"
        status, answer = custodian.send(method, target, headers, body)
        tried += 1
        assert CANARY.encode() not in answer, case
        assert b"hush" not in answer, case
        if not may_pass:
            assert upstream.requests == [], case
            assert 400 <= status < 500, case
            continue
        assert status == 200, (case, answer)
        (seen,) = upstream.requests
        shown = f"{seen.target} {seen.headers}"
        assert "evil" not in shown, case
        assert shown.count(CANARY) == 1, case
        assert custodian.caller.key not in shown, case
    count_cases(tried)
    assert tried >= 200
    assert custodian.other.charged() == before


@pytest.mark.parametrize("status", [302, 307, 400, 401, 403, 404, 429, 500])
def test_an_error_says_nothing_of_the_account(
    custodian: Custodian, upstream: RecordingVendor, status: int
) -> None:
    upstream.status = status
    message = f"key {CANARY} of organization org-hushhush, proj_hush1234, sk-proj-hush1234"
    upstream.said = json.dumps({"error": {"message": message}}).encode()
    path = "/openai/v1/chat/completions"
    headers = [("x-guard-key", custodian.caller.key), JSON]
    told, answer = custodian.send("POST", path, headers, json.dumps(CHAT).encode())
    assert told == {401: 503, 403: 400}.get(status, status)
    assert CANARY.encode() not in answer
    assert b"hush" not in answer
    if status in (401, 403):
        assert b"does not accept the account of this proxy" in answer


def test_a_key_that_is_replaced_is_used_at_once(
    custodian: Custodian, upstream: RecordingVendor
) -> None:
    path, headers = "/openai/v1/chat/completions", [("x-guard-key", custodian.caller.key), JSON]
    file = custodian.folder / "key"
    try:
        fresh = custodian.folder / "fresh"
        fresh.write_text("another-key")
        os.utime(fresh, ns=(time.time_ns(), time.time_ns()))
        fresh.replace(file)
        custodian.send("POST", path, headers, json.dumps(CHAT).encode())
        assert upstream.requests[-1].values("authorization") == ["Bearer another-key"]
        file.unlink()
        custodian.send("POST", path, headers, json.dumps(CHAT).encode())
        assert upstream.requests[-1].values("authorization") == ["Bearer another-key"]
    finally:
        file.write_text(CANARY)


def test_an_account_serves_whom_it_names(gateway: Gateway, upstream: RecordingVendor,
                                         tmp_path: Path) -> None:  # fmt: skip
    operator = operator_of(gateway, gateway.organisation_id)
    made = operator.create_key_full("proxy", role="proxy", every_organisation=True)
    settings = {"GUARD_API_URL": gateway.base_url, "GUARD_API_KEY": made["api_key"],
                "FIRST": "first", "SECOND": "second", "THIRD": "third"}  # fmt: skip
    search = operator.create_key_full("a", team="search")
    mail = operator.create_key_full("b", team="mail")
    alone = operator.create_key_full("c", team="mail")
    stranger = Caller.of(gateway)
    common = f'vendor = "openai"\norigins = ["{upstream.url}"]\n'
    (tmp_path / "accounts.toml").write_text(
        f'[own]\n{common}credential_env = "THIRD"\nshared = false\n'
        f'keys = ["{alone["key"]["key_id"]}"]\n'
        f'[one]\n{common}credential_env = "FIRST"\nteams = ["search"]\n'
        f'[rest]\n{common}credential_env = "SECOND"\n'
        f'organisations = ["{gateway.organisation_id}"]\n'
    )
    with serving("--accounts", str(tmp_path / "accounts.toml"), **settings) as (url, _):

        def status(key: str, method: str = "POST", path: str = "v1/chat/completions") -> int:
            return httpx.request(
                method, f"{url}/openai/{path}", json=CHAT, timeout=WAIT_S,
                headers={"Authorization": f"Bearer {key}"},
            ).status_code  # fmt: skip

        for made, credential in ((search, "first"), (mail, "second"), (alone, "third")):
            assert status(made["api_key"]) == 200
            assert upstream.requests[-1].values("authorization") == [f"Bearer {credential}"]
        upstream.requests.clear()
        assert status(stranger.key) == 400
        assert status(search["api_key"], "GET", "v1/files") == 400
        assert upstream.requests == []
        assert status(alone["api_key"], "GET", "v1/files") == 200


PNG = base64.b64encode(b"\x89PNG\r\n" + bytes(60)).decode()
FREE = {"type": "object", "properties": {"file_id": {"type": "string"},
                                         "conversation": {"type": "string"}}}  # fmt: skip
"""A schema of a program's own, with names that would be stored work elsewhere."""


def _openai_honest(client: openai.OpenAI) -> Iterator[Any]:
    raw = client.responses.with_raw_response
    yield raw.create(
        model="gpt-5", store=False, include=["reasoning.encrypted_content"], stream=True,
        previous_response_id=None, prompt_cache_key="k", safety_identifier="s",
        metadata={"session_id": "1"}, reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "n", "schema": FREE, "strict": False}},
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
        tools=[
            {"type": "function", "name": "read", "parameters": FREE, "strict": False},
            {"type": "web_search", "filters": {"allowed_domains": ["a.example"]},
             "user_location": {"type": "approximate", "city": "Bern"}},
            {"type": "mcp", "server_label": "d", "server_url": "https://mcp.example/sse",
             "headers": {"X-Session-Id": "1", "X-Workspace": "w"}, "require_approval": "never",
             "allowed_tools": {"tool_names": ["a"]}},
            {"type": "computer_use_preview", "display_width": 800, "display_height": 600,
             "environment": "browser"},
            {"type": "shell", "environment": {"type": "local"}}, {"type": "apply_patch"},
            {"type": "custom", "name": "c"}, {"type": "image_generation"},
            {"type": "namespace", "name": "n", "description": "d", "tools": [
                {"type": "function", "name": "f", "parameters": FREE, "defer_loading": True}]},
        ],
        input=[
            {"role": "user", "content": [
                {"type": "input_text", "text": "file_id"},
                {"type": "input_image", "detail": "auto",
                 "image_url": f"data:image/png;base64,{PNG}"},
                {"type": "input_file", "filename": "a.pdf",
                 "file_data": f"data:application/pdf;base64,{PNG}"},
                {"type": "input_file", "file_url": "https://docs.example/files/a.pdf"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"},
            {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "hi", "annotations": [
                 {"type": "url_citation", "start_index": 0, "end_index": 1, "title": "t",
                  "url": "https://a.example/files/1"}]}]},
            {"type": "web_search_call", "id": "ws_1", "status": "completed",
             "action": {"type": "search", "query": "q", "sources": [
                 {"type": "url", "url": "https://a.example"}]}},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "read",
             "arguments": '{"file_id": "x"}', "status": "completed"},
            {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "read",
             "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "a"},
            {"type": "function_call_output", "call_id": "call_2", "output": [
                {"type": "input_image", "detail": "auto",
                 "image_url": f"data:image/png;base64,{PNG}"}]},
            {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "d", "tools": [
                {"name": "a", "input_schema": FREE, "annotations": None}]},
            {"type": "mcp_approval_request", "id": "mcpr_1", "name": "a", "server_label": "d",
             "arguments": "{}"},
            {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
            {"type": "mcp_call", "id": "mcp_1", "server_label": "d", "name": "a",
             "arguments": "{}", "output": "x"},
            {"type": "computer_call", "id": "cu_1", "call_id": "call_3", "status": "completed",
             "pending_safety_checks": [{"id": "sc_1", "code": "c", "message": "m"}],
             "action": {"type": "screenshot"}},
            {"type": "computer_call_output", "call_id": "call_3", "acknowledged_safety_checks": [
                {"id": "sc_1", "code": "c", "message": "m"}],
             "output": {"type": "computer_screenshot",
                        "image_url": f"data:image/png;base64,{PNG}"}},
            {"type": "shell_call", "id": "sh_1", "call_id": "call_4", "status": "completed",
             "environment": {"type": "local"},
             "action": {"commands": ["ls"], "timeout_ms": 1, "max_output_length": 1}},
            {"type": "shell_call_output", "call_id": "call_4", "output": [
                {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
            {"type": "apply_patch_call", "id": "ap_1", "call_id": "call_5", "status": "completed",
             "operation": {"type": "delete_file", "path": "a"}},
            {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PNG},
        ],
    )  # fmt: skip
    yield client.chat.completions.with_raw_response.create(
        model="gpt-4o", stream=True, stream_options={"include_usage": True}, max_tokens=50,
        parallel_tool_calls=True, logit_bias={"50256": -100}, user="u",
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": FREE}},
        tools=[{"type": "function", "function": {"name": "read", "parameters": FREE}}],
        tool_choice={"type": "function", "function": {"name": "read"}},
        prediction={"type": "content", "content": "x"},
        messages=[
            {"role": "user", "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
                {"type": "image_url", "image_url": {"url": "https://a.example/files/b.png"}},
                {"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": PNG}}]},
            {"role": "assistant", "content": None, "refusal": None, "audio": None, "tool_calls": [
                {"id": f"call_{n}", "type": "function",
                 "function": {"name": "read", "arguments": '{"file_id": 1}'}} for n in (1, 2)]},
            *({"role": "tool", "tool_call_id": f"call_{n}", "content": "x"} for n in (1, 2)),
        ],
    )  # type: ignore[arg-type]  # fmt: skip
    yield client.embeddings.with_raw_response.create(model="text-embedding-3-small", input=[[1, 2]])


def _anthropic_honest(client: anthropic.Anthropic) -> Iterator[Any]:
    image = {"type": "image",
             "source": {"type": "base64", "media_type": "image/png", "data": PNG}}  # fmt: skip
    kept = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    messages: Any = client.beta.messages.with_raw_response
    common: dict[str, Any] = {
        "model": "claude-haiku-4-5",
        "betas": ["mcp-client-2025-11-20"],
        "system": [{"type": "text", "text": "s", **kept}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "mcp_servers": [{"type": "url", "url": "https://mcp.example", "name": "m",
                         "authorization_token": "t"}],
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919",
                                          "exclude_tools": ["read"]}]},
        "tools": [
            {"name": "read", "input_schema": FREE, "input_examples": [{"file_id": "1"}], **kept},
            {"type": "memory_20250818", "name": "memory"},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
            {"type": "web_fetch_20250910", "name": "web_fetch", "citations": {"enabled": True}},
            {"type": "code_execution_20250825", "name": "code_execution"},
            {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
            {"type": "mcp_toolset", "mcp_server_name": "m"},
        ],
        "messages": [
            {"role": "user", "content": [
                image,
                {"type": "document", "title": "t", "citations": {"enabled": True}, **kept,
                 "source": {"type": "base64", "media_type": "application/pdf", "data": PNG}},
                {"type": "document", "source": {"type": "url", "url": "https://a.example/a.pdf"}},
                {"type": "document", "source": {"type": "content", "content": [image]}},
                {"type": "search_result", "source": "https://a.example", "title": "t",
                 "content": [{"type": "text", "text": "x"}]}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "x", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search",
                 "input": {"query": "q"}, "caller": {"type": "direct"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
                    {"type": "web_search_result", "url": "https://a.example", "title": "t",
                     "encrypted_content": "x", "page_age": None}]},
                {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_2", "content": {
                    "type": "tool_search_tool_search_result", "tool_references": [
                        {"type": "tool_reference", "tool_name": "read"}]}},
                {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "a", "server_name": "m",
                 "input": {"session_id": "1"}},
                {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False,
                 "content": [{"type": "text", "text": "x"}]},
                {"type": "text", "text": "x", "citations": [
                    {"type": "page_location", "cited_text": "x", "document_index": 0,
                     "document_title": "t", "start_page_number": 1, "end_page_number": 2,
                     "file_id": None}]},
                *({"type": "tool_use", "id": f"toolu_{n}", "name": "read",
                   "input": {"file_id": "1", "conversation": {"id": 1}},
                   "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}
                  for n in (1, 2))]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": [image]}
                for n in (1, 2)]},
        ],
    }  # fmt: skip
    yield messages.create(**common, max_tokens=2000, stream=True)
    yield messages.count_tokens(**common)


def _google_honest(client: genai.Client) -> Iterator[Any]:
    types = genai.types
    call = types.FunctionCall(id="1", name="read", args={"file_id": "1"})
    result = types.FunctionResponse(id="1", name="read", response={"conversation": {"id": 1}})
    yield client.models.generate_content(
        model="gemini-2.5-flash",
        contents=[
            types.Content(role="user", parts=[
                types.Part.from_text(text="hi"),
                types.Part.from_bytes(data=b"x", mime_type="image/png"),
                types.Part(file_data=types.FileData(file_uri="https://www.youtube.com/watch?v=1",
                                                    mime_type="video/mp4"),
                           video_metadata=types.VideoMetadata(fps=1))]),
            types.Content(role="model", parts=[
                types.Part(function_call=call, thought_signature=b"x"),
                types.Part(function_call=call)]),
            types.Content(role="user", parts=[types.Part(function_response=result)] * 2),
        ],
        config=types.GenerateContentConfig(
            system_instruction="s", max_output_tokens=50, response_mime_type="application/json",
            response_json_schema=FREE,
            thinking_config=types.ThinkingConfig(include_thoughts=True),
            safety_settings=[types.SafetySetting(
                category=types.HarmCategory.HARM_CATEGORY_HARASSMENT,
                threshold=types.HarmBlockThreshold.BLOCK_NONE)],
            tools=[
                types.Tool(function_declarations=[types.FunctionDeclaration(
                    name="read", parameters_json_schema=FREE, response_json_schema=FREE)]),
                types.Tool(function_declarations=[types.FunctionDeclaration(
                    name="write", parameters=types.Schema.model_validate(
                        {"type": "OBJECT", "properties": {"file_id": {"type": "STRING"}}}),
                    response=types.Schema.model_validate(
                        {"type": "OBJECT", "properties": {"thread": {"type": "STRING"}}}))]),
                types.Tool(google_search=types.GoogleSearch()),
                types.Tool(url_context=types.UrlContext()),
                types.Tool(code_execution=types.ToolCodeExecution()),
                types.Tool(computer_use=types.ComputerUse(
                    environment=types.Environment.ENVIRONMENT_BROWSER)),
            ],
        ),
    )  # fmt: skip
    yield client.models.count_tokens(model="gemini-2.5-flash", contents="hi")
    yield client.models.embed_content(model="gemini-embedding-001", contents=["hi"])


def test_what_honest_clients_send_passes(custodian: Custodian, upstream: RecordingVendor) -> None:
    url, key = custodian.url, custodian.caller.key
    with openai.OpenAI(base_url=f"{url}/openai/v1", api_key=key, max_retries=0) as client:
        assert len(list(_openai_honest(client))) == 3
    with anthropic.Anthropic(base_url=f"{url}/anthropic", api_key=key, max_retries=0) as messages:
        assert len(list(_anthropic_honest(messages))) == 2
    google = genai.Client(api_key=key, http_options={"base_url": f"{url}/gemini"})
    assert len(list(_google_honest(google))) == 3
    assert len(upstream.requests) == 8


def test_a_costly_body_leaves_the_loop_to_others(tmp_path: Path) -> None:
    (tmp_path / "accounts.toml").write_text('[openai]\ncredential_env = "KEY"\n')
    accounts = UpstreamAccounts.read(tmp_path / "accounts.toml", {"KEY": "sk-1"})
    headers = [(b"content-type", b"application/json")]
    body = b'{"a": [' + b'{"a":{}},' * 90_000 + b"1]}"

    async def turns_meanwhile() -> int:
        check = asyncio.create_task(check_body(accounts.accounts[0], headers, body))
        turns = 0
        while not check.done():
            await asyncio.sleep(0)
            turns += 1
        await check
        return turns

    assert asyncio.run(turns_meanwhile()) > 10


def test_a_long_name_is_not_copied_for_each_place() -> None:
    """Five million characters, at 190,000 places: copied, they would take minutes."""
    before = time.process_time()
    assert stored_work(b'{"' + b"a" * 5_000_000 + b'":[' + b"[]," * 190_000 + b"1]}") is None
    assert time.process_time() - before < 60


ORGANISATION = "org-hushhush1234"
FAILED: dict[str, Any] = {"error": {"message": f"{ORGANISATION} has no more {CANARY}, sk-12...ab"}}
EVENTS = {
    "chat": b"data: " + json.dumps(FAILED).encode() + b"\n\n",
    "messages": b"event: error\ndata: "
    + json.dumps({"type": "error", **FAILED}).encode() + b"\n\n",
    "responses": b"event: response.failed\r\ndata: "
    + json.dumps({"type": "response.failed", "response": FAILED}).encode() + b"\r\n\r\n",
    "no JSON": b"data: error of org-hushhush1234 at canary-of-the-account-0123456789\n\n",
}  # fmt: skip
HONEST = (
    b'event: response.created\ndata: {"type": "response.created", "response": {"error": null}}\n\n'
    b'data: {"choices": [{"delta": {"content": "user-friendly errors of org-chart-people"}}]}\n\n'
)


@pytest.mark.parametrize("kind", EVENTS)
def test_an_error_inside_a_stream_does_not_name_the_account(kind: str) -> None:
    """Wherever its bytes are cut; all else passes unchanged."""
    stream = HONEST + EVENTS[kind] + HONEST
    for size in (1, 2, 3, 7, 64, len(stream)):
        scrubber = EventScrubber(CANARY.encode())
        chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
        passed = b"".join(map(scrubber.feed, chunks)) + scrubber.rest()
        assert CANARY.encode() not in passed
        assert ORGANISATION.encode() not in passed
        assert passed.startswith(HONEST)
        assert passed.endswith(HONEST)


def test_an_event_without_an_end_is_not_kept_for_ever() -> None:
    scrubber = EventScrubber(b"key")
    passed = sum(len(scrubber.feed(b"x" * 4096)) for _ in range(64))
    assert passed >= 64 * 4096 - (64 << 10)


def test_an_error_that_is_answered_with_200_does_not_name_the_account(
    custodian: Custodian, upstream: RecordingVendor
) -> None:
    upstream.said = json.dumps(FAILED).encode()
    headers = [("x-api-key", custodian.caller.key), JSON]
    body = json.dumps(CHAT).encode()
    status, found = custodian.send("POST", "/openai/v1/chat/completions", headers, body)
    assert status == 200
    assert CANARY.encode() not in found
    assert ORGANISATION.encode() not in found
    assert not is_error(b'{"id": "1", "error": null}')


def test_a_large_error_is_cut_and_never_within_the_key(
    custodian: Custodian, upstream: RecordingVendor
) -> None:
    upstream.status = 429
    for shift in range(0, len(CANARY) + 1, 8):
        upstream.said = b"x" * ((1 << 20) - shift) + CANARY.encode() * 3 + b"y" * (3 << 20)
        headers = [("x-api-key", custodian.caller.key), JSON]
        body = json.dumps(CHAT).encode()
        _, found = custodian.send("POST", "/openai/v1/chat/completions", headers, body)
        assert len(found) < 2 << 20
        assert CANARY[:6].encode() not in found


def test_a_vendor_is_told_persons_apart_by_a_keyed_hash(tmp_path: Path) -> None:
    (tmp_path / "accounts.toml").write_text(
        "".join(
            f'[{name}]\ncredential_env = "KEY"\nsafety_key_env = "SAFETY"\n{more}'
            for name, more in (
                ("openai", ""), ("anthropic", ""), ("gemini", ""),
                ("azure", 'origins = ["https://ours.openai.azure.com"]\n'),
            )
        )
    )  # fmt: skip
    read = UpstreamAccounts.read(tmp_path / "accounts.toml", {"KEY": "sk-1", "SAFETY": "s-1"})
    accounts = {each.name: each for each in read.accounts}
    body = b'{"n": 1.50 ,"safety_identifier":"mine","metadata":{"a":"b","user_id":"m"}}'
    seen = set()
    for vendor in ("openai", "azure", "anthropic"):
        for person in ("alice", "bob", "alice"):
            changed = with_safety_identifier(accounts[vendor], body, person)
            assert b"1.50" in changed, "numbers stay as they are written"
            found = json.loads(changed)
            own = found["safety_identifier"]
            if vendor == "anthropic":
                assert own == "mine"
                own = found["metadata"]["user_id"]
            assert len(own) == 64
            assert person not in own
            seen.add(own)
            assert found["metadata"]["a"] == "b"
    assert len(seen) == 2
    assert with_safety_identifier(accounts["gemini"], body, "alice") == body
    bare = with_safety_identifier(accounts["anthropic"], b'{"metadata": null}', "alice")
    assert len(json.loads(bare)["metadata"]["user_id"]) == 64


def test_the_vendor_gets_the_person_of_the_key(
    gateway: Gateway, upstream: RecordingVendor, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(CANARY)
    (tmp_path / "safety").write_text("hush-hush")
    (tmp_path / "accounts.toml").write_text(
        f'[openai]\norigins = ["{upstream.url}"]\ncredential_file = "key"\n'
        'safety_key_file = "safety"\n'
    )
    operator = operator_of(gateway, gateway.organisation_id)
    made = operator.create_key_full("proxy", role="proxy", every_organisation=True)
    settings = {"GUARD_API_URL": gateway.base_url, "GUARD_API_KEY": made["api_key"]}
    admin = Caller.of(gateway).admin
    with serving("--accounts", str(tmp_path / "accounts.toml"), **settings) as (url, _):
        for person in ("alice", "alice", "bob"):
            key = admin.create_key("laptop", person=person)
            httpx.post(f"{url}/openai/v1/chat/completions", json=CHAT, timeout=WAIT_S,
                       headers={"authorization": f"Bearer {key}"}).raise_for_status()  # fmt: skip
    told = [json.loads(each.body)["safety_identifier"] for each in upstream.requests]
    assert told[0] == told[1] != told[2]


def test_the_models_are_those_that_the_key_may_use(
    custodian: Custodian, gateway: Gateway, upstream: RecordingVendor
) -> None:
    caller = Caller.of(gateway)
    caller.admin.set_policy("few", models_allow=["gpt-4o-mini*", "claude-*", "gemini-2.5-*", "own"],
                            models_block=["claude-*haiku*"])  # fmt: skip
    caller.admin.set_price("own", provider="openai", input_per_mtok=1, output_per_mtok=1)
    url, key = custodian.url, caller.key
    with openai.OpenAI(base_url=f"{url}/openai/v1", api_key=key, max_retries=0) as client:
        found = [each.id for each in client.models.list()]
    assert {"gpt-4o-mini", "own"} <= set(found)
    assert not {"gpt-4o", "o3", "gpt-5"} & {*found}
    with anthropic.Anthropic(base_url=f"{url}/anthropic", api_key=key, max_retries=0) as messages:
        found = [each.id for each in messages.models.list()]
    assert "claude-sonnet-4-5" in found
    assert not [each for each in found if "haiku" in each]
    google = genai.Client(api_key=key, http_options={"base_url": f"{url}/gemini"})
    names = [str(each.name) for each in google.models.list()]
    assert "models/gemini-2.5-flash" in names
    assert not [each for each in names if "gemini-2.0" in each]
    assert not upstream.requests
    with (
        openai.OpenAI(base_url=f"{url}/openai/v1", api_key="gdk_no", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


AZURE = "/azure/ours.openai.azure.com/openai/deployments/gpt-4o/chat/completions"


@pytest.mark.parametrize(
    ("path", "passes"),
    [
        (f"{AZURE}?api-version=2024-10-21", True),
        ("/azure/ours/openai/v1/chat/completions", True),
        ("/azure/theirs.openai.azure.com/openai/v1/chat/completions", False),
        ("/azure/ours.services.ai.azure.com/openai/v1/chat/completions", False),
        ("/azure/ours/openai/files?api-version=2024-10-21", False),
        ("/azure/ours/openai/v1/responses/resp_1", False),
    ],
)
def test_azure_gets_the_key_at_its_own_resource_alone(
    path: str, passes: bool, tmp_path: Path
) -> None:
    (tmp_path / "accounts.toml").write_text(
        '[azure]\norigins = ["https://ours.openai.azure.com"]\ncredential_env = "KEY"\n'
    )
    custody = Custody(UpstreamAccounts.read(tmp_path / "accounts.toml", {"KEY": CANARY}))
    raw, _, query = path.partition("?")
    destination = Upstreams().find(raw.encode(), query.encode())
    caller: Any = SimpleNamespace(organisation_id="o", team="", identity="k")
    headers = [(b"api-key", b"gdk_1"), (b"authorization", b"Bearer gdk_1"), JSON_BYTES]
    if not passes:
        with pytest.raises(NotPassedError):
            custody.passage("POST", destination, headers, caller)
        return
    sent = custody.passage("POST", destination, headers, caller)
    assert [pair for pair in sent.headers if b"key" in pair[0] or b"auth" in pair[0]] == [
        (b"api-key", CANARY.encode())
    ]
    assert sent.destination.origin == "https://ours.openai.azure.com"


WRONG = {
    "": "names no account",
    "[openai]\n": "credential_file or credential_env",
    '[openai]\ncredential_env = "NONE"\n': "NONE has no vendor's key",
    '[openai]\ncredential_file = "absent"\n': "No such file",
    '[openai]\ncredential_env = "PLAN"\n': "the token of a subscription",
    '[own]\ncredential_env = "KEY"\n': "vendor is one of",
    '[azure]\ncredential_env = "KEY"\n': "origins says",
    '[codex]\ncredential_env = "KEY"\n': "the token of a person",
    '[openai]\ncredential_env = "KEY"\norigins = ["http://llm.example"]\n': "in the clear",
    '[openai]\ncredential_env = "KEY"\norigins = ["https://a.example/v1"]\n': "more than a host",
    '[openai]\ncredential_env = "KEY"\norigins = ["https://a.example", "https://b.example"]\n':
        "has one address",
    '[openai]\ncredential_env = "KEY"\nshared = false\n': "needs keys",
    '[openai]\ncredential_env = "KEY"\nsecret = "x"\n': "secret is none of",
    "[openai\n": "accounts.toml",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_one_sentence(text: str, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from guard.proxy.command import serve

    file = tmp_path / "accounts.toml"
    file.write_text(text)
    done = CliRunner().invoke(
        serve, ["--accounts", str(file)], env={"KEY": "sk-1", "PLAN": "sk-ant-oat01-x", "NONE": ""}
    )
    assert done.exit_code == 2
    assert WRONG[text] in " ".join(done.stderr.split())
    assert "sk-ant-oat01-x" not in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--local",), "--local has none"),
        (("--allow-unseen",), "leave out --allow-unseen"),
        (("--upstream", "openai=https://llm.example"), "the origins in that file"),
    ],
)
def test_what_excludes_it_is_said(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from guard.proxy.command import serve

    file = tmp_path / "accounts.toml"
    file.write_text('[openai]\ncredential_env = "KEY"\n')
    done = CliRunner().invoke(serve, ["--accounts", str(file), *words], env={"KEY": "sk-1"})
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
