"""A vendor on raw sockets that counts the bodies which reach it, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any, Final, Literal

import h11

Behaviour = Literal[
    "ok", "ok, then close", "close", "502", "503", "429", "401", "303", "307", "too late"
]
"""What becomes of a body: an answer, after which the connection may be closed without a word; a
connection that is closed in place of an answer; a status; or, on a connection of HTTP/2 whose end
was told, nothing."""

FREE: Final = ("503", "429", "401", "303", "307", "too late")
"""What no vendor bills."""

PROMPT: Final = 4
OUTPUT: Final = 20
ANSWER: Final = json.dumps({
    "id": "c", "model": "gpt-4o", "choices": [],
    "usage": {"prompt_tokens": PROMPT, "completion_tokens": OUTPUT},
}).encode()  # fmt: skip


def _end_told(stream_id: int) -> bytes:
    """Return HTTP/2's frame that says that no stream after this one is served."""
    return b"\0\0\x08\x07\0\0\0\0\0" + stream_id.to_bytes(4) + bytes(4)


class BodyCounter:
    """Answers each body by the next of its behaviours; a request without a body is answered 200.

    Attributes:
        url: where it listens.
        behaviours: for the bodies to come; ``ok`` when there are no more.
        seen: what became of the bodies that have come.
        closing: the connections that are closed after the answer that was just sent.
        leads_to: the path that a redirect leads to; empty for the one that was asked for.
    """

    def __init__(self) -> None:
        self.behaviours: list[Behaviour] = []
        self.seen: list[Behaviour] = []
        self.closing: set[socket.socket] = set()
        self.leads_to = ""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def billed(self) -> list[Behaviour]:
        """The bodies that a vendor may bill."""
        return [each for each in self.seen if each not in FREE]

    def close(self) -> None:
        """End it, and all of its connections."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in (self._accepting, *self._threads):
            thread.join(60)

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listening.accept()[0]
            except OSError:
                return
            self._open.add(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        # A client that may not send leaves in the middle of its request.
        with connection, contextlib.suppress(OSError, h11.RemoteProtocolError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = connection.recv(1 << 16)
            (self._serve_2 if first.startswith(b"PRI ") else self._serve_1)(connection, first)
        self._open.discard(connection)
        self.closing.discard(connection)

    def _next(self) -> Behaviour:
        behaviour: Behaviour = self.behaviours.pop(0) if self.behaviours else "ok"
        self.seen.append(behaviour)
        return behaviour

    def _answer(
        self, connection: socket.socket, behaviour: Behaviour, path: str
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        if behaviour == "ok, then close":
            self.closing.add(connection)
        status = 200 if behaviour.startswith("ok") else int(behaviour)
        body = ANSWER if status == 200 else b"{}"
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        if 300 <= status < 400:
            headers.append(("location", self.leads_to or path))
        if status == 401:
            headers.append(("www-authenticate", 'Digest realm="r", nonce="n", qop="auth"'))
        return status, headers, body

    def _serve_1(self, connection: socket.socket, first: bytes) -> None:
        parser = h11.Connection(h11.SERVER)
        parser.receive_data(first)
        path, has_body = "", False
        while True:
            event: Any = parser.next_event()
            if event is h11.NEED_DATA:
                parser.receive_data(connection.recv(1 << 16))
            elif isinstance(event, h11.Request):
                path, has_body = event.target.decode(), False
                if (b"expect", b"100-continue") in event.headers:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            elif isinstance(event, h11.Data):
                has_body = True
            elif isinstance(event, h11.EndOfMessage):
                behaviour = self._next() if has_body else "ok"
                if behaviour == "close":
                    return
                status, headers, body = self._answer(connection, behaviour, path)
                said = parser.send(h11.Response(status_code=status, headers=headers)) or b""
                said += parser.send(h11.Data(data=body)) or b""
                connection.sendall(said + (parser.send(h11.EndOfMessage()) or b""))
                if behaviour == "ok, then close" or parser.our_state is h11.MUST_CLOSE:
                    return
                parser.start_next_cycle()
            else:
                return

    def _serve_2(self, connection: socket.socket, first: bytes) -> None:
        import h2.config
        import h2.connection
        import h2.events

        state: Any = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        state.initiate_connection()
        paths: dict[int, str] = {}
        with_body: set[int] = set()
        data, told_end = first, False
        while data:
            for event in state.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    paths[event.stream_id] = dict(event.headers)[b":path"].decode()
                elif isinstance(event, h2.events.DataReceived):
                    with_body.add(event.stream_id)
                    state.acknowledge_received_data(len(event.data), event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    number = event.stream_id
                    if told_end:
                        self.seen.append("too late")
                        continue
                    behaviour = self._next() if number in with_body else "ok"
                    if behaviour == "close":
                        return
                    status, headers, body = self._answer(connection, behaviour, paths[number])
                    state.send_headers(number, [(":status", str(status)), *headers])
                    state.send_data(number, body, end_stream=True)
                    if behaviour == "ok, then close":
                        # As servers do: no stream after this one is served.
                        connection.sendall(state.data_to_send() + _end_told(number))
                        self.closing.discard(connection)
                        told_end = True
            connection.sendall(state.data_to_send())
            data = connection.recv(1 << 16)
