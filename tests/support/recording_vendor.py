"""A vendor that notes each request whole, and says of its account more than anybody should read."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs


@attrs.frozen
class SeenRequest:
    """A request as it has arrived; names of headers in lower case."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        """Return the values of a header."""
        return [value for key, value in self.headers if key == name]


class RecordingVendor:
    """Answers every request, on threads and a port of its own.

    Attributes:
        url: where it listens.
        requests: what has arrived.
        status: of each answer.
        said: the body of each answer; None for one in the format of the path.
    """

    def __init__(self) -> None:
        self.requests: list[SeenRequest] = []
        self.status = 200
        self.said: bytes | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        vendor = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                headers = [(name.lower(), value) for name, value in self.headers.items()]
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                vendor.requests.append(SeenRequest(self.command, self.path, headers, body))
                said = vendor.said or json.dumps(_answer(self.path)).encode()
                self.send_response(vendor.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(said)))
                self.send_header("set-cookie", "account=hush")
                self.send_header("openai-organization", "org-hushhush")
                self.send_header("x-ratelimit-remaining-tokens", "149984")
                self.send_header("anthropic-ratelimit-tokens-remaining", "149984")
                self.send_header("anthropic-organization-id", "org-hushhush")
                self.send_header("x-request-id", "req_1")
                self.end_headers()
                self.wfile.write(said)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815  # http.server's

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def _answer(path: str) -> dict[str, Any]:
    if "messages" in path:
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5",
            "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn",
            "usage": {"input_tokens": 10, "output_tokens": 3},
        }  # fmt: skip
    if "Content" in path:
        return {
            "candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}}],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 3,
                              "totalTokenCount": 13},
            "modelVersion": "gemini-2.5-flash",
        }  # fmt: skip
    if "responses" in path:
        return {
            "id": "resp_1", "object": "response", "status": "completed", "model": "gpt-4o",
            "output": [], "usage": {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13},
        }  # fmt: skip
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "model": "gpt-4o",
        "choices": [{"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": "hi"}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
    }  # fmt: skip
