"""The servers that `instrumentation.py` uses, each in a process of its own.

Run as ``python _llm_backend.py llm`` for the stand-in of a vendor, ``... gateway`` for a gateway,
``... team`` for one with a key of a proxy.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

CHUNKS = 400

USAGE = {"prompt_tokens": 900, "completion_tokens": 400, "total_tokens": 1300}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n"


def _whole() -> bytes:
    message = {"role": "assistant", "content": "word " * 400}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    body = {"id": "chatcmpl-%08d", "object": "chat.completion", "created": 1, "model": "gpt-5",
            "choices": [choice], "usage": USAGE}  # fmt: skip
    return json.dumps(body).encode()


def _chunk(delta: dict[str, Any] | None, finish: str | None = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    body: dict[str, Any] = {"id": "chatcmpl-%08d", "object": "chat.completion.chunk", "created": 1,
            "model": "gpt-5", "choices": choices}  # fmt: skip
    body["usage"] = USAGE if delta is None else None
    event = b"data: " + json.dumps(body).encode() + b"\n\n"
    size = len(event) - len(b"%08d") + 8  # the mark is replaced by eight digits
    return b"%x\r\n" % size + event + b"\r\n"


WHOLE = _whole()
STREAM = (
    HEAD % b"text/event-stream"
    + b"transfer-encoding: chunked\r\n\r\n"
    + b"".join(_chunk({"content": "word "}) for _ in range(CHUNKS))
    + _chunk({}, "stop")
    + _chunk(None)
    + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)


class Server(asyncio.Protocol):
    """Answers every POST at once; a stream's chunks come in one piece."""

    number = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.waiting = b""

    def data_received(self, data: bytes) -> None:
        self.waiting += data
        while b"\r\n\r\n" in self.waiting:
            head, _, rest = self.waiting.partition(b"\r\n\r\n")
            lower = head.lower()
            size = (
                int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
                if b"content-length:" in lower
                else 0
            )
            if len(rest) < size:
                return
            body, self.waiting = rest[:size], rest[size:]
            Server.number += 1
            marks = b"%08d" % Server.number
            if b"/chat/completions" not in head:  # a peer's own backend: the answer that it expects
                answer = b'{"organization_id":"o","decision":"allow","allowed":true}'
                length = b"content-length: %d\r\n\r\n" % len(answer)
                self.transport.write(HEAD % b"application/json" + length + answer)
            elif b'"stream":true' in body.replace(b" ", b""):
                self.transport.write(STREAM.replace(b"%08d", marks))
            else:
                whole = WHOLE.replace(b"%08d", marks)
                length = b"content-length: %d\r\n\r\n" % len(whole)
                self.transport.write(HEAD % b"application/json" + length + whole)


def serve(kind: str) -> tuple[list[str], subprocess.Popen[str]]:
    """Run the stand-in or a gateway; return its addresses and keys, and the process."""
    process = subprocess.Popen(
        [sys.executable, __file__, kind],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process.stdout.readline().split(), process


async def _llm() -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    await server.serve_forever()


def _gateway(*, is_teams: bool) -> None:
    from guard.gateway.admin import AdminClient
    from guard.gateway.embedded import run_gateway

    if hasattr(os, "nice"):
        os.nice(19)  # in production it runs on another machine
    with run_gateway() as gateway:
        more = []
        if is_teams:
            admin = AdminClient(gateway.base_url, gateway.admin_key)
            more.append(admin.create_key("proxy", role="proxy", every_organisation=True))
            admin.close()
        print(gateway.base_url, gateway.api_key, *more, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    if sys.argv[1] == "llm":
        asyncio.run(_llm())
    else:
        _gateway(is_teams=sys.argv[1] == "team")
