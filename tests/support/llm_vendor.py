"""A stand-in of an LLM vendor, in a process of its own, that counts what it answers.

It speaks OpenAI's chat completions, whole and streamed, and Anthropic's messages, and uses all of
``max_tokens``. ``GET /stats`` says how many requests it has got and answered, and what they used;
``GET /delay/SECONDS`` sets how long it takes for an answer, at first a few milliseconds.
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


class _Connection(asyncio.Protocol):
    delay_s = 0.003
    beside = 4
    unlimited = 50
    asked = answered = input_tokens = output_tokens = 0

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
            path = head.split(b" ", 2)[1]
            if path == b"/stats":
                self._write(json.dumps(_stats()).encode())
            elif path.startswith(b"/delay/"):
                _Connection.delay_s = float(path.rpartition(b"/")[2])
                self._write(b"{}")
            else:
                _Connection.asked += 1
                loop = asyncio.get_running_loop()
                loop.call_later(_Connection.delay_s, self._answer, path, json.loads(rest[:size]))

    def _answer(self, path: bytes, body: dict[str, Any]) -> None:
        try:
            self._write(*self._answer_to(path, body))
        except Exception:
            self._transport.abort()  # or the test would wait until its client gives up
            raise

    @staticmethod
    def _answer_to(path: bytes, body: dict[str, Any]) -> tuple[bytes, bytes]:
        output = body.get("max_tokens", _Connection.unlimited)
        words = sum(len(message.get("content", "").split()) for message in body["messages"])
        used = words + _Connection.beside
        _Connection.answered += 1
        _Connection.input_tokens += used
        _Connection.output_tokens += output
        limited = "max_tokens" in body
        if path.endswith(b"/messages"):
            return _anthropic(body["model"], used, output, limited), b"application/json"
        answer = _openai(body["model"], used, output)
        if body.get("stream"):
            return _streamed(answer, limited), b"text/event-stream"
        message = {"role": "assistant", "content": "ok"}
        reason = "length" if limited else "stop"
        answer["choices"] = [{"index": 0, "message": message, "finish_reason": reason}]
        return json.dumps(answer).encode(), b"application/json"

    def _write(self, body: bytes, kind: bytes = b"application/json") -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (kind, len(body), body)
        )


def _stats() -> dict[str, int]:
    seen = _Connection
    return {"asked": seen.asked, "answered": seen.answered, "input_tokens": seen.input_tokens,
            "output_tokens": seen.output_tokens}  # fmt: skip


def _openai(model: str, used: int, output: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{_Connection.answered}", "object": "chat.completion", "created": 1,
        "model": model,
        "usage": {"prompt_tokens": used, "completion_tokens": output,
                  "total_tokens": used + output},
    }  # fmt: skip


def _streamed(answer: dict[str, Any], limited: bool) -> bytes:
    usage = answer.pop("usage")
    delta = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
    chunks = [{**answer, "choices": [delta]}] * usage["completion_tokens"]
    end = {"index": 0, "delta": {}, "finish_reason": "length" if limited else "stop"}
    chunks.append({**answer, "choices": [end]})
    chunks.append({**answer, "choices": [], "usage": usage})
    events = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    return events + b"data: [DONE]\n\n"


def _anthropic(model: str, used: int, output: int, limited: bool) -> bytes:
    answer = {
        "id": f"msg-{_Connection.answered}", "type": "message", "role": "assistant",
        "model": model, "content": [{"type": "text", "text": "ok"}],
        "stop_reason": "max_tokens" if limited else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": used, "output_tokens": output},
    }  # fmt: skip
    return json.dumps(answer).encode()


@contextlib.contextmanager
def vendor_process(*, beside: int = 4, unlimited: int = 50) -> Iterator[str]:
    """Run the vendor until the block ends; gives its address.

    Args:
        beside: tokens of a prompt besides its words.
        unlimited: output tokens of a request without ``max_tokens``.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.llm_vendor", str(beside), str(unlimited)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=120)  # its input ends, and so does it


async def _main() -> None:
    _Connection.beside, _Connection.unlimited = map(int, sys.argv[1:])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
