"""Limits in OpenAI's requests, and those of the many vendors that speak its formats."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from guard.core.bounds.asked import NOTHING, AskedOutput, given, limit, name, run_by_vendor, times

_DEPLOYMENT: Final = re.compile(r"/deployments/([^/]+)/")
_IMAGE_OUTPUT_TOKENS: Final[dict[Any, int]] = {"low": 410, "medium": 1_590, "high": 6_250}
"""The largest of the published sizes, by quality; ``auto`` may be any of them."""

_OWN_CHAT_TOOLS: Final = ("function", "custom")
_OWN_RESPONSES_TOOLS: Final = ("function", "custom", "computer", "local_shell", "apply_patch")


class _Chat(Struct, gc=False):
    model: Any = None
    max_completion_tokens: Any = None
    max_tokens: Any = None
    n: Any = None
    best_of: Any = None
    stream: Any = None
    agent_id: Any = None
    prompt: Raw = NOTHING
    prediction: Raw = NOTHING
    web_search_options: Raw = NOTHING
    search_parameters: Raw = NOTHING
    plugins: Raw = NOTHING
    tools: Raw = NOTHING


_chat: Final = msgspec.json.Decoder(_Chat)
_prompts: Final = msgspec.json.Decoder(list[Raw])


def chat(path: str, body: bytes) -> AskedOutput:
    """Read ``.../chat/completions``, ``.../completions`` and ``.../embeddings``.

    Raises:
        msgspec.DecodeError: the body is not a JSON object.
    """
    said = _chat.decode(body)
    model = name(said.model) or _deployment(path)
    if path.endswith("/embeddings"):
        return AskedOutput(model, 0)
    output = limit(said.max_completion_tokens, said.max_tokens)
    counts: tuple[Any, ...] = (said.n, said.best_of)
    if said.prompt is not NOTHING:
        output = times(times(output, *counts), _prompt_count(said.prompt))
    elif said.n is not None:
        output = times(output, said.n)
    if said.prediction is not NOTHING and output is not None:
        output += len(bytes(said.prediction))  # what is rejected of it is charged as output
    return AskedOutput(
        model,
        output,
        said.stream is True,
        open_ended=(
            said.agent_id is not None
            or given(said.web_search_options)
            or given(said.search_parameters)
            or given(said.plugins)
            or run_by_vendor(said.tools, _OWN_CHAT_TOOLS)
        ),
    )


def _prompt_count(prompt: Raw) -> int:
    """Return how many prompts legacy completions answer: one text or one list of tokens is one."""
    raw = bytes(prompt).lstrip()
    if raw[:1] != b"[":
        return 1
    prompts = _prompts.decode(raw)
    whole = bool(prompts) and bytes(prompts[0])[:1].isdigit()
    return 1 if whole else max(1, len(prompts))


class _Response(Struct, gc=False):
    model: Any = None
    max_output_tokens: Any = None
    stream: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    n: Any = None
    quality: Any = None
    tools: Raw = NOTHING


_response: Final = msgspec.json.Decoder(_Response)


def responses(path: str, body: bytes) -> AskedOutput:
    """Read ``.../responses``, ``.../images/generations``; of uploads, the model only.

    Raises:
        msgspec.DecodeError: the body is not a JSON object.
    """
    said = _response.decode(body)
    model = name(said.model) or _deployment(path)
    if path.endswith("/images/generations"):
        one = _IMAGE_OUTPUT_TOKENS.get(said.quality, _IMAGE_OUTPUT_TOKENS["high"])
        return AskedOutput(model, times(one, said.n), said.stream is True)
    if "/audio/" in path or "/images/" in path:
        return AskedOutput(model, streams=said.stream in (True, "true"), open_ended=True)
    return AskedOutput(
        model,
        limit(said.max_output_tokens),
        said.stream is True,
        open_ended=(
            said.previous_response_id is not None
            or said.conversation is not None
            or type(said.prompt) is dict
            or b'"item_reference"' in body
            or run_by_vendor(said.tools, _OWN_RESPONSES_TOOLS)
        ),
    )


class _Run(Struct, gc=False):
    model: Any = None
    max_completion_tokens: Any = None
    stream: Any = None


_run: Final = msgspec.json.Decoder(_Run)


def thread_run(path: str, body: bytes) -> AskedOutput:
    """Read a run of a thread; its prompt is the thread.

    Raises:
        msgspec.DecodeError: the body is not a JSON object.
    """
    said = _run.decode(body)
    output = limit(said.max_completion_tokens)
    return AskedOutput(name(said.model), output, said.stream is True, open_ended=True)


def _deployment(path: str) -> str | None:
    found = _DEPLOYMENT.search(path)
    return None if found is None else found[1]
