"""Limits in OpenAI's requests, and those of the many vendors that speak its formats."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from guard.core.bounds.asked import AskedOutput, given, limit, name, run_by_vendor, times
from guard.core.usage.message import Message, items

_DEPLOYMENT: Final = re.compile(r"/deployments/([^/]+)/")
_IMAGE_OUTPUT_TOKENS: Final = {"low": 410, "medium": 1_590, "high": 6_250}
"""The largest of the published sizes, by quality; ``auto`` may be any of them."""

_OWN_CHAT_TOOLS: Final = ("function", "custom")
_OWN_RESPONSES_TOOLS: Final = ("function", "custom", "computer", "local_shell", "apply_patch")


def chat(path: str, said: Message) -> AskedOutput:
    """Read ``.../chat/completions``, ``.../completions`` and ``.../embeddings``."""
    model = name(said.get("model")) or _deployment(path)
    if path.endswith("/embeddings"):
        return AskedOutput(model, 0)
    output = limit(said.get("max_completion_tokens"), said.get("max_tokens"))
    if "prompt" in said:
        output = times(output, said.get("n"), said.get("best_of"))
        output = times(output, _prompt_count(said["prompt"]))
    else:
        output = times(output, said.get("n"))
    if "prediction" in said and output is not None:
        # What is rejected of it is charged as output.
        output += len(msgspec.json.encode(said["prediction"]))
    return AskedOutput(
        model,
        output,
        said.get("stream") is True,
        open_ended=(
            said.get("agent_id") is not None
            or given(said.get("web_search_options"))
            or given(said.get("search_parameters"))
            or given(said.get("plugins"))
            or run_by_vendor(said.get("tools"), _OWN_CHAT_TOOLS)
        ),
    )


def _prompt_count(prompt: Any) -> int:
    """Return how many prompts legacy completions answer: one text or one list of tokens is one."""
    prompts = items(prompt)
    return 1 if not prompts or type(prompts[0]) is int else len(prompts)


def responses(path: str, said: Message) -> AskedOutput:
    """Read ``.../responses``, ``.../images/generations``; of uploads, the model only."""
    model, stream = name(said.get("model")) or _deployment(path), said.get("stream")
    if path.endswith("/images/generations"):
        quality = name(said.get("quality")) or "high"
        one = _IMAGE_OUTPUT_TOKENS.get(quality, _IMAGE_OUTPUT_TOKENS["high"])
        return AskedOutput(model, times(one, said.get("n")), stream is True)
    if "/audio/" in path or "/images/" in path:
        return AskedOutput(model, streams=stream in (True, "true"), open_ended=True)
    return AskedOutput(
        model,
        limit(said.get("max_output_tokens")),
        stream is True,
        open_ended=(
            said.get("previous_response_id") is not None
            or said.get("conversation") is not None
            or type(said.get("prompt")) is dict
            or b'"item_reference"' in msgspec.json.encode(said.get("input"))
            or run_by_vendor(said.get("tools"), _OWN_RESPONSES_TOOLS)
        ),
    )


def thread_run(path: str, said: Message) -> AskedOutput:
    """Read a run of a thread; its prompt is the thread."""
    output = limit(said.get("max_completion_tokens"))
    return AskedOutput(name(said.get("model")), output, said.get("stream") is True, open_ended=True)


def _deployment(path: str) -> str | None:
    found = _DEPLOYMENT.search(path)
    return None if found is None else found[1]
