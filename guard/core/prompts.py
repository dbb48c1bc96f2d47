"""What of a request to a model is its prompt, whatever vendor's format it has. Pure.

Two requests have the same prompt when they say the same, whatever their sampling and their limits.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from guard.core.usage.request_body import UnreadableError, read_request

_MEMBERS: Final = frozenset(
    {
        "messages", "system", "input", "instructions", "prompt", "contents", "systemInstruction",
        "system_instruction", "query", "inputText", "inputs", "text", "texts", "chat_history",
        "preamble", "message", "documents", "previous_response_id", "suffix",
    }
)  # fmt: skip
"""Where the vendors' formats have it; an answer's id stands for the conversation before it."""


def prompt_of(path: str, body: bytes) -> bytes | None:
    """Return what is the same for the same prompt; None where the vendor keeps a part of it.

    Args:
        path: the path of the request's URL.
        body: the body of the request.

    >>> prompt_of("/v1/x", b'{"prompt": "Hi", "top_p": 1}') == prompt_of("/", b'{"prompt":"Hi"}')
    True
    """
    if "/threads/" in path or not body:
        return None
    try:
        said, _ = read_request(body)
    except UnreadableError:
        return body  # a form, such as sound to transcribe
    if said.get("conversation") is not None:
        return None  # the vendor adds what came before, which changes
    found: dict[str, Any] = {name: value for name, value in said.items() if name in _MEMBERS}
    return msgspec.json.encode(found or said, order="sorted")
