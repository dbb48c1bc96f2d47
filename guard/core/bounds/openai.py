"""Limits in OpenAI's requests, and those of the many vendors that speak its formats."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from guard.core.bounds.asked import (
    RequestLimits,
    answered,
    embedded,
    how_many,
    is_present,
    limit,
    name,
    prompt_count,
)
from guard.core.bounds.images import image_tokens
from guard.core.bounds.pieces import IMAGES, SOUND
from guard.core.bounds.thinking import asks_to_think, thinking_budget
from guard.core.fees import by_the_piece
from guard.core.usage.message import Message, mapping
from guard.core.wire import TOKENS_MAX

_DEPLOYMENT: Final = re.compile(r"/deployments/([^/]+)/")


def chat(path: str, said: Message) -> RequestLimits:
    """Read ``.../chat/completions``, ``.../completions`` and ``.../embeddings``."""
    model = name(said.get("model")) or _deployment(path)
    if path.endswith("/embeddings"):
        return embedded(model, said.get("input"))
    counts, beside = (said.get("n"),), 0
    if "prompt" in said:
        several = max(how_many(said.get(each), 1) for each in ("n", "best_of"))
        counts = (several * max(1, prompt_count(said["prompt"])),)
    if "prediction" in said:  # what is rejected of it is charged as output
        beside = len(msgspec.json.encode(said["prediction"]))
    return answered(
        model,
        limit(said.get("max_completion_tokens"), said.get("max_tokens")),
        *counts,
        streams=said.get("stream") is True,
        beside=beside,
        is_structured=any(
            is_present(said.get(each)) for each in ("tools", "functions", "response_format")
        ),
        thinks=(
            is_present(said.get("reasoning_effort"))
            or is_present(said.get("reasoning"))
            or asks_to_think(said.get("thinking"))
        ),
        thinking=thinking_budget(
            *(mapping(said.get(each)).get("budget_tokens") for each in ("thinking", "reasoning")),
            mapping(said.get("reasoning")).get("max_tokens"),
            said.get("thinking_budget"),
        ),
        takes_limit=path.endswith("/completions"),
    )


def responses(path: str, said: Message) -> RequestLimits:
    """Read ``.../responses``, ``.../images/generations`` and its like, and transcripts."""
    model, stream = name(said.get("model")) or _deployment(path), said.get("stream")
    if IMAGES.search(path):
        output = 0 if by_the_piece(model) else min(image_tokens(model, said), TOKENS_MAX)
        is_written = said.get("output_format") == "svg"  # by a model of its own
        linked = is_written or (not path.endswith("/generations") and "images" in said)
        output_max = None if is_written else output
        return RequestLimits(model, output_max, stream in (True, "true"), open_ended=linked)
    if SOUND.search(path):
        if by_the_piece(model):
            return RequestLimits(model, 0)
        return RequestLimits(model, streams=stream in (True, "true"), open_ended=True)
    tools = said.get("tools")
    return answered(
        model,
        limit(said.get("max_output_tokens")),
        streams=stream is True,
        open_ended=(
            type(said.get("prompt")) is dict
            or b'"item_reference"' in msgspec.json.encode(said.get("input"))
        ),
        is_structured=is_present(tools) or is_present(mapping(said.get("text")).get("format")),
        thinks=is_present(said.get("reasoning")),
        takes_limit=path.endswith("/responses"),
    )


def realtime(path: str, said: Message) -> RequestLimits:
    """Read an answer of a realtime session, as ``guard.core.usage.realtime_frames`` puts it."""
    asked = RequestLimits(name(said.get("model")), limit(said.get("max_output_tokens")))
    asked.extra_tokens = limit(said.get("heard_tokens")) or 0
    return asked


def piecework(path: str, said: Message) -> RequestLimits:
    """Read ``/audio/speech`` and ``/videos``, which are charged by the piece."""
    model = name(said.get("model")) or _deployment(path)
    if by_the_piece(model):
        return RequestLimits(model, 0)
    return RequestLimits(model, streams=said.get("stream_format") == "sse")


def thread_run(path: str, said: Message) -> RequestLimits:
    """Read a run of a thread; its prompt is the thread."""
    return answered(
        name(said.get("model")),
        limit(said.get("max_completion_tokens")),
        streams=said.get("stream") is True,
        open_ended=True,
        is_structured=True,  # its assistant may have tools
        takes_limit=path.endswith("/runs"),
    )


def _deployment(path: str) -> str | None:
    found = _DEPLOYMENT.search(path)
    return None if found is None else found[1]
