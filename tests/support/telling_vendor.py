"""Vendors that stream until their reader leaves, and say afterwards what that cost."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from typing import Any, Final

import attrs

KEY: Final = "Bearer sk-or-secret"
TOLD: Final = {
    "id": "gen-1", "upstream_id": "chatcmpl-1", "total_cost": 0.0055, "cache_discount": None,
    "upstream_inference_cost": 0, "created_at": "2026-11-15T23:33:19.433273+00:00",
    "model": "openai/gpt-5", "app_id": None, "streamed": True, "cancelled": True,
    "provider_name": "OpenAI", "latency": 1250, "moderation_latency": None,
    "generation_time": 1200, "finish_reason": None, "tokens_prompt": 10, "tokens_completion": 25,
    "native_tokens_prompt": 11, "native_tokens_completion": 27,
    "native_tokens_completion_images": 0, "native_tokens_reasoning": 5,
    "native_tokens_cached": 3, "num_media_prompt": None, "num_search_results": None,
    "origin": "", "usage": 0.0055, "is_byok": False, "native_finish_reason": None,
}  # fmt: skip
"""As https://openrouter.ai/docs/api-reference/get-a-generation shows it (2026-11)."""

CREATED: Final = {"id": "resp_1", "object": "response", "status": "in_progress", "model": "gpt-5",
                  "background": False, "output": [], "usage": None}  # fmt: skip
STORED: Final = {
    **CREATED, "status": "completed", "store": True,
    "usage": {"input_tokens": 500, "input_tokens_details": {"cached_tokens": 0},
              "output_tokens": 27, "output_tokens_details": {"reasoning_tokens": 5},
              "total_tokens": 527},
}  # fmt: skip


@attrs.frozen
class Kind:
    """One vendor, as far as these tests speak its API.

    Attributes:
        name, host, path: of the vendor, and of what is asked.
        body: what is asked.
        headers: of the request; those that the question has to repeat are in ``repeated``.
        opening, event: the first message of its streams, and all others.
        told: what it says afterwards; where is ``where``.
        bill: nano-dollars, by the prices below: much less than the bound.
    """

    name: str
    host: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    repeated: dict[str, str]
    opening: dict[str, Any]
    event: dict[str, Any]
    told: dict[str, Any]
    where: str
    bill: int


CHUNK: Final = {"id": "gen-1", "model": "openai/gpt-5", "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": {"content": "word "}}]}  # fmt: skip
OPENROUTER: Final = Kind(
    "openrouter", "openrouter.ai", "/api/v1/chat/completions",
    {"model": "gpt-5", "stream": True, "max_tokens": 1000,
     "messages": [{"role": "user", "content": "hi"}]},
    {"Authorization": KEY, "X-Title": "mine"}, {"authorization": KEY}, CHUNK, CHUNK,
    {"data": TOLD}, "/api/v1/generation?id=gen-1", 5_500_000,
)  # fmt: skip
OPENAI: Final = Kind(
    "openai", "api.openai.com", "/v1/responses",
    {"model": "gpt-5", "stream": True, "max_output_tokens": 1000, "input": "hi"},
    {"Authorization": KEY, "OpenAI-Project": "proj_1"},
    {"authorization": KEY, "openai-project": "proj_1"},
    {"type": "response.created", "response": CREATED},
    {"type": "response.output_text.delta", "delta": "word "},
    STORED, "/v1/responses/resp_1", 500 * 1000 + 27 * 10_000,
)  # fmt: skip
AZURE: Final = attrs.evolve(
    OPENAI, name="azure", host="ours.openai.azure.com", path="/openai/v1/responses",
    headers={"api-key": KEY}, repeated={"api-key": KEY}, where="/openai/v1/responses/resp_1",
)  # fmt: skip


class Vendor(http.server.ThreadingHTTPServer):
    """Streams until its reader leaves, and says afterwards what that cost."""

    daemon_threads = True

    def __init__(self, kind: Kind) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.kind = kind
        self.url = f"http://{kind.host}:{self.server_address[1]}{kind.path}"
        self.left = threading.Event()
        self.cuts = False
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.status, self.said = 200, json.dumps(kind.told).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Vendor
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.event(self.server.kind.opening)
            while not self.server.left.wait(0.01):
                self.event(self.server.kind.event)
                if self.server.cuts:
                    break
        self.close_connection = True  # without the last chunk

    def event(self, message: dict[str, Any]) -> None:
        data = b"data: %s\n\n" % json.dumps(message).encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        own = {"host", "user-agent", "accept", "accept-encoding", "connection"}
        sent = {name: value for name, value in headers.items() if name not in own}
        self.server.asked.append((self.path, sent))
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(self.server.said)))
        self.send_header("content-type", "application/json")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(self.server.said)
