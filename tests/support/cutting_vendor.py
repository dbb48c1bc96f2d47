"""A stand-in of a vendor that is cut off at a chosen moment, and bills what it says.

It bills a request as soon as it has all of it: its prompt, and the whole answer, however much of
that arrives. It is the dearest vendor that there can be: it never notices that nobody reads.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal

from tests.guard.instrumentation.standin.reply import aws_frame

Moment = Literal[
    "at once", "no answer", "in the head", "before the body", "in the body", "before usage",
    "after usage", "bad gateway", "overloaded", "whole",
]  # fmt: skip
Way = Literal["reset", "disconnect", "hang"]

MOMENTS: Final[tuple[Moment, ...]] = (
    "at once", "no answer", "in the head", "before the body", "in the body", "before usage",
    "after usage", "bad gateway", "overloaded",
)  # fmt: skip
OUTPUT: Final = 200
"""What a request asks for, and an answer has."""


class CuttingVendor:
    """Answers OpenAI's chat completions and Bedrock's Converse, up to a moment.

    Attributes:
        moment: when its answers are cut off.
        way: how.
        hang_s: after what time a connection that hangs is closed.
        words: how many tokens each piece of a stream of OpenAI's has; a third of them come before
            the moment "in the body".
        billed: tokens of all requests.
        received: how many requests have arrived whole.
        reached: how many answers have come to the moment.
    """

    def __init__(self) -> None:
        self.moment: Moment = "no answer"
        self.way: Way = "disconnect"
        self.hang_s = 20.0
        self.words = 1
        self.billed = 0
        self.received = 0
        self.reached = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def end_hanging(self) -> None:
        """Close the connections that hang, and from now on each one at once."""
        self._over.set()

    def close(self) -> None:
        """End it."""
        self._over.set()
        with suppress(OSError):  # wakes the thread that accepts, which would take one more
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self.moment != "at once":
                head, body = _request_of(connection)
                self._answer(connection, head, json.loads(body))
            self._cut(connection)
        except OSError:
            pass
        finally:
            connection.close()

    def _answer(self, connection: socket.socket, head: bytes, body: dict[str, Any]) -> None:
        prompt = len(json.dumps(body)) // 4
        with self._lock:
            self.received += 1
        if self.moment == "overloaded":
            connection.sendall(
                b"HTTP/1.1 503 X\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
            )
            return
        with self._lock:
            self.billed += prompt + OUTPUT
        if self.moment == "no answer":
            return
        if self.moment == "bad gateway":
            connection.sendall(
                b"HTTP/1.1 502 X\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
            )
            return
        is_aws = b"/converse" in head.split(b"\r\n")[0]
        streams = b"-stream " in head.split(b"\r\n")[0] if is_aws else bool(body.get("stream"))
        if is_aws:
            begin, rest, usage = _aws(streams, prompt)
        else:
            begin, rest, usage = _openai(streams, prompt, self.words)
        kind = b"application/json"
        if streams:
            kind = b"application/vnd.amazon.eventstream" if is_aws else b"text/event-stream"
        size = len(begin) + len(rest) + len(usage) + 1  # one byte never comes
        sent = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n" % kind
        if self.moment == "in the head":
            connection.sendall(sent + b"Content-")
            return
        connection.sendall(sent + b"Content-Length: %d\r\n\r\n" % size)
        for moment, part in (
            ("in the body", begin),
            ("before usage", rest),
            ("after usage", usage),
        ):
            if self.moment == "before the body":
                return
            connection.sendall(part)
            if self.moment == moment:
                return
        connection.sendall(b" ")

    def _cut(self, connection: socket.socket) -> None:
        with self._lock:
            self.reached += 1
        if self.way == "hang":
            self._over.wait(self.hang_s)
        elif self.way == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def cutting_vendor(moment: Moment, way: Way, hang_s: float = 20.0) -> Iterator[CuttingVendor]:
    """Run a vendor until the block ends; a connection hangs for so long at most."""
    vendor = CuttingVendor()
    vendor.moment, vendor.way, vendor.hang_s = moment, way, hang_s
    try:
        yield vendor
    finally:
        vendor.close()


def _request_of(connection: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += _received(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
    while len(body) < size:
        body += _received(connection)
    return head, body


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError
    return data


def _openai(streams: bool, prompt: int, words: int) -> tuple[bytes, bytes, bytes]:
    usage = {"prompt_tokens": prompt, "completion_tokens": OUTPUT, "total_tokens": prompt + OUTPUT}
    answer: dict[str, Any] = {"id": "c", "object": "chat.completion", "created": 1, "model": "o3"}
    if streams:
        delta = {"index": 0, "delta": {"content": "word" * words}, "finish_reason": None}
        piece = _sse({**answer, "choices": [delta]})
        return piece * 3, piece * 5, _sse({**answer, "choices": [], "usage": usage})
    message = {"role": "assistant", "content": "word " * 9}
    answer["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
    text = json.dumps({**answer, "usage": usage}).encode()
    at = text.index(b'"usage"')
    return text[: at // 2], text[at // 2 : at], text[at:]


def _aws(streams: bool, prompt: int) -> tuple[bytes, bytes, bytes]:
    usage = {"inputTokens": prompt, "outputTokens": OUTPUT, "totalTokens": prompt + OUTPUT}
    if streams:
        delta = {"contentBlockIndex": 0, "delta": {"text": "word"}}
        piece = aws_frame("contentBlockDelta", json.dumps(delta).encode())
        end = {"usage": usage, "metrics": {"latencyMs": 1}}
        return piece * 3, piece * 5, aws_frame("metadata", json.dumps(end).encode())
    message = {"role": "assistant", "content": [{"text": "word " * 9}]}
    text = json.dumps({"output": {"message": message}, "stopReason": "end_turn", "usage": usage})
    at = text.index('"usage"')
    return text[: at // 2].encode(), text[at // 2 : at].encode(), text[at:].encode()


def _sse(message: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(message).encode() + b"\n\n"
