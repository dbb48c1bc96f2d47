"""LLM requests that are not metered are named, with counts; look-alikes of paths are known."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import httpcore
import httpx
import pytest
import requests

import guard
from guard.core.usage import find_endpoint
from tests.guard.instrumentation.conftest import Observed
from tests.guard.instrumentation.fake_gate import FakeGate
from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.waiting import WAIT_S

CHAT = "/v1/chat/completions"
ASK = {"model": "gpt-5", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("host", "path", "like"),
    [
        ("api.openai.com", "/v1/chat/completions/", "/v1/chat/completions"),
        ("api.openai.com", "//v1//chat/completions", "/v1/chat/completions"),
        ("api.openai.com", "/v1/responses/", "/v1/responses"),
        ("api.anthropic.com", "/v1/messages/", "/v1/messages"),
        ("llm.example.com", "/v1/chat/completions/", "/v1/chat/completions"),
        ("generativelanguage.googleapis.com", "/v1beta/models/gemini-2.5-pro:generateContent/",
         "/v1beta/models/gemini-2.5-pro:generateContent"),
    ],
)  # fmt: skip
def test_slashes_make_no_difference(host: str, path: str, like: str) -> None:
    found, known = find_endpoint("POST", host, path), find_endpoint("POST", host, like)
    assert found is not None
    assert known is not None
    assert type(found.format) is type(known.format)
    assert (found.certain, found.asks, found.is_unlisted) == (True, True, False)


@pytest.mark.parametrize("path", ["/llm/chat", "/api/llm/generate", "/genai/complete/"])
def test_paths_of_gateways_are_looked_at(path: str) -> None:
    found = find_endpoint("POST", "gateway.example.com", path)
    assert found is not None
    assert (found.asks, found.certain) == (True, False), "the body decides"


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("api.openai.com", "/v1/batches"),
        ("api.openai.com", "/v1/fine_tuning/jobs"),
        ("api.groq.com", "/openai/v1/audio/speech"),
        ("api.openai.com", "/v9/dreams/generate"),
        ("api.mistral.ai", "/v1/batch/jobs"),
    ],
)
def test_what_is_charged_by_something_else_is_named(host: str, path: str) -> None:
    found = find_endpoint("POST", host, path)
    assert found is not None
    assert found.is_unlisted


FORM = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
JOBS: dict[str, tuple[str, Any]] = {
    "speech": ("/v1/audio/speech", {"model": "gpt-4o-mini-tts", "input": "hi", "voice": "ash"}),
    "speech by its characters": ("/v1/audio/speech", {"model": "tts-1", "input": "hi"}),
    "a video": ("/openai/v1/videos", {"model": "sora-2", "prompt": "a cat"}),
    "a video by a form": (
        "/v1/videos", FORM % (b"model", b"sora-2") + FORM % (b"prompt", b"a cat") + b"--x--\r\n",
    ),
    "a batch": ("/v1/batches", {"input_file_id": "f", "endpoint": "/v1/chat/completions"}),
    "a batch of Gemini's": (
        "/v1beta/models/gemini-2.5-pro:batchGenerateContent",
        {"batch": {"input_config": {"file_name": "files/1"}}},
    ),
    "tuning": ("/v1/fine_tuning/jobs", {"model": "gpt-4o-mini", "training_file": "f"}),
}  # fmt: skip
UNPRICED = ("speech", "a batch", "tuning")
"""The others are held and charged at known prices."""
OTHERS: dict[str, tuple[str, Any]] = {
    "a car's": ("/api/videos", {"model": "roadster", "title": "fast"}),
    "of a bakery": ("/v1/batches", {"size": 40}),
    "no body": ("/v1/videos", None),
}


class TestJobsAtOtherHosts:
    """A proxy of a vendor's has any name: what its body shows to be an LLM's is held there too."""

    @pytest.mark.parametrize("name", [*JOBS, *OTHERS])
    def test_they_are_held_where_they_are_of_an_llm(
        self, standin: StandIn, gate: FakeGate, gated: Observed, name: str
    ) -> None:
        path, body = (JOBS | OTHERS)[name]
        standin.instead = Reply(None, encoded({"id": "job_1", "status": "queued"}))
        post(standin.url + path, body)
        assert len(gate.holds) == (name in JOBS)
        named = dict(gated.instrumentation.unseen.counts())
        assert named == ({f"127.0.0.1{path}": 1} if name in UNPRICED else {})
        assert gated.instrumentation.failures == 0
        assert [each["host"] for each in gated.told] == ["127.0.0.1"] * (name in UNPRICED)

    @pytest.mark.parametrize("name", JOBS)
    def test_they_are_named_without_a_gate(
        self, standin: StandIn, observed: Observed, name: str
    ) -> None:
        path, body = JOBS[name]
        post(standin.url + path, body)
        assert len(observed.instrumentation.unseen.counts()) == (name in UNPRICED)

    def test_those_without_a_number_are_refused_but_for_models_of_ones_own(
        self, standin: StandIn, tenant: Any, start: Callable[..., guard.GuardRuntime]
    ) -> None:
        tenant.admin.set_budget(scope_kind="workflow", scope_id="w", limit_nanousd=10**9)
        standin.instead = Reply(None, b"sound", content_type="audio/mpeg")
        start()
        url = standin.url + "/v1/audio/speech"
        with guard.workflow("w"):
            httpx.post(url, json={"model": "kokoro", "input": "hi"})
        with pytest.raises(guard.GuardBlockedException, match="speech"), guard.workflow("w"):
            httpx.post(url, json={"model": "gpt-4o-mini-tts", "input": "hi"})
        assert len(standin.bodies) == 1


def post(url: str, body: Any) -> None:
    if isinstance(body, bytes):
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        httpx.post(url, content=body, headers=headers)
    else:
        httpx.post(url, json=body)


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches/b_1/cancel", "/v1/moderations"])
def test_what_is_free_is_not_named(path: str) -> None:
    found = find_endpoint("POST", "api.openai.com", path)
    assert found is not None
    assert not found.is_unlisted


def by_urllib(url: str) -> None:
    request = urllib.request.Request(url + CHAT + "?key=secret", json.dumps(ASK).encode())
    with urllib.request.urlopen(request) as answer:
        answer.read()


def by_http_client(url: str) -> None:
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    connection.request("POST", CHAT, json.dumps(ASK))
    connection.getresponse().read()
    connection.close()


def by_a_connection_of_httpcores(url: str) -> None:
    origin = httpcore.URL(url).origin
    with httpcore.HTTPConnection(origin) as connection:
        headers = {"Host": "x", "Content-Type": "application/json"}
        connection.request("POST", url + CHAT + "?key=secret", headers=headers,
                           content=json.dumps(ASK).encode())  # fmt: skip


@pytest.mark.parametrize("send", [by_urllib, by_http_client, by_a_connection_of_httpcores])
def test_what_sends_below_every_hook_is_named(
    standin: StandIn,
    runtime: guard.GuardRuntime,
    caplog: pytest.LogCaptureFixture,
    send: Callable[[str], Any],
) -> None:
    send(standin.url)
    send(standin.url)
    assert guard.status().unseen_requests == ((f"127.0.0.1{CHAT}", 2),)
    said = [record.message for record in caplog.records if "is not metered" in record.message]
    assert len(said) == 1
    assert "secret" not in said[0]
    assert "httpx" in said[0] or "without a pool" in said[0]
    guard.uninstrument()
    send(standin.url)
    assert guard.status().unseen_requests == ((f"127.0.0.1{CHAT}", 2),)


def test_clients_that_are_metered_are_not_named(
    standin: StandIn, runtime: guard.GuardRuntime
) -> None:
    requests.post(standin.url + CHAT, json=ASK, timeout=60)
    httpx.post(standin.url + CHAT, json=ASK)
    requests.get(standin.url, timeout=60)
    with urllib.request.urlopen(standin.url + "/v1/models") as answer:
        answer.read()
    assert guard.status().unseen_requests == ()


def test_the_gateway_is_told_once_of_a_host_that_is_not_metered(
    standin: StandIn, tenant: Any, start: Callable[..., guard.GuardRuntime]
) -> None:
    standin.instead = Reply(None, encoded({"id": "job_1", "status": "queued"}))
    start()
    with guard.workflow("w"):
        for _ in range(2):
            httpx.post(standin.url + "/v1/batches", json=JOBS["a batch"][1])
    guard.shutdown(WAIT_S)
    (told,) = [e for e in tenant.admin.events() if e["type"] == "sdk.unseen"]
    assert (told["workflow_id"], told["data"]["host"]) == ("w", "127.0.0.1")
    assert "price" in told["data"]["why"]
