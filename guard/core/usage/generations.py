"""Reads what a vendor says afterwards of a response, by its id. Pure.

Sources: https://openrouter.ai/docs/api-reference/get-a-generation,
https://developers.openai.com/api/docs/api-reference/responses/get (2026-11).
"""

from __future__ import annotations

import json

from guard.core.usage.message import mapping, nanousd, parse
from guard.core.usage.openai import ChatCompletions
from guard.core.usage.reading import read_body
from guard.core.usage.response_format import Call, ResponseFormat, Usage


def usage_of_generation(provider: str, body: bytes) -> Usage | None:
    """Return what a generation has used and cost; None while it goes on, or is not told.

    Its numbers are put where an answer has them, so that they are read by the same rules.

    Args:
        provider: the vendor, as prices have it.
        body: the answer to the question about the generation.
    """
    try:
        said = mapping(mapping(parse(body)).get("data"))
    except ValueError:
        return None
    is_over = said.get("cancelled") is True or said.get("finish_reason") is not None
    if not is_over or nanousd(said.get("total_cost")) is None:
        return None
    usage = {
        "prompt_tokens": said.get("native_tokens_prompt"),
        "completion_tokens": said.get("native_tokens_completion"),
        "prompt_tokens_details": {"cached_tokens": said.get("native_tokens_cached")},
        "completion_tokens_details": {"reasoning_tokens": said.get("native_tokens_reasoning")},
        "cost": said["total_cost"],
        "cost_details": {"upstream_inference_cost": said.get("upstream_inference_cost")},
        "is_byok": said.get("is_byok"),
    }
    about = {"id": said.get("id"), "model": said.get("model"), "usage": usage}
    content = json.dumps(about | {"choices": []}).encode()
    return usage_of_stored(ChatCompletions(provider), "", content)


def usage_of_stored(reader: ResponseFormat, path: str, body: bytes) -> Usage | None:
    """Return what a stored response has used; None while it goes on, or is not told.

    Args:
        reader: the format of its request.
        path: that of its request.
        body: the response.
    """
    found = read_body(reader, body, Call(path, lambda: b"{}"))
    return None if found is None or found.estimated or found.later else found
