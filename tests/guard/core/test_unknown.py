"""What nobody has judged in a request's body costs its bound or changes nothing, and is named."""

from __future__ import annotations

import asyncio
import functools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest

from guard.core.bounds import InputRatios, bound_of
from guard.core.bounds.unknown import find_unknown
from guard.core.request_bound import RequestBound, said_unknown
from guard.core.usage.vendors import find_endpoint
from guard.core.vendors.bodies import BodyPart, body_of
from tests.support import sdk_facts

Body = dict[str, Any]
TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"n": {"max": 3}}}}
PLAIN: Final[dict[str, tuple[str, str, Body]]] = {
    "chat": ("api.openai.com", "/v1/chat/completions", {
        "model": "gpt-5", "max_tokens": 100, "stream": True,
        "stream_options": {"include_usage": True}, "tools": [TOOL],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    }),
    "responses": ("api.openai.com", "/v1/responses", {
        "model": "gpt-5", "max_output_tokens": 100, "reasoning": {"effort": "low"},
        "tools": [{"type": "function", "name": "f", "parameters": {"n": {"max": 3}}}],
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
    }),
    "messages": ("api.anthropic.com", "/v1/messages", {
        "model": "claude-opus-5", "max_tokens": 100, "thinking": {"type": "adaptive"},
        "tools": [{"name": "f", "input_schema": {"n": {"max": 3}}}],
        "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    }),
}  # fmt: skip
RECORDED: Final = json.loads((Path(__file__).parent / "agent_bodies.json").read_text())


def bound(kind: str, body: Body, *trusted: str, host: str | None = None) -> RequestBound:
    known, path, _ = PLAIN[kind]
    endpoint = find_endpoint("POST", host or known, path)
    assert endpoint is not None
    names = frozenset(trusted) if endpoint.is_vendors else None
    return bound_of(endpoint.format, path, json.dumps(body).encode(), InputRatios(), names)


DEAR: Final = {"converse": ["member:guardrailConfig"]}
"""What is left dear: Amazon charges guardrails by the text that they read, whose price is not known
here."""


@pytest.mark.parametrize("kind", sdk_facts.SDK)
def test_all_that_a_vendors_client_can_say_is_judged(kind: str) -> None:
    """A newer client may bring further members: judge them, in the vendor's facts file."""
    assert sdk_facts.unjudged(kind) == DEAR.get(kind, [])


def test_what_nobody_judges_of_a_client_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def emptied(kind: str) -> BodyPart:
        place = body_of(kind)
        del place.known["max_output_tokens"]
        tools = place.known["tools"]
        assert tools is not None
        tools.vendor -= {"web_search"}
        return place

    monkeypatch.setattr(sdk_facts, "body_of", emptied)
    assert sdk_facts.unjudged("responses") == [
        "member:max_output_tokens", "tool:web_search", "tool:web_search_2025_08_26",
    ]  # fmt: skip
    paths = sdk_facts.unjudged_paths("openai")
    assert not any(path.endswith(("/chat/completions", "/v1/responses")) for path in paths)
    assert sdk_facts._is_unknown("api.openai.com", "/v1/of/the/day/after/{id}")


def test_each_judgement_says_where_it_is_from() -> None:
    from guard.core.vendors.bodies import _files

    groups = [group for file in _files() for kind in file.values() for group in kind]
    assert len(groups) > 50
    for group in groups:
        assert group["source"], group
        assert group["date"].year >= 2026, group


def test_nothing_raises_whatever_a_body_is() -> None:
    rng = random.Random(7)

    def value(depth: int) -> Any:
        kind = rng.randrange(7 if depth < 4 else 4)
        if kind > 4:
            names = ("type", "tools", "messages", "input", "model", "n", "function", "content")
            return {rng.choice(names): value(depth + 1) for _ in range(rng.randrange(4))}
        if kind == 4:
            return [value(depth + 1) for _ in range(rng.randrange(3))]
        return (None, "text", 3, False)[kind]

    for _ in range(3000):
        for kind, (_, _, body) in PLAIN.items():
            hostile = {n: value(0) for n in ("tools", "messages", "input", "thinking")}
            find_unknown({**body, **hostile}, body_of(kind))


def test_a_known_loop_is_dear_without_a_name() -> None:
    body = PLAIN["messages"][2] | {"fallbacks": "default"}
    found = bound("messages", body)
    assert found.input_tokens is found.output_tokens is None
    assert found.unknown == ()
    assert bound("messages", PLAIN["messages"][2] | {"fallbacks": None}).output_tokens == 100


def test_what_a_newer_agent_sends_is_not_dear() -> None:
    """Codex was held 28 times too high for its tools: with a limit of $0.40 it sent nothing."""
    body = PLAIN["responses"][2]
    tools = [
        {"type": "namespace", "name": "n", "description": "d", "tools": body["tools"]},
        {"type": "tool_search", "execution": "client", "description": "d", "parameters": {}},
        {"type": "local_shell"}, {"type": "custom", "name": "c", "format": {"type": "text"}},
    ]  # fmt: skip
    found = bound("responses", {**body, "tools": tools, "client_metadata": {"session_id": "s"}})
    assert found.unknown == found.unjudged == ()
    assert found.input_tokens is not None
    filters = {"type": "or", "filters": [{"type": "eq", "key": "k", "value": 3}]}
    searching = [{"type": "file_search", "vector_store_ids": ["v"], "filters": filters}]
    found = bound("responses", {**body, "tools": searching})
    assert (found.unknown, found.unjudged, found.input_tokens) == ((), (), None)
    assert bound("responses", {**body, "tools": {"type": "custom"}}).input_tokens is None
    inner = [{**tools[0], "tools": [{"type": "web_search"}]}]
    assert bound("responses", {**body, "tools": inner}).input_tokens is None
    inner = [{**tools[0], "tools": [{"type": "orbit"}]}]
    assert bound("responses", {**body, "tools": inner}).unknown == ("tool:orbit",)


@pytest.mark.parametrize("sent", RECORDED, ids=lambda sent: sent["agent"])
def test_what_agents_send_is_known(sent: dict[str, Any]) -> None:
    """The last request of a bare turn with one call of a tool, its texts shortened."""
    found = bound(sent["kind"], sent["body"])
    assert found.unknown == found.unjudged == ()
    tools = [each for each in sent["body"]["tools"] if each.get("type") != "web_search"]
    found = bound(sent["kind"], {**sent["body"], "tools": tools})
    assert found.input_tokens is not None


def asked_by_clients() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield the kind of a body, and what lets a package of the lock file send it."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def look(place: str) -> str:
        """Look."""
        return place

    for kind, by_responses in (("chat", False), ("responses", True)):
        yield kind, lambda client, by_responses=by_responses: (
            ChatOpenAI(
                model="gpt-5", api_key="none", http_client=client, max_retries=0,
                use_responses_api=by_responses, reasoning_effort="low",
            ).bind_tools([look], tool_choice="look").invoke("hello")
        )  # fmt: skip
    for kind in ("chat", "responses"):
        yield kind, functools.partial(by_agents, kind)


def by_agents(kind: str, client: Any) -> Any:
    import agents

    vendor = openai.AsyncOpenAI(api_key="none", http_client=client, max_retries=0)
    models = {
        "chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel
    }  # fmt: skip
    agents.set_tracing_disabled(True)
    agent = agents.Agent(
        "a",
        instructions="be kind",
        model=models[kind]("gpt-5", vendor),
        tools=[agents.function_tool(lambda place: place, name_override="look")],
    )
    return asyncio.run(agents.Runner.run(agent, "hello"))


@pytest.mark.parametrize("number", range(4))
def test_what_clients_send_is_known(number: int) -> None:
    kind, ask = list(asked_by_clients())[number]
    bodies: list[Body] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(400, json={"error": {"message": "no"}})

    transport = httpx.MockTransport(answer)
    client: Any = (httpx.Client if number < 2 else httpx.AsyncClient)(transport=transport)
    with pytest.raises(openai.BadRequestError):
        ask(client)
    (body,) = bodies
    assert body["tools"]
    found = bound(kind, body)
    assert found.unknown == found.unjudged == ()
    assert found.input_tokens is not None


@pytest.mark.parametrize(
    ("host", "members", "opens"),
    [
        ("api.perplexity.ai", {"search_mode": "web", "search_domain_filter": ["a.example"]}, False),
        ("api.perplexity.ai", {"web_search_options": {"search_type": "pro"}}, True),
        ("api.fireworks.ai", {"prompt_truncate_len": 500, "top_k": 40}, False),
        ("dashscope.aliyuncs.com", {"enable_search": False, "enable_thinking": True}, False),
        ("dashscope.aliyuncs.com", {"enable_search": True}, True),
        ("x.openai.azure.com", {"data_sources": [{"type": "azure_search"}]}, True),
        ("api.groq.com", {"reasoning_format": "parsed", "include_reasoning": True}, False),
        ("api.mistral.ai", {"random_seed": 3, "safe_prompt": True, "prompt_mode": None}, False),
        ("openrouter.ai", {"provider": {"order": ["a"]}, "usage": {"include": True}}, False),
        ("openrouter.ai", {"plugins": [{"id": "web"}]}, True),
        ("api.x.ai", {"search_parameters": {"mode": "auto"}}, True),
    ],
)  # fmt: skip
def test_what_other_vendors_take_is_known(host: str, members: dict[str, Any], opens: bool) -> None:
    found = bound("chat", PLAIN["chat"][2] | members, host=host)
    assert found.unknown == found.unjudged == ()
    assert (found.input_tokens is None) is opens
    assert found.output_tokens == 100


GEMINI: Final = "/v1beta/models/gemini-3-pro:streamGenerateContent"


def gemini(members: Body, *trusted: str) -> RequestBound:
    endpoint = find_endpoint("POST", "generativelanguage.googleapis.com", GEMINI)
    assert endpoint is not None
    body = {
        "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
        "systemInstruction": {"parts": [{"text": "be kind"}]},
        "generationConfig": {"maxOutputTokens": 100, "thinkingConfig": {"thinkingBudget": 9}},
        "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"max": 3}}]}],
    }
    data = json.dumps(body | members).encode()
    return bound_of(endpoint.format, GEMINI, data, InputRatios(), frozenset(trusted))


@pytest.mark.parametrize(
    ("members", "label", "multiplies"),
    [
        ({"tools": [{"orbitSearch": {}}]}, "tool:orbitSearch", False),
        ({"tools": [{"orbit_search": {}}]}, "tool:orbit_search", False),
        ({"subAgents": [3]}, "member:subAgents", True),
        ({"generationConfig": {"maxRounds": 3}}, "member:generationConfig.maxRounds", True),
        ({"contents": [{"parts": [{"text": "a", "sessionRef": "s"}]}]},
         "member:parts.sessionRef", True),
    ],
)  # fmt: skip
def test_gemini_has_names_for_its_tools(members: Body, label: str, multiplies: bool) -> None:
    found = gemini(members)
    assert found.unknown == (label,)
    assert found.input_tokens is None
    assert (found.output_tokens is None) is multiplies
    assert found.answers >= (3 if "3" in str(members) else 1)
    trusted = gemini(members, label)
    assert trusted.unknown == ()
    assert trusted.input_tokens is not None


@pytest.mark.parametrize("name", ["googleSearch", "url_context", "codeExecution"])
def test_gemini_takes_both_spellings(name: str) -> None:
    plain = gemini({})
    assert (plain.unknown, plain.unjudged, plain.output_tokens) == ((), (), 100)
    assert plain.input_tokens is not None
    found = gemini({"tools": [{name: {}}], "safety_settings": [{"category": "c"}]})
    assert (found.unknown, found.unjudged, found.input_tokens) == ((), (), None)
    assert gemini({"cached_content": "cachedContents/1"}).input_tokens is None


def test_a_refusal_says_what_is_unknown_and_what_trusts_it() -> None:
    said = said_unknown(["tool:x", "member:max_rounds"], 1_780_000_000)
    assert said == (
        "would need $1.78: the tool type x and the member max_rounds are not known here; "
        "trust them with --trust tool:x --trust member:max_rounds"
    )
