"""A local stand-in for an LLM vendor: speaks OpenAI's chat-completions format, knows nothing.

It exists so that the demo needs no account: requests and answers are real HTTP in the vendor's
format, and the usage that it reports is what it counted.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

_TOKEN = re.compile(r"\w+|[^\w\s]")
_ANSWER_S: Final = 0.12
_CHUNK_S: Final = 0.04
_LONG_ANSWER_WORDS: Final = 600
_LABELS: Final = (
    ("invoice", "A bill; file it and pay in time."),
    ("meeting", "About a meeting; add it to the calendar."),
    ("contract", "A contract to review; needs an answer."),
    ("server", "An infrastructure note; nothing to do."),
    ("lunch", "An invitation; answer when convenient."),
    ("reminder", "A reminder; put it into the calendar."),
    ("deliver", "About a delivery; confirm the date."),
)


def count_tokens(text: str) -> int:
    """Count words and signs: the stand-in's tokeniser."""
    return len(_TOKEN.findall(text))


class StandIn:
    """The endpoint, which keeps what it counted.

    Attributes:
        served: response id -> (input tokens, output tokens) of each complete answer.
    """

    def __init__(self) -> None:
        self.served: dict[str, tuple[int, int]] = {}
        self._ids = itertools.count(1)
        self.app = Starlette(
            routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])]
        )

    async def _complete(self, request: Request) -> Response:
        try:
            asked = json.loads(await request.body())
            model = str(asked["model"])
            messages = [str(message["content"]) for message in asked["messages"]]
        except (ValueError, KeyError, TypeError):
            error = {"message": "not a chat completion request", "type": "invalid_request_error"}
            return JSONResponse({"error": error}, 400)
        prompt = "\n".join(messages)
        base = {
            "id": f"chatcmpl-standin-{time.time_ns()}-{next(self._ids)}",
            "created": int(time.time()),
            "model": model,
        }
        if asked.get("stream"):
            wants_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
            return StreamingResponse(
                self._stream(base, prompt, wants_usage), media_type="text/event-stream"
            )
        await asyncio.sleep(_ANSWER_S)
        answer = _answer(messages[-1])
        usage = self._usage(base["id"], prompt, answer)
        return JSONResponse(
            {
                **base,
                "object": "chat.completion",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": answer},
                        "finish_reason": "stop",
                    }
                ],
                "usage": usage,
            }
        )

    async def _stream(
        self, base: dict[str, Any], prompt: str, wants_usage: bool
    ) -> AsyncIterator[bytes]:
        base = {**base, "object": "chat.completion.chunk"}
        words = [f"word{number} " for number in range(_LONG_ANSWER_WORDS)]
        # Slow on purpose: the demo kills the call in the middle of it.
        for word in words:
            delta = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            yield _sse({**base, "choices": [delta]})
            await asyncio.sleep(_CHUNK_S)
        yield _sse({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        if wants_usage:
            usage = self._usage(base["id"], prompt, "".join(words))
            yield _sse({**base, "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def _usage(self, response_id: Any, prompt: str, answer: str) -> dict[str, int]:
        tokens_in, tokens_out = count_tokens(prompt), count_tokens(answer)
        self.served[str(response_id)] = (tokens_in, tokens_out)
        return {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        }


def _answer(text: str) -> str:
    lowered = text.lower()
    for word, answer in _LABELS:
        if word in lowered:
            return answer
    return "An ordinary message; read it when there is time."


def _sse(chunk: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()
