"""A model that asks for tools, in whatever format it is spoken to."""

from __future__ import annotations

import re
from typing import Any

from tests.guard.instrumentation.standin.reply import Reply
from tests.guard.instrumentation.standin.server import StandIn
from tests.support.tool_answers import answer

_RESULT = re.compile(
    rb'"role":\s*"tool"|"tool_result"|"functionResponse"|"toolResult"|_call_output"'
)


class ToolAsker(StandIn):
    """Answers a request with calls of tools, and in words once it has their results.

    Attributes:
        tools: which ones.
    """

    tools: tuple[str, ...] = ("delete_files",)

    def _reply(self, method: str, path: str, query: bytes, body: bytes) -> Reply:
        shape = _shape_of(path)
        if shape is None or _RESULT.search(body):
            return super()._reply(method, path, query, body)
        stream = "tream" in path or re.search(rb'"stream":\s*true', body) is not None
        more: dict[str, Any] = {"array": b"alt=sse" not in query} if shape == "gemini" else {}
        return answer(shape, self.tools, stream=stream, **more)


def _shape_of(path: str) -> str | None:
    endings = {
        "/chat/completions": "chat", "/responses": "responses", "/v1/messages": "anthropic",
        "generateContent": "gemini", "GenerateContent": "gemini", "/converse": "converse",
        "/converse-stream": "converse", "/v2/chat": "cohere", "/api/chat": "ollama",
    }  # fmt: skip
    return next((shape for ending, shape in endings.items() if path.endswith(ending)), None)
