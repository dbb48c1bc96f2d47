"""A model that goes on asking for a tool, as agents that run away do."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from tests.guard.instrumentation.standin.reply import Reply, encoded
from tests.guard.instrumentation.standin.server import StandIn

INPUT_TOKENS: Final = 1000
OUTPUT_TOKENS: Final = 100


class ToolLoop(StandIn):
    """Asks for the first tool of each request, in the formats of Anthropic and Gemini.

    A request without tools is answered in words, in every vendor's format.

    Attributes:
        turns: how often it asks before it answers in words.
        delay_s: of each answer, in seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.turns = 1
        self.delay_s = 0.0

    def reset(self) -> None:
        super().reset()
        self.turns, self.delay_s = 1, 0.0

    def _reply(self, method: str, path: str, query: bytes, body: bytes) -> Reply:
        time.sleep(self.delay_s)
        request: dict[str, Any] = json.loads(body or b"{}")
        number = len(self.bodies)
        calls = number <= self.turns
        if path.endswith("/v1/messages"):
            return Reply(None, encoded(_anthropic(number, request, calls=calls)))
        if path.endswith(":generateContent"):
            return Reply(None, encoded(_gemini(path, number, request, calls=calls)))
        return super()._reply(method, path, query, body)


def _anthropic(number: int, request: dict[str, Any], *, calls: bool) -> dict[str, Any]:
    text = {"type": "text", "text": "It is foggy."}
    tool = request["tools"][0]
    arguments = dict.fromkeys(tool["input_schema"]["required"], "sf")
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": tool["name"], "input": arguments}
    return {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": request["model"],
        "content": [call if calls else text], "stop_sequence": None,
        "stop_reason": "tool_use" if calls else "end_turn",
        "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS},
    }  # fmt: skip


def _gemini(path: str, number: int, request: dict[str, Any], *, calls: bool) -> dict[str, Any]:
    tool = request["tools"][0]["functionDeclarations"][0]
    schema = tool["parameters_json_schema"]
    arguments = dict.fromkeys(schema["properties"], "Boston, MA")
    call = {"functionCall": {"name": tool["name"], "args": arguments}}
    part = call if calls else {"text": "It is sunny."}
    usage = {"promptTokenCount": INPUT_TOKENS, "candidatesTokenCount": OUTPUT_TOKENS,
             "totalTokenCount": INPUT_TOKENS + OUTPUT_TOKENS}  # fmt: skip
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage, "responseId": f"reply-{number}",
            "modelVersion": path.rpartition("/")[2].partition(":")[0]}  # fmt: skip
