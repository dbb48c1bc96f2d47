"""LLM requests that are not metered are named, with counts; look-alikes of paths are known."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests

import guard
from guard.core.usage import find_endpoint
from tests.guard.instrumentation.standin.server import StandIn

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


@pytest.mark.parametrize("send", [by_urllib, by_http_client])
def test_the_standard_librarys_requests_are_named(
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
    assert "httpx, requests and aiohttp are metered" in said[0]
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
