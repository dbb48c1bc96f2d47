"""A stand-in of a vendor whose streams stay open: an event every half second, ten seconds long."""

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

_EVENTS = 20
_PAUSE_S = 0.5


def _event(delta: dict[str, str] | None) -> bytes:
    usage = {"prompt_tokens": 900, "completion_tokens": _EVENTS, "total_tokens": 900 + _EVENTS}
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5",
            "choices": choices, "usage": usage if delta is None else None}  # fmt: skip
    data = b"data: " + json.dumps(body).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                         b"transfer-encoding: chunked\r\n\r\n")  # fmt: skip
            for _ in range(_EVENTS):
                writer.write(_event({"content": "word "}))
                await asyncio.sleep(_PAUSE_S)
            writer.write(_event(None) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            await writer.drain()


@contextlib.contextmanager
def slow_vendor() -> Iterator[str]:
    """Run it in a process of its own; gives its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks._slow_streams"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=60)


async def _main() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
