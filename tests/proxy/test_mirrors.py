"""A vendor is known by its name in the path: its mirrors have its formats, fees and said costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from guard.core.usage.vendors import find_named
from guard.gateway.embedded import Gateway, run_gateway
from guard.proxy.upstreams import Upstreams
from tests.support.raw_upstream import RawAnswer, RawUpstream
from tests.support.run_proxy import RunProxy, run_proxy
from tests.support.waiting import until

OPENROUTER: Final = {"cost": 0.0123}
XAI: Final = {"cost_in_usd_ticks": 123_000_000}
SAID: Final = 12_300_000
"""Both, in nano-dollars: far more than the tokens of these answers would cost."""


@pytest.fixture(scope="module")
def mirrored(
    raw_upstream: RawUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, RunProxy]]:
    vendors = ("openrouter", "custom/x-ai", "openai", "custom/own")
    directory: Path = tmp_path_factory.mktemp("run")
    with (
        run_gateway() as gateway,
        run_proxy(gateway, directory, dict.fromkeys(vendors, raw_upstream.url)) as proxy,
    ):
        yield gateway, proxy


def events(*messages: dict[str, Any]) -> list[bytes]:
    named = [(f"event: {each['type']}\n" if "type" in each else "", each) for each in messages]
    return [f"{name}data: {json.dumps(each)}\n\n".encode() for name, each in named]


def answers_of(shape: str, said: dict[str, Any]) -> tuple[str, dict[str, Any], list[bytes]]:
    """Return the path of a shape, its whole answer, and the same as a stream."""
    if shape == "chat":
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12, **said}
        message = {"role": "assistant", "content": "a"}
        whole = {"id": "1", "object": "chat.completion", "model": "m/gpt-4o", "usage": usage,
                 "choices": [{"index": 0, "message": message}]}  # fmt: skip
        chunk = {**whole, "object": "chat.completion.chunk", "choices": []}
        delta = {**chunk, "choices": [{"index": 0, "delta": {"content": "a"}}]}
        del delta["usage"]
        return "/v1/chat/completions", whole, [*events(delta, chunk), b"data: [DONE]\n\n"]
    usage = {"input_tokens": 9, "output_tokens": 3, **said}
    if shape == "responses":
        usage["total_tokens"] = 12
        whole = {"id": "1", "object": "response", "status": "completed", "model": "m/gpt-4o",
                 "output": [], "usage": usage}  # fmt: skip
        return "/v1/responses", whole, events({"type": "response.completed", "response": whole})
    whole = {"id": "1", "type": "message", "role": "assistant", "model": "m/gpt-4o", "content": [],
             "stop_reason": "end_turn", "usage": usage}  # fmt: skip
    start = {"type": "message_start", "message": {**whole, "stop_reason": None,
             "usage": {"input_tokens": 9, "output_tokens": 1}}}  # fmt: skip
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    return "/v1/messages", whole, events(start, delta, {"type": "message_stop"})


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("shape", ["chat", "responses", "messages"])
@pytest.mark.parametrize("vendor", ["openrouter", "custom/x-ai", "custom/own"])
def test_what_a_mirror_says_of_its_cost_is_charged(
    mirrored: tuple[Gateway, RunProxy],
    raw_upstream: RawUpstream,
    vendor: str,
    shape: str,
    streams: bool,
) -> None:
    gateway, proxy = mirrored
    said = XAI if vendor == "custom/x-ai" else OPENROUTER
    path, whole, parts = answers_of(shape, said)
    kind = b"text/event-stream" if streams else b"application/json"
    body = parts if streams else [json.dumps(whole).encode()]
    raw_upstream.answers.put(RawAnswer(200, [(b"content-type", kind)], body))
    known = {event["event_id"] for event in gateway.admin.events(type="llm")}
    asked = {
        "model": "m/gpt-4o", "max_tokens": 50, "stream": streams,
        "messages": [{"role": "user", "content": "hello"}],
    }  # fmt: skip
    if shape == "responses":
        asked = {"model": "m/gpt-4o", "max_output_tokens": 50, "stream": streams, "input": "hello"}
    prefix = "/api" if vendor == "openrouter" else ""
    answer = httpx.post(f"{proxy.url}/{vendor}{prefix}{path}", json=asked, timeout=60)
    assert answer.status_code == 200
    raw_upstream.requests.get(timeout=60)
    until(lambda: len(gateway.admin.events(type="llm")) > len(known))
    (event,) = (each for each in gateway.admin.events(type="llm") if each["event_id"] not in known)
    provider = {"openrouter": "openrouter", "custom/x-ai": "x-ai"}.get(vendor)
    if provider is None:  # nobody that is known says it
        assert event["data"].get("cost_nanousd") is None
    else:
        assert event["data"]["provider"] == provider
        assert event["cost_nanousd"] == SAID


@pytest.mark.parametrize(
    ("path", "upstream", "provider"),
    [
        (b"/azure/openai/deployments/m/chat/completions", "azure", "azure"),
        (b"/bedrock/model/amazon.nova-pro-v1:0/converse", "bedrock", "aws"),
        (b"/vertex/v1/projects/p/locations/l/publishers/google/models/gemini-3-pro:generateContent",
         "vertex", "google"),
        (b"/groq/openai/v1/chat/completions", "groq", "groq"),
        (b"/mistral/v1/chat/completions", "mistral", "mistral"),
        (b"/custom/deepseek/chat/completions", "custom/deepseek", "deepseek"),
        (b"/openai/v1/chat/completions", "openai", "openai"),
        (b"/custom/own/v1/chat/completions", "custom/own", "openai"),
    ],
)  # fmt: skip
def test_a_mirror_has_its_vendors_format(path: bytes, upstream: str, provider: str) -> None:
    def endpoint(origin: str) -> Any:
        to = Upstreams({upstream: origin}).find(path, b"")
        return find_named("POST", to.host, to.path, to.known_as)

    for origin in ("https://llm.example", "http://127.0.0.1:8000"):
        found = endpoint(origin)
        assert found.format.provider == provider
        assert found.asks
        assert found.is_local == origin.startswith("http:")
        assert not found.is_vendors, "what a body may hold is the server's own"
    # Another vendor that is known by its address is that one.
    assert endpoint("https://openrouter.ai").format.provider in ("openrouter", "aws", "google")
