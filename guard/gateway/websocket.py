"""WebSocket connections, read and written without ASGI.

ASGI hands over one message at a time, each through a queue and a turn of the loop. Requests on the
control socket come many to a read, and many are answered by one commit; so frames go straight from
the read to their reader, and answers straight to the transport.

All of it runs on the server's event loop.
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
from guard.gateway.reading import ReadQuotas
from guard.gateway.uvicorn_http import Config, ServerState

PING_INTERVAL_S: Final = 20.0
PING_TIMEOUT_S: Final = 20.0
_CLOSE_TIMEOUT_S: Final = 5.0
"""How long the client may take to answer a close frame and read what is written."""

_LINGER_S: Final = 1.0
"""The same for a client that has answered no ping."""

_SHUTDOWN_LINGER_S: Final = 0.5
"""How long a socket without an endpoint, or with a slow client, stays open when the server ends."""

_SLICE_BYTES: Final = 16_384
"""Bytes that are parsed in one turn of the loop."""

_FRAGMENT_MIN: Final = 256
"""A smaller fragment of a message counts as a frame without a message."""

_IDLE_FRAMES_MAX: Final = 1000
"""Frames without a message, such as pings and small fragments, that may come between two pings of
the server: they cost time and ask for nothing."""

# At debug level the library logs the handshake's headers, and one of them is the key.
_quiet = logging.getLogger("guard.gateway.websocket.frames")
_quiet.setLevel(logging.WARNING)
logger = logging.getLogger(__name__)

Endpoint = Callable[[Socket, Scope], Coroutine[Any, Any, None]]


class SocketProtocol(asyncio.Protocol):
    """One WebSocket connection; implements :class:`guard.gateway.api.socket.Socket`.

    uvicorn makes one for each upgrade, hands it the request's head as received data, and calls
    :meth:`shutdown` when the server ends.

    Its life: an upgrade (``_begin``), the endpoint accepts or refuses, frames until either side
    closes (``_end``), ``connection_lost``.

    Attributes:
        endpoint: serves the connection, from its handshake on; set by the server.
        bytes_max: largest message that is read.
        accounts: of all connections of the server.
    """

    endpoint: ClassVar[Endpoint]
    bytes_max: ClassVar[int]
    accounts: ClassVar[ReadQuotas]

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        # uvicorn's own sets: it waits for both when the server ends.
        self._connections: set[Any] = server_state.connections
        self._tasks = server_state.tasks
        # How long requests may take to finish when the server ends.
        self._drain_s = float(config.timeout_graceful_shutdown or 0)
        # Parses and frames, without input or output of its own. It limits the sizes of the head and
        # of a message; all other limits of time and memory are this class's part.
        self._conn = ServerProtocol(max_size=self.bytes_max, logger=_quiet)
        # The handshake's answer, from its request until it is accepted or refused.
        self._response: Response | None = None
        # Takes the frames, from the accepted handshake until the connection is lost.
        self._reader: FrameReader | None = None
        # Runs the endpoint, from the handshake's request on. Dropped when the connection is lost.
        self._task: asyncio.Task[None] | None = None
        # The frames so far of a message that comes in several. The library adds up their sizes and
        # ends a connection whose message is too large.
        self._parts: list[bytes] = []
        # Received and not parsed yet; counted in the account's ``held``. While there is some, the
        # transport is paused and the connection waits for its turn, or for ``_may_read``.
        self._backlog = b""
        # Frames since the server's last ping that were no whole message.
        self._idle_frames = 0
        # Cleared while the transport's write buffer is full: the client reads too slowly.
        self._writable = asyncio.Event()
        self._writable.set()
        # Whether the reader (or the handshake) has asked for a pause, and whether the transport is
        # reading. ``_set_reading`` derives the second from the first, the buffer and the backlog.
        self._held = False
        self._is_reading = True
        # The one timer: of the next ping, of its answer, or of the end. A new one replaces it.
        self._timer: asyncio.TimerHandle | None = None
        # The payload of the last ping, until it is answered.
        self._ping: bytes | None = None
        # Whether the end has begun. It never goes back: nothing is sent any more, and the timer is
        # the one that aborts.
        self._is_ending = False

    # -- connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the connection of an upgrade; uvicorn may call :meth:`shutdown` from now on."""
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        peer = transport.get_extra_info("peername")
        self._account = self.accounts.of_address(peer[0] if peer else "")

    def identified(self, organisation_id: str) -> None:
        """Use the account of the organisation whose key the handshake carried.

        The backlog is empty, because nothing was read since the handshake's request.
        """
        self._account = self.accounts.of_organisation(organisation_id)

    def connection_lost(self, exc: Exception | None) -> None:
        """End serving."""
        self._connections.discard(self)
        self._is_ending = True
        # The bytes of the backlog stop counting with the connection. It is dropped, so that nobody
        # who still refers to the connection, and lets it read again, has it wait for another turn.
        self._account.held -= len(self._backlog)
        self._backlog = b""
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
        """Parse a small read at once, and a large one in slices, in turn with other connections."""
        # 1. Small, and nothing before it.
        if not self._backlog and len(data) <= _SLICE_BYTES:
            self._read(data)
        # 2. Too large for one turn of the loop, or behind something that is.
        elif self._account.may_hold(len(data)):
            self._account.held += len(data)
            self._backlog += data
            self._set_reading()
        # 3. The organisation's connections together have sent too much at once.
        else:
            self._transport.abort()

    def read_on(self) -> None:
        """Parse the next slice of the backlog."""
        if self._may_read:
            data, self._backlog = self._backlog[:_SLICE_BYTES], self._backlog[_SLICE_BYTES:]
            self._account.held -= len(data)
            self._read(data)
            self._set_reading()

    def _read(self, data: bytes) -> None:
        """Parse data, and pass its text frames on together: they become one group of requests."""
        conn = self._conn
        conn.receive_data(data)
        frames: list[bytes] = []
        for event in conn.events_received():
            if isinstance(event, Frame):
                self._take(event, frames)
            else:
                assert isinstance(event, Request)
                self._begin(event)
        # The library answers other bad handshakes itself; on data that is not HTTP it only closes.
        if isinstance(conn.handshake_exc, InvalidMessage) and not self._is_ending:
            self._transport.write(_bad_handshake())
        if self._idle_frames > _IDLE_FRAMES_MAX:
            conn.fail(CLOSE_POLICY, "too many frames without a message")
        self._write_out()
        # Last: the reader may close the connection. After a close frame or a failure no request of
        # the same read is begun: its answer could not be sent.
        if frames and self._reader is not None and conn.state is OPEN:
            self._reader.received(frames)

    def _take(self, frame: Frame, frames: list[bytes]) -> None:
        """Handle one frame; append each complete message to ``frames``.

        The library answers pings and close frames itself.
        """
        opcode = frame.opcode
        # 1. A message in one frame: all that guard's clients send.
        if opcode is Opcode.TEXT and frame.fin:
            frames.append(bytes(frame.data))
            return
        # 2. Anything else costs time and may ask for nothing; ``_read`` limits its number.
        if len(frame.data) < _FRAGMENT_MIN:
            self._idle_frames += 1
        # 3. A message in several frames.
        if opcode is Opcode.TEXT or opcode is Opcode.CONT:
            self._parts.append(bytes(frame.data))
            if frame.fin:
                frames.append(b"".join(self._parts))
                self._parts.clear()
        elif opcode is Opcode.BINARY:
            self.close(CLOSE_WRONG_TYPE, "text frames only")
        # 4. The answer to the last ping; unsolicited ones prove nothing.
        elif opcode is Opcode.PONG and self._ping == bytes(frame.data):
            self._ping = None
            self._later(PING_INTERVAL_S, self._send_ping)

    def _write_out(self) -> None:
        """Write the output of the library, and close the connection when the library expects it."""
        data = b"".join(self._conn.data_to_send())
        if data:
            self._transport.write(data)
        if self._conn.close_expected() or self._conn.parser_exc is not None:
            self._end(_CLOSE_TIMEOUT_S)

    def _end(self, within_s: float) -> None:
        """Close once everything is written; abort if the client does not read it in time.

        May be called again, when more of the closing handshake has arrived.
        """
        if not self._is_ending:
            self._is_ending = True
            self._later(within_s, self._transport.abort)
        # The library has sent all it had to: ``close`` flushes the transport's buffer first.
        if self._conn.eof_sent:
            self._transport.close()

    def _later(self, delay_s: float, call: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, call)

    # -- handshake -----------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        # Checks the request and makes the answer, without sending it.
        response = self._conn.accept(request)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._conn.send_response(response)
            return
        # The answer is sent by ``accept``, once the endpoint has checked the key.
        self._response = response
        self._held = True  # a client may send nothing before the handshake's answer
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
        # The connection was lost while the key was checked, so ``connection_lost`` had no reader.
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
        # The client repeats unanswered requests on its next connection.
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
        """Read nothing more from a client that does not read: its answers would fill the memory.

        Called by the transport when its write buffer is full.
        """
        self._writable.clear()
        self._set_reading()

    def resume_writing(self) -> None:
        """Read again, and send the messages that wait, then the answers that wait.

        Called by the transport when its write buffer has room.
        """
        self._writable.set()
        self._set_reading()
        # Messages first: a kill may be among them. The task that pushes them runs in the next turn
        # of the loop, this call in the one after.
        self._loop.call_soon(self._loop.call_soon, self._tell_writable)

    def _tell_writable(self) -> None:
        if self._reader is not None:
            self._reader.writable()

    async def wait_writable(self) -> None:
        """Wait while the client reads too slowly."""
        await self._writable.wait()

    def hold_reading(self, held: bool) -> None:
        """Stop reading from the client, or read again."""
        self._held = held
        self._set_reading()

    @property
    def _may_read(self) -> bool:
        return self._writable.is_set() and not self._held

    def _set_reading(self) -> None:
        """Bring the transport and the turn in line with the state. Idempotent.

        The backlog comes before new data, so the transport is paused while there is some.
        """
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
        # Random, so that a client cannot answer a ping before it is sent.
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
        """Let the endpoint close the socket once its requests are answered; then abort.

        Called by uvicorn when the server ends. The hub ends the endpoint's channel, now or within
        the time over which it spreads all of them.
        """
        if self._conn.state is not OPEN:
            self._transport.close()
        self._loop.call_later(_SHUTDOWN_LINGER_S, self._give_up)

    def _give_up(self) -> None:
        # 1. Nothing is left to answer, or the client reads no answers.
        if self._task is None or self._task.done() or self.is_paused:
            self._transport.abort()
        # 2. Requests are being decided, or the channel has not ended yet: as long as uvicorn waits
        # for requests over HTTP.
        else:
            self._loop.call_later(self._drain_s, self._transport.abort)


def _bad_handshake() -> bytes:
    body = wire.encode(render.problem(400, "GD-P002", "Bad request"))
    head = (
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
