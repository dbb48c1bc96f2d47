"""A stand-in of four vendors' endpoints that bills what it says, by a price table of its own.

``python -m benchmarks._billing_vendor`` prints its address and serves until its input ends. The
first part of a path says how it behaves: ``/<answer tokens>-<fault>-<delay in ms>/v1/...``.
``GET /bill`` says what it has billed, in nano-dollars, and how many requests it has had.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
from typing import Any, Final

PRICES: Final = {
    # Dollars for a million tokens: input, output. From the vendors' own pages, November 2026.
    "gpt-4o": (2.5, 10.0),
    "gpt-4o-mini": (0.15, 0.6),
    "o3": (2.0, 8.0),
    "o1-pro": (150.0, 600.0),
    "claude-sonnet-4-5": (3.0, 15.0),
    "claude-opus-4-1": (15.0, 75.0),
    "gemini-2.5-pro": (1.25, 10.0),
    "gemini-2.5-flash": (0.3, 2.5),
}
HIDING: Final = ("o1", "o3")
"""Models whose answers hold more tokens than their text: as many again."""
LARGEST: Final = 8192
"""Of an answer without a limit, in tokens."""


class Bill:
    """What was billed so far."""

    nanousd = 0
    requests = 0

    @classmethod
    def add(cls, model: str, tokens_in: int, tokens_out: int) -> None:
        price_in, price_out = PRICES[model]
        cls.nanousd += math.ceil(1000 * (tokens_in * price_in + tokens_out * price_out))


class _Request:
    """One request: how it is to be answered."""

    def __init__(self, path: str, body: dict[str, Any]) -> None:
        _, behaviour, self.path = path.split("/", 2)
        wanted, self.fault, delay_ms = behaviour.split("-")
        self.delay_s = int(delay_ms) / 1000
        self.body = body
        model = body.get("model") or self.path.rpartition("/")[2].partition(":")[0]
        self.model = str(model)
        self.streams = bool(body.get("stream")) or ":stream" in self.path
        self.tokens_in = len(json.dumps(body.get("messages") or body.get("contents")
                                        or body.get("input") or "")) // 4  # fmt: skip
        config = body.get("generationConfig") or {}
        limit = (
            body.get("max_completion_tokens") or body.get("max_tokens")
            or body.get("max_output_tokens") or config.get("maxOutputTokens") or LARGEST
        )  # fmt: skip
        self.shown = min(int(wanted), int(limit))
        self.tokens_out = self.shown
        if self.model.startswith(HIDING):
            self.shown //= 2

    @property
    def usage(self) -> dict[str, Any]:
        """What the answer says of its tokens, in its vendor's words."""
        tokens_in, tokens_out = self.tokens_in, self.tokens_out
        if "messages" in self.path.rpartition("/")[2]:
            return {"input_tokens": tokens_in, "output_tokens": tokens_out}
        if self.path.endswith("responses"):
            return {"input_tokens": tokens_in, "output_tokens": tokens_out,
                    "total_tokens": tokens_in + tokens_out}  # fmt: skip
        if "models/" in self.path:
            return {"promptTokenCount": tokens_in, "candidatesTokenCount": tokens_out,
                    "totalTokenCount": tokens_in + tokens_out}  # fmt: skip
        return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out,
                "total_tokens": tokens_in + tokens_out}  # fmt: skip

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        text, usage, model = "word " * self.shown, self.usage, self.model
        if self.path.endswith("messages"):
            return {"id": "m", "type": "message", "role": "assistant", "model": model,
                    "content": [{"type": "text", "text": text}], "stop_reason": "end_turn",
                    "stop_sequence": None, "usage": usage}  # fmt: skip
        if self.path.endswith("responses"):
            part = {"type": "output_text", "text": text, "annotations": []}
            message = {"type": "message", "id": "i", "role": "assistant", "status": "completed",
                       "content": [part]}  # fmt: skip
            return {"id": "r", "object": "response", "created_at": 1, "model": model,
                    "status": "completed", "output": [message], "usage": usage}  # fmt: skip
        if "models/" in self.path:
            content = {"role": "model", "parts": [{"text": text}]}
            return {"candidates": [{"content": content, "finishReason": "STOP"}],
                    "usageMetadata": usage, "modelVersion": model}  # fmt: skip
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": model,
                "choices": [choice], "usage": usage}  # fmt: skip

    def chunks(self) -> list[bytes]:
        """The answer as a stream: ten pieces of text, and the usage where the vendor sends it."""
        model, pieces = self.model, 10
        texts = ["word " * (self.shown // pieces)] * pieces
        found: list[tuple[str, dict[str, Any]]] = []
        if self.path.endswith("messages"):
            start = {**self.whole(), "content": [], "usage": {**self.usage, "output_tokens": 1}}
            found.append(("message_start", {"message": start}))
            block = {"index": 0, "content_block": {"type": "text", "text": ""}}
            found.append(("content_block_start", block))
            for text in texts:
                delta = {"type": "text_delta", "text": text}
                found.append(("content_block_delta", {"index": 0, "delta": delta}))
            if self.fault != "mute":
                usage = {"output_tokens": self.tokens_out}
                stop = {"delta": {"stop_reason": "end_turn"}, "usage": usage}
                found.append(("message_delta", stop))
            found.append(("message_stop", {}))
            return [_event({"type": kind, **data}, kind) for kind, data in found]
        if self.path.endswith("responses"):
            found += [
                ("response.output_text.delta", {"delta": text, "output_index": 0}) for text in texts
            ]
            if self.fault != "mute":
                found.append(("response.completed", {"response": self.whole()}))
            return [_event({"type": kind, **data}, kind) for kind, data in found]
        if "models/" in self.path:
            events: list[dict[str, Any]] = [
                {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}}],
                 "modelVersion": model}
                for text in texts
            ]  # fmt: skip
            events[-1]["candidates"][0]["finishReason"] = "STOP"
            if self.fault != "mute":
                events[-1]["usageMetadata"] = self.usage
            return [_event(event) for event in events]
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model}
        lines = [
            {**head, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
            for text in texts
        ]
        asked = (self.body.get("stream_options") or {}).get("include_usage")
        if asked and self.fault != "mute":
            lines.append({**head, "choices": [], "usage": self.usage})
        return [*(_event(line) for line in lines), b"data: [DONE]\n\n"]


def _event(data: dict[str, Any], kind: str | None = None) -> bytes:
    name = b"" if kind is None else f"event: {kind}\n".encode()
    return name + b"data: " + json.dumps(data).encode() + b"\n\n"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lowered = head.lower()
            length = int(lowered.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            body = await reader.readexactly(length)
            path = head.split(b" ", 2)[1].decode().partition("?")[0]
            if path == "/bill":
                said = {"nanousd": Bill.nanousd, "requests": Bill.requests}
                _write(writer, json.dumps(said).encode())
            elif not await _answer(_Request(path, json.loads(body)), writer):
                return
            await writer.drain()
    writer.close()


async def _answer(request: _Request, writer: asyncio.StreamWriter) -> bool:
    """Answer; False when the connection is over. What is begun is billed, but for an error."""
    Bill.requests += 1
    fault = request.fault
    if fault == "error":
        _write(writer, b'{"error":{"message":"overloaded"}}', b"503 Overloaded")
        return True
    Bill.add(request.model, request.tokens_in, request.tokens_out)
    await asyncio.sleep(request.delay_s)
    if fault == "reset":
        writer.transport.abort()
        return False
    if fault == "proxy":
        _write(writer, b"bad gateway", b"502 Bad Gateway", b"text/plain")
        return True
    if not request.streams:
        _write(writer, json.dumps(request.whole()).encode())
        return True
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                 b"transfer-encoding: chunked\r\n\r\n")  # fmt: skip
    for number, chunk in enumerate(request.chunks()):
        if fault == "cut" and number == 4:
            writer.transport.abort()
            return False
        writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        await writer.drain()
        await asyncio.sleep(0.002)
    writer.write(b"0\r\n\r\n")
    return True


def _write(
    writer: asyncio.StreamWriter,
    body: bytes,
    status: bytes = b"200 OK",
    kind: bytes = b"application/json",
) -> None:
    writer.write(
        b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
        % (status, kind, len(body), body)
    )


async def _main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, limit=2**24)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main())
