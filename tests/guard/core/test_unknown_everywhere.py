"""Whatever is unknown in a request of any format is dear, refused with the reason, or named."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import brotli
import pytest
import zstandard

from guard.core.bounds import InputRatios, bound_of
from guard.core.request_bound import RequestBound
from guard.core.usage.decoding import plain_body
from guard.core.usage.vendors import find_endpoint
from guard.core.vendors import VENDORS
from guard.core.vendors.bodies import FORMATS

Body = dict[str, Any]
Path = tuple[Any, ...]

OWN: Final = {"own": {"n": {"max": 3}}}
"""What is the caller's own JSON: nothing in it says anything to the vendor."""

OPENAI, GOOGLE = "api.openai.com", "generativelanguage.googleapis.com"
BEDROCK: Final = "bedrock-runtime.us-east-1.amazonaws.com"
VERTEX: Final = "us-central1-aiplatform.googleapis.com"
PREDICT: Final = "/v1/projects/p/locations/us/publishers/google/models/imagen-4.0-generate-001"

SENT: Final[dict[str, tuple[str, str, Body]]] = {
    "chat": (OPENAI, "/v1/chat/completions", {
        "model": "gpt-5", "max_tokens": 100, "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": OWN}}],
        "response_format": {"type": "json_schema", "json_schema": OWN},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "tool_calls": [
                {"type": "function", "id": "i", "function": {"name": "f", "arguments": "{}"}},
            ]},
        ],
    }),
    "responses": (OPENAI, "/v1/responses", {
        "model": "gpt-5", "max_output_tokens": 100, "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": OWN}},
        "tools": [{"type": "function", "name": "f", "parameters": OWN}], "metadata": OWN,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
    }),
    "messages": ("api.anthropic.com", "/v1/messages", {
        "model": "claude-opus-5", "max_tokens": 100, "thinking": {"type": "adaptive"},
        "tools": [{"name": "f", "input_schema": OWN}], "metadata": OWN,
        "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "i", "name": "f", "input": OWN},
            ]},
        ],
    }),
    "gemini": (GOOGLE, "/v1beta/models/gemini-3-pro:generateContent", {
        "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
        "systemInstruction": {"parts": [{"text": "be kind"}]}, "toolConfig": {},
        "generationConfig": {"maxOutputTokens": 100, "thinkingConfig": {"thinkingBudget": 9}},
        "tools": [{"functionDeclarations": [OWN]}],
        "safetySettings": [{"category": "c", "threshold": "t"}],
    }),
    "interactions": (GOOGLE, "/v1beta/interactions", {
        "model": "gemini-3-pro", "input": "hello", "labels": OWN,
        "generation_config": {"max_output_tokens": 100},
        "tools": [{"type": "function", "name": "f", "parameters": OWN}],
    }),
    "converse": (BEDROCK, "/model/anthropic.claude-opus-5/converse", {
        "messages": [{"role": "user", "content": [{"text": "hello"}]}],
        "system": [{"text": "be kind"}], "inferenceConfig": {"maxTokens": 100},
        "additionalModelRequestFields": {"thinking": {"type": "disabled"}},
        "toolConfig": {"tools": [{"toolSpec": OWN}]}, "serviceTier": {"type": "default"},
    }),
    "invoke": (BEDROCK, "/model/amazon.nova-pro-v1:0/invoke", {
        "messages": [{"role": "user", "content": [{"text": "hello"}]}],
        "inferenceConfig": {"maxTokens": 100}, "toolConfig": {"tools": [{"toolSpec": OWN}]},
        "tools": [{"type": "function", "function": OWN}],
    }),
    "invoke, Anthropic's": (BEDROCK, "/model/anthropic.claude-opus-5/invoke", {
        "anthropic_version": "bedrock-2023-05-31", "max_tokens": 100,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "tools": [{"type": "custom", "name": "f", "input_schema": OWN}],
    }),
    "cohere": ("api.cohere.com", "/v2/chat", {
        "model": "command-a-03-2025", "max_tokens": 100, "thinking": {"type": "disabled"},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": OWN}}],
    }),
    "cohere, embed": ("api.cohere.com", "/v2/embed", {
        "model": "embed-v4.0", "input_type": "search_query", "texts": ["a"],
    }),
    "ollama": ("ollama.com", "/api/chat", {
        "model": "gpt-oss:120b", "options": {"num_predict": 100},
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [{"type": "function", "function": OWN}],
    }),
    "embeddings": (OPENAI, "/v1/embeddings", {
        "model": "text-embedding-3-small", "input": ["a", "b"],
    }),
    "embeddings, Google's": (GOOGLE, "/v1beta/models/gemini-embedding-001:batchEmbedContents", {
        "requests": [OWN],
    }),
    "images": (OPENAI, "/v1/images/generations", {"model": "gpt-image-1", "prompt": "a cat"}),
    "images by the piece": (OPENAI, "/v1/images/generations", {
        "model": "dall-e-3", "prompt": "a cat", "quality": "hd",
    }),
    "sound, spoken": (OPENAI, "/v1/audio/speech", {
        "model": "tts-1", "input": "hello", "voice": {"id": "v"},
    }),
    "sound, written": (OPENAI, "/v1/audio/transcriptions", {
        "model": "whisper-1", "chunking_strategy": {"type": "server_vad"},
    }),
    "videos": (OPENAI, "/v1/videos", {"model": "sora-2", "prompt": "a cat", "seconds": "4"}),
    "predict": (VERTEX, f"{PREDICT}:predict", {
        "instances": [{"prompt": "a cat"}], "parameters": {"sampleCount": 2},
    }),
    "runs": (OPENAI, "/v1/threads/t/runs", {
        "assistant_id": "a", "model": "gpt-5", "max_completion_tokens": 100,
        "tools": [{"type": "function", "function": OWN}],
    }),
}  # fmt: skip

NAMED_TOOLS: Final = {
    "gemini": ("tools", 0), "converse": ("toolConfig", "tools", 0),
    "invoke": ("toolConfig", "tools", 0),
}  # fmt: skip
"""Where each member of an object is a tool."""

TOOLS: Final = {
    kind: ("tools", 0)
    for kind, (_, _, body) in SENT.items()
    if "tools" in body and kind not in NAMED_TOOLS
}
BLOCKS: Final = {
    "chat": ("messages", 0, "content", 0), "responses": ("input", 0, "content", 0),
    "messages": ("messages", 0, "content", 0), "cohere": ("messages", 0, "content", 0),
    "invoke, Anthropic's": ("messages", 0, "content", 0),
}  # fmt: skip
FORMS: Final = {
    "images": "/v1/images/edits", "images by the piece": "/v1/images/edits",
    "sound, written": "/v1/audio/transcriptions",
}  # fmt: skip

COSTLY: Final = (
    "model", "max_searches", "token_budget_extra", "cache_depth", "n_best", "tier_name",
    "maxRounds", "agent_pool", "session_ref", "thread_key", "file_bundle", "source_url", "fileIds",
    "tool_sets", "fallback_list", "candidate_total", "previous_turn_id", "subagents",
)  # fmt: skip
HARMLESS: Final = (
    "theme", "locale", "colour_scheme", "is_polite", "x_trace", "userProfile", "mood",
)  # fmt: skip
SEED: Final = os.environ.get("GUARD_TEST_DRAW", "")
"""Each run of the tests goes through other cases; the report says how to draw the same again."""


def bound(
    kind: str, body: Body | bytes, *trusted: str, host: str = "", path: str = ""
) -> RequestBound:
    known, usual, _ = SENT[kind]
    endpoint = find_endpoint("POST", host or known, path or usual)
    assert endpoint is not None, kind
    names = frozenset(trusted) if endpoint.is_vendors else None
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return bound_of(endpoint.format, path or usual, data, InputRatios(), names)


def objects(node: Any, path: Path = ()) -> Iterator[tuple[Path, bool]]:
    """Yield where a body has objects, and whether one is the caller's own."""
    if isinstance(node, dict):
        yield path, "own" in path or "own" in node
    for name, each in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(each, dict | list):
            yield from objects(each, (*path, name))


def put(body: Body, path: Path, name: str, value: Any) -> Body:
    changed = copy.deepcopy(body)
    node: Any = changed
    for each in path:
        node = node[each]
    node[name] = value
    return changed


def costly_value(rng: random.Random) -> tuple[Any, int]:
    """Return a value, and how many answers it may ask for."""
    number = rng.choice((1, 2, 7, 40))
    return rng.choice((
        lambda: (number, number), lambda: ("often", 1), lambda: (True, 1), lambda: (0.5, 1),
        lambda: ([number, 1], number), lambda: ({"inner": {"deep": number}}, number),
        lambda: ([{"a": [number]}], number),
    ))()  # fmt: skip


def harmless_value(rng: random.Random) -> Any:
    return rng.choice((7, "soft", True, 0.5, {"shade": "dark", "inner": {"hue": 3}}))


def odd_name(rng: random.Random) -> str:
    name = rng.choice(HARMLESS)
    return rng.choice((name, f"{name}_{rng.randrange(1000)}", name.upper(), f"x-{name}"))


def form(fields: Body) -> bytes:
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
        if not isinstance(value, dict | list)
    ]
    parts.append(
        '--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nRIFF\r\n--x--\r\n'
    )
    return "".join(parts).encode()


class Changed:
    """One request with something unknown in it, and what that may cost.

    Attributes:
        body: the request's body.
        what: ``dear``, ``opens``, ``harmless`` or ``own``.
        label: how what is unknown is named.
        most: how many answers it may ask for.
    """

    def __init__(self, rng: random.Random, number: int) -> None:
        self.kind = rng.choice(list(SENT))
        said = SENT[self.kind][2]
        self.most, self.label, self.path = 1, "", ""
        places = list(objects(said))
        choice = number % 6
        if choice == 0 and self.kind in TOOLS:
            self.what = "opens"
            word = f"{rng.choice(('orbit', 'lens', 'memory_search', 'bash_helper'))}_{number}"
            self.body: Body | bytes = put(said, TOOLS[self.kind], "type", word)
            self.label = f"tool:{word}"
            return
        if choice == 1 and self.kind in BLOCKS:
            self.what, self.label = "opens", f"block:file_{number}"
            self.body = put(said, BLOCKS[self.kind], "type", f"file_{number}")
            return
        if choice == 1 and self.kind in NAMED_TOOLS:
            word = f"{rng.choice(('orbit', 'theme', 'maxSearch'))}{number}"
            self.what, self.label = "opens", f"tool:{word}"
            self.body = put(said, NAMED_TOOLS[self.kind], word, {})
            return
        if choice == 2 and self.kind in FORMS:
            self.what, self.path = "dear", FORMS[self.kind]
            name, self.most = f"{rng.choice(COSTLY)}_{number}", rng.choice((1, 2, 7, 40))
            self.label = f"member:{name}"
            self.body = form({**said, name: self.most})
            self.most = 1 if "token" in name else self.most
            return
        place, is_own = rng.choice(places)
        if NAMED_TOOLS.get(self.kind) == place:
            place, is_own = (), False
        if is_own:
            self.what = "own"
            self.body = put(said, place, rng.choice(COSTLY), {"model": "gpt-5-pro", "n": 90})
        elif choice == 3:
            self.what, name = "harmless", odd_name(rng)
            self.label = name
            self.body = put(said, place, name, harmless_value(rng))
        elif choice == 4:
            self.what, name = "dear", odd_name(rng)
            self.label = name
            named = rng.choice((["a"], "gpt-5-pro", {"by": "claude-x-1"}))
            self.body = put(said, place, name, named)
        else:
            self.what, name = "dear", f"{rng.choice(COSTLY)}_{number}"
            value, self.most = costly_value(rng)
            self.most = 1 if "token" in name else self.most
            self.label = name
            self.body = put(said, place, name, value)


def base_of(changed: Changed) -> RequestBound:
    body = SENT[changed.kind][2]
    data = form(body) if isinstance(changed.body, bytes) else body
    return bound(changed.kind, data, path=changed.path)


def check(changed: Changed, found: RequestBound, plain: RequestBound) -> None:
    assert not found.unnumbered or plain.unnumbered, changed.body
    if changed.what in ("harmless", "own"):
        assert found.unknown == ()
        assert len(found.unjudged) == (changed.what == "harmless")
        assert found.output_tokens == plain.output_tokens
        assert (found.input_tokens is None) is (plain.input_tokens is None)
        assert found.fees == plain.fees
        return
    assert len(found.unknown) == 1, (changed.kind, changed.body, found)
    assert found.unknown[0].endswith(changed.label[:40])
    assert found.input_tokens is None
    if changed.what == "opens":
        assert found.output_tokens == plain.output_tokens
        return
    assert found.output_tokens is found.least_output is None
    assert found.answers >= changed.most * plain.answers
    for line, units in (plain.fees or {}).items():
        assert (found.fees or {})[line] >= units * changed.most, (changed.body, found)


def test_every_format_with_facts_has_requests_here() -> None:
    # Answers of realtime sessions have no request of their own: tests/guard/instrumentation.
    formats = set(FORMATS) - {"realtime"}
    assert {kind.partition(",")[0].partition(" ")[0] for kind in SENT} == formats
    for kind, (_, _, body) in SENT.items():
        found = bound(kind, body)
        assert (found.unknown, found.unjudged) == ((), ()), kind


@pytest.mark.generator("unknown members, tool types and blocks of bodies in all formats")
def test_what_is_unknown_in_a_body_is_dear_or_neutral_and_named(
    count_cases: Callable[[int], None],
) -> None:
    rng, cases = random.Random(f"bodies {SEED}"), 7000
    for number in range(cases):
        changed = Changed(rng, number)
        plain, found = base_of(changed), bound(changed.kind, changed.body, path=changed.path)
        check(changed, found, plain)
        # Trusted, it is as if it were not there; and at a host that is no vendor's, it is neutral.
        names = (*found.unknown, *found.unjudged)
        trusted = bound(changed.kind, changed.body, *names, path=changed.path)
        assert trusted.unknown == trusted.unjudged == ()
        assert trusted.output_tokens == plain.output_tokens
        assert (trusted.input_tokens is None) is (plain.input_tokens is None)
        assert trusted.fees == plain.fees
        if find_endpoint("POST", "llm.example", SENT[changed.kind][1]) is not None:
            own = bound(changed.kind, changed.body, host="llm.example", path=changed.path)
            assert own.unknown == own.unjudged == ()
    count_cases(cases)


PACKED: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress,
    "zstd": lambda body: zstandard.compress(body), "": lambda body: body,
    "gzip, br": lambda body: brotli.compress(gzip.compress(body)),
    "orbit": lambda body: body[::-1], "br, orbit": brotli.compress,
}  # fmt: skip
CODED: Final = (
    "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "utf-7",
    "cp037", "latin-1",
)  # fmt: skip


@pytest.mark.generator("what is unknown in bodies of all encodings")
def test_no_encoding_hides_what_is_unknown(count_cases: Callable[[int], None]) -> None:
    rng, cases = random.Random(f"encodings {SEED}"), 1500
    for number in range(cases):
        changed = Changed(rng, number * 6 + 5)
        text = json.dumps(changed.body)
        packing = rng.choice(list(PACKED))
        coding = "utf-8" if packing and rng.random() < 0.5 else rng.choice(CODED)
        sent = PACKED[packing](text.encode(coding))
        found = bound(changed.kind, plain_body(sent, packing))
        if not found.unnumbered:
            check(changed, found, base_of(changed))
    count_cases(cases)


WHOLE: Final = [
    *(host for each in VENDORS.values() for host in each.hosts),
    *(f"x{ending}" for each in VENDORS.values() for ending in each.endings),
]  # fmt: skip


@pytest.mark.generator("unknown paths of all vendors' hosts")
def test_what_is_unknown_of_a_vendors_paths_does_not_pass(
    count_cases: Callable[[int], None],
) -> None:
    rng, cases = random.Random(f"paths {SEED}"), 1500
    words = ("search", "models", "agents", "runs", "files", "chat", "responses", "batches", "x-1")
    for number in range(cases):
        host = rng.choice(WHOLE)
        host = rng.choice((host, host, f"{host}.", host.upper()))
        before = rng.choice(("", "/v1", "/v2", "/api", "/v1beta", "/openai/v1"))
        rest = "/".join(rng.choice(words) for _ in range(rng.randrange(4)))
        path = f"{before}/orbit{number}/{rest}"
        method = rng.choice(("POST", "POST", "PUT", "PATCH"))
        endpoint = find_endpoint(method, host, path)
        assert endpoint is not None, (method, host, path)
        assert endpoint.is_unknown or endpoint.asks, (method, host, path)
        assert endpoint.is_unknown or method == "POST"
    count_cases(cases)
