"""WebSocket connections, read and written without ASGI.

ASGI hands over one message at a time, each through a queue and a turn of the loop. Requests on the
control socket come many to a read, and many are answered by one commit; so frames go straight from
the read to their reader, and answers straight to the transport.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final, cast
from urllib.parse import unquote

from websockets.datastructures import Headers
from websockets.exceptions import InvalidMessage
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from guard.core import wire
from guard.gateway.api.http import Scope
from guard.gateway.api.socket import (
    CLOSE_ERROR,
    CLOSE_POLICY,
    CLOSE_WRONG_TYPE,
    FrameReader,
    Socket,
)
from guard.gateway.domain import render
from guard.gateway.reading import Accounts
from guard.gateway.uvicorn_http import Config, ServerState

PING_INTERVAL_S: Final = 20.0
PING_TIMEOUT_S: Final = 20.0
_CLOSE_TIMEOUT_S: Final = 5.0
_LINGER_S: Final = 1.0
_SHUTDOWN_LINGER_S: Final = 0.5
_SLICE_BYTES: Final = 16_384
_FRAGMENT_MIN: Final = 256
_IDLE_FRAMES_MAX: Final = 1000
"""Frames without a message of their own, such as pings and small fragments, between two pings."""

# At debug level the library logs the handshake's headers, and one of them is the key.
_quiet = logging.getLogger("guard.gateway.websocket.frames")
_quiet.setLevel(logging.WARNING)
logger = logging.getLogger(__name__)

Endpoint = Callable[[Socket, Scope], Coroutine[Any, Any, None]]


class SocketProtocol(asyncio.Protocol):
    """One WebSocket connection; implements :class:`guard.gateway.api.socket.Socket`.

    uvicorn makes one for each upgrade, and tells it when the server ends.

    Attributes:
        endpoint: serves the connection, from its handshake on; set by the server.
        bytes_max: largest message that is read.
        accounts: of all connections of the server.
    """

    endpoint: ClassVar[Endpoint]
    bytes_max: ClassVar[int]
    accounts: ClassVar[Accounts]

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        # uvicorn's own sets: it waits for both when the server ends.
        self._connections: set[Any] = server_state.connections
        self._tasks = server_state.tasks
        self._drain_s = float(config.timeout_graceful_shutdown or 0)
        # Parses and frames, without input or output of its own.
        self._conn = ServerProtocol(max_size=self.bytes_max, logger=_quiet)
        # The handshake's answer, from its request until it is accepted or refused.
        self._response: Response | None = None
        # Takes the frames, from the accepted handshake until the connection is lost.
        self._reader: FrameReader | None = None
        # Runs the endpoint.
        self._task: asyncio.Task[None] | None = None
        # Of a message that comes in several frames.
        self._parts: list[bytes] = []
        # Received, and not read yet.
        self._backlog = b""
        # Frames since the last ping that were no whole message.
        self._idle_frames = 0
        # Cleared by the transport while its buffer is full.
        self._writable = asyncio.Event()
        self._writable.set()
        # Whether the reader has asked not to be given more, and whether the transport reads: it
        # does unless that, or a full buffer, forbids it.
        self._held = False
        self._is_reading = True
        # The one timer: of the next ping, of its answer, or of the end.
        self._timer: asyncio.TimerHandle | None = None
        # What the last ping carried, until it is answered.
        self._ping: bytes | None = None
        # Whether the end has begun: nothing is sent any more, and the timer may abort.
        self._is_ending = False

    # -- connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the connection of an upgrade."""
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        peer = transport.get_extra_info("peername")
        self._account = self.accounts.of_address(peer[0] if peer else "")

    def identified(self, organisation_id: str) -> None:
        """Note whose key the handshake carried; nothing has been read since."""
        self._account = self.accounts.of_organisation(organisation_id)

    def connection_lost(self, exc: Exception | None) -> None:
        """End serving."""
        self._connections.discard(self)
        self._is_ending = True
        self._account.held -= len(self._backlog)
        self._account.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            # Its traceback refers to this connection; without cycles memory is free at once, and
            # the collector of a gateway hardly ever runs.
            self._task = None
        if self._reader is not None:
            self._reader.lost()
            self._reader = None

    def data_received(self, data: bytes) -> None:
        """Read it now if it is little, else in its turn."""
        if not self._backlog and len(data) <= _SLICE_BYTES:
            self._read(data)
        elif self._account.may_hold(len(data)):
            self._account.held += len(data)
            self._backlog += data
            self._set_reading()
        else:
            self._transport.abort()

    def read_on(self) -> None:
        """Read the next slice of what is held."""
        if self._may_read:
            data, self._backlog = self._backlog[:_SLICE_BYTES], self._backlog[_SLICE_BYTES:]
            self._account.held -= len(data)
            self._read(data)
            self._set_reading()

    def _read(self, data: bytes) -> None:
        """Parse what has been read, and hand its text frames over together."""
        conn = self._conn
        conn.receive_data(data)
        frames: list[bytes] = []
        for event in conn.events_received():
            if isinstance(event, Frame):
                self._take(event, frames)
            else:
                assert isinstance(event, Request)
                self._begin(event)
        if isinstance(conn.handshake_exc, InvalidMessage) and not self._is_ending:
            self._transport.write(_bad_handshake())
        if self._idle_frames > _IDLE_FRAMES_MAX:
            conn.fail(CLOSE_POLICY, "too many frames without a message")
        self._write_out()
        if frames and self._reader is not None and conn.state is OPEN:
            self._reader.received(frames)

    def _take(self, frame: Frame, frames: list[bytes]) -> None:
        opcode = frame.opcode
        if opcode is Opcode.TEXT and frame.fin:
            frames.append(bytes(frame.data))
            return
        if len(frame.data) < _FRAGMENT_MIN:
            self._idle_frames += 1
        if opcode is Opcode.TEXT or opcode is Opcode.CONT:
            self._parts.append(bytes(frame.data))
            if frame.fin:
                frames.append(b"".join(self._parts))
                self._parts.clear()
        elif opcode is Opcode.BINARY:
            self.close(CLOSE_WRONG_TYPE, "text frames only")
        elif opcode is Opcode.PONG and self._ping == bytes(frame.data):
            self._ping = None
            self._later(PING_INTERVAL_S, self._send_ping)

    def _write_out(self) -> None:
        """Write what the protocol has to say, and close when it says so."""
        data = b"".join(self._conn.data_to_send())
        if data:
            self._transport.write(data)
        if self._conn.close_expected() or self._conn.parser_exc is not None:
            self._end(_CLOSE_TIMEOUT_S)

    def _end(self, within_s: float) -> None:
        """Close once everything is written; abort if the client does not read it in time."""
        if not self._is_ending:
            self._is_ending = True
            self._later(within_s, self._transport.abort)
        if self._conn.eof_sent:
            self._transport.close()

    def _later(self, delay_s: float, call: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, call)

    # -- handshake -----------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        response = self._conn.accept(request)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._conn.send_response(response)
            return
        self._response = response
        self._held = True  # nothing is due before the handshake's answer
        self._set_reading()
        path, _, query = request.path.partition("?")
        names = ",".join(request.headers.get_all("Sec-WebSocket-Protocol"))
        scope = {
            "type": "websocket",
            "scheme": "ws" if self._transport.get_extra_info("sslcontext") is None else "wss",
            "path": unquote(path),
            "raw_path": path.encode("ascii", "surrogateescape"),
            "query_string": query.encode("ascii", "surrogateescape"),
            "headers": [
                (name.lower().encode("ascii"), value.encode("ascii", "surrogateescape"))
                for name, value in request.headers.raw_items()
            ],
            "subprotocols": [name.strip() for name in names.split(",")],
        }
        self._task = self._loop.create_task(self._serve(scope))
        self._tasks.add(self._task)
        self._task.add_done_callback(self._tasks.discard)

    async def _serve(self, scope: Scope) -> None:
        try:
            await type(self).endpoint(self, scope)
        except Exception:
            logger.exception("a control socket failed")
            if self._response is not None:
                self.refuse(500, [], b"")
            self.close(CLOSE_ERROR)

    def accept(self, subprotocol: str | None, reader: FrameReader) -> None:
        """Complete the handshake."""
        response, self._response = self._response, None
        if response is None or self._is_ending:
            reader.lost()
            return
        if subprotocol is not None:
            response.headers["Sec-WebSocket-Protocol"] = subprotocol
        self._reader = reader
        self._conn.send_response(response)
        self._write_out()
        self.hold_reading(False)
        self._later(PING_INTERVAL_S, self._send_ping)

    def refuse(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Answer the handshake with a problem document, and close."""
        self._response = None
        if self._is_ending:
            return
        fields = Headers((name.decode("latin-1"), value.decode("latin-1"))
                         for name, value in headers)  # fmt: skip
        fields["Content-Length"] = str(len(body))
        fields["Connection"] = "close"
        self._conn.send_response(Response(status, HTTPStatus(status).phrase, fields, body))
        self._write_out()

    # -- frames --------------------------------------------------------------------------------

    def send(self, payloads: Sequence[bytes]) -> None:
        """Write text frames, in one write."""
        conn = self._conn
        if conn.state is not OPEN or self._is_ending:
            return
        for payload in payloads:
            conn.send_text(payload)
        self._transport.write(b"".join(conn.data_to_send()))

    def close(self, code: int, reason: str = "") -> None:
        """Begin the closing handshake."""
        if self._conn.state is OPEN:
            self._conn.send_close(code, reason)
            self._write_out()

    # -- flow ----------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """Whether the client reads too slowly to be sent more now."""
        return not self._writable.is_set()

    def pause_writing(self) -> None:
        """Read nothing more from a client that does not read: its answers would pile up."""
        self._writable.clear()
        self._set_reading()

    def resume_writing(self) -> None:
        """Go on, with the messages that wait before the answers that do."""
        self._writable.set()
        self._set_reading()
        # The task that pushes messages runs in the next turn of the loop, this in the one after.
        self._loop.call_soon(self._loop.call_soon, self._tell_writable)

    def _tell_writable(self) -> None:
        if self._reader is not None:
            self._reader.writable()

    async def wait_writable(self) -> None:
        """Wait while the client reads too slowly."""
        await self._writable.wait()

    def hold_reading(self, held: bool) -> None:
        """Stop reading from the client, or go on."""
        self._held = held
        self._set_reading()

    @property
    def _may_read(self) -> bool:
        return self._writable.is_set() and not self._held

    def _set_reading(self) -> None:
        if self._may_read and self._backlog:
            self._account.wait_turn(self)
        wanted = self._may_read and not self._backlog
        if wanted == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- keepalive and the end -----------------------------------------------------------------

    def _send_ping(self) -> None:
        if self._is_ending:
            return
        self._idle_frames = 0
        self._ping = secrets.token_bytes(4)
        self._conn.send_ping(self._ping)
        self._write_out()
        self._later(PING_TIMEOUT_S, self.keepalive_timeout)

    def keepalive_timeout(self) -> None:
        """Close on a client that does not answer pings."""
        if self._is_ending:
            return
        self._conn.fail(CLOSE_ERROR, "keepalive ping timeout")
        self._transport.write(b"".join(self._conn.data_to_send()))
        self._end(_LINGER_S)

    def shutdown(self) -> None:
        """The server ends: the endpoint closes the socket once its requests are answered."""
        if self._conn.state is not OPEN:
            self._transport.close()
        self._loop.call_later(_SHUTDOWN_LINGER_S, self._give_up)

    def _give_up(self) -> None:
        if self._task is None or self._task.done() or self.is_paused:
            self._transport.abort()
        else:
            self._loop.call_later(self._drain_s, self._transport.abort)


def _bad_handshake() -> bytes:
    body = wire.encode(render.problem(400, "GD-P002", "Bad request"))
    head = (
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
