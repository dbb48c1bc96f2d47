"""A stand-in of an LLM vendor, in a process of its own, that counts what it answers.

It speaks OpenAI's chat completions, whole and streamed, and uses all of ``max_tokens``. It answers
within a few milliseconds. ``GET /stats`` says how many requests it has answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_DELAY_S = 0.003


class _Connection(asyncio.Protocol):
    answered = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._waiting = b""

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while b"\r\n\r\n" in self._waiting:
            head, _, rest = self._waiting.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            size = int(length or 0)
            if len(rest) < size:
                return
            self._waiting = rest[size:]
            if head.startswith(b"GET /stats"):
                self._write(json.dumps({"answered": _Connection.answered}).encode())
            else:
                asyncio.get_running_loop().call_later(_DELAY_S, self._answer, rest[:size])

    def _answer(self, raw: bytes) -> None:
        _Connection.answered += 1
        body = json.loads(raw)
        tokens = body.get("max_tokens", 50)
        words = sum(len(message["content"].split()) for message in body["messages"])
        answer: dict[str, Any] = {
            "id": f"chatcmpl-{_Connection.answered}", "object": "chat.completion", "created": 1,
            "model": body["model"],
            "usage": {"prompt_tokens": words + 4, "completion_tokens": tokens,
                      "total_tokens": words + 4 + tokens},
        }  # fmt: skip
        if not body.get("stream"):
            message = {"role": "assistant", "content": "ok"}
            answer["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
            self._write(json.dumps(answer).encode())
            return
        usage = answer.pop("usage")
        delta = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
        chunks = [{**answer, "choices": [delta]}] * tokens
        chunks.append({**answer, "choices": [], "usage": usage})
        events = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
        self._write(events + b"data: [DONE]\n\n", b"text/event-stream")

    def _write(self, body: bytes, kind: bytes = b"application/json") -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (kind, len(body), body)
        )


@contextlib.contextmanager
def vendor_process() -> Iterator[str]:
    """Run the vendor until the block ends; gives its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.llm_vendor"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=30)  # its input ends, and so does it


async def _main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
