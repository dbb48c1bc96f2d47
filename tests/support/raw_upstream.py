"""A server that notes each request byte by byte, and answers in chunks that a test has chosen."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import Sequence
from typing import Any

import attrs
import h11

from tests.support.closing import Accepted

Headers = list[tuple[bytes, bytes]]


@attrs.frozen
class RawRequest:
    """A request as it has arrived; names of headers as they were written."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes


@attrs.frozen
class RawAnswer:
    """An answer.

    Attributes:
        status, headers: of it; without ``content-length`` it is sent in chunks of HTTP.
        parts: of its body, each sent by itself.
    """

    status: int
    headers: Headers
    parts: Sequence[bytes]


class RawUpstream:
    """Answers requests, on a thread and a port of its own, in the order of :attr:`answers`.

    Attributes:
        url: where it listens.
        requests, answers: what has arrived, and what is to be answered.
    """

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[RawRequest] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[RawAnswer] = queue.SimpleQueue()
        # With the protocol named asyncio sends at once; else a head's body waits 40 ms for an ACK.
        listening = socket.socket(proto=socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._main = self._loop.create_task(self._listen(listening))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(60)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._main)
        self._loop.close()

    async def _listen(self, listening: socket.socket) -> None:
        accepted = Accepted(self._serve)
        server = await asyncio.start_server(accepted, sock=listening)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await accepted.end(server)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer_all(reader, writer)
        finally:
            writer.close()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        while True:
            head: Any = None
            body = bytearray()
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await reader.read(1 << 20))
                elif isinstance(event, h11.Request):
                    head = event
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
                else:
                    return
            raw = [(bytes(name), bytes(value)) for name, value in head.headers.raw_items()]
            self.requests.put(RawRequest(bytes(head.method), bytes(head.target), raw, bytes(body)))
            answer = self.answers.get_nowait()
            response: Any = h11.Response(status_code=answer.status, headers=answer.headers)
            writer.write(connection.send(response) or b"")
            for part in answer.parts:
                await writer.drain()
                writer.write(connection.send(h11.Data(data=part)) or b"")
                await asyncio.sleep(0)
            writer.write(connection.send(h11.EndOfMessage()) or b"")
            await writer.drain()
            if connection.our_state is h11.MUST_CLOSE:
                return
            connection.start_next_cycle()


class RawClient:
    """One connection to a server, over which bytes are sent as a test has chosen."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._socket = socket.create_connection((host, int(port)), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def __call__(self, method: str, target: bytes, headers: Headers, parts: Sequence[bytes],
                 *, chunked: bool) -> RawAnswer:  # fmt: skip
        """Send a request, each part by itself, and return its answer."""
        self._parser.send(h11.Request(method=method, target=b"/", headers=[(b"host", b"x")]))
        self._parser.send(h11.EndOfMessage())
        head = b"%b %b HTTP/1.1\r\n" % (method.encode(), target)
        head += b"".join(b"%b: %b\r\n" % pair for pair in headers)
        self._socket.sendall(head + b"\r\n")
        for part in parts:
            self._socket.sendall(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
        if chunked:
            self._socket.sendall(b"0\r\n\r\n")
        return self._answer()

    def _answer(self) -> RawAnswer:
        found: Any = None
        parts: list[bytes] = []
        while True:
            event = self._parser.next_event()
            if event is h11.NEED_DATA:
                self._parser.receive_data(self._socket.recv(1 << 20))
            elif isinstance(event, h11.Response):
                found = event
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                break
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionError("closed without an answer")
        self._parser.start_next_cycle()
        raw = [(bytes(name), bytes(value)) for name, value in found.headers.raw_items()]
        return RawAnswer(found.status_code, raw, parts)
