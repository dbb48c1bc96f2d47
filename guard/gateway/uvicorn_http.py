"""HTTP connections on uvicorn, with the deadlines and caps that it lacks.

This is the one file of guard that relies on uvicorn's internals: which of its methods call which,
and the attributes that they set. uvicorn does not promise to keep them. ``pyproject.toml``
therefore has an upper bound, and a test fails, with instructions, if one of them is gone.

All of it runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import Server, ServerState

from guard.core import wire
from guard.gateway.api.http import IDENTIFIED, ONE_WRITE
from guard.gateway.connections import HttpConnections
from guard.gateway.domain import render
from guard.gateway.reading import ANSWER_S, READ_S, SLICE_BYTES

__all__ = [
    "Config", "GuardedHttpProtocol", "ServerState", "UvicornServer",
]  # fmt: skip

_HEAD_MAX: Final = 32_768
"""Bytes of one request that are not its body."""

_FIELDS_MAX: Final = 128
_UPGRADE_LINE_MAX: Final = 8_000
"""A longer line would exceed a limit of the WebSocket library."""

_DRAINED_MAX: Final = 64 * 1024
"""A body up to this size is read to its end although its request is answered already."""

_PIPELINE_MAX: Final = 64
"""Requests that may wait behind the one that is served."""

_LINGER_S: Final = 5.0
"""How long a connection stays open after its last answer."""

_DROPPED_MAX: Final = 2 << 20
"""Bytes that are read and dropped in that time."""


class _Flow(FlowControl):
    """Lets the connection decide what happens when uvicorn wants to read again.

    uvicorn's own class would resume the transport, also while the connection has a backlog.
    """

    def __init__(self, transport: asyncio.Transport, resumed: Callable[[], None]) -> None:
        super().__init__(transport)
        # A method of the connection. Cleared when the connection ends: the two refer to each other,
        # and without cycles memory is free at once.
        self.resumed: Callable[[], None] | None = resumed

    def resume_reading(self) -> None:
        """Called by uvicorn when it accepts more of the body, or the next request."""
        if self.read_paused:
            self.read_paused = False
            if self.resumed is not None:
                self.resumed()


class _Dropped(list[tuple[bytes, bytes]]):
    """Drops the fields of trailers.

    uvicorn's parser appends them to the list of headers, which the request's scope shares.
    """

    def append(self, field: tuple[bytes, bytes], /) -> None:
        """Drop a field."""


_DROPPED: Final = _Dropped()


class GuardedHttpProtocol(HttpToolsProtocol):
    """Bounds the size and the duration of every phase of a connection's messages.

    - All bytes that are not body count against one budget, from the end of a message to the end of
      the next: empty lines, head, framing of chunks, trailer.
    - Received data is parsed in slices, one slice of each account in a turn of the loop.
    - An answer that comes before the end of its request ends the connection, unless it was sent
      without ``connection: close`` and the rest of the request is small.

    ``waiting_since`` is when the connection, or the request that is arriving, began; ``None``
    while the gateway waits for nothing. One scan per quarter second reads it, so that a request
    costs a few attribute writes and no timer.

    Its states: open; deaf (``_is_deaf``: nothing more is parsed, earlier requests are still
    answered); refused (``_refused``: deaf, and the last answer is written). It never goes back.
    """

    watch: HttpConnections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows the type the same way
        """Refuse connections above the cap."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self._resumed)
        self.waiting_since: float | None = self.loop.time()
        # Bytes since the end of the last message that were not body, less those that were: a client
        # that sends its body in many small chunks is paid back for their framing.
        self._overhead = 0
        # Of the slice that is being parsed: bytes of bodies, and whether a message ended in it.
        self._body_bytes = 0
        self._message_ended = False
        # Received and not parsed yet; counted in the account's ``held``. While there is some, the
        # transport is paused.
        self._backlog = b""
        # Whether nothing is parsed any more; further data is counted here and dropped.
        self._is_deaf = False
        self._dropped = 0
        # Whether the last answer is written.
        self._refused = False
        # The organisation whose key the connection has carried; ``None`` until then. Set once.
        self.organisation_id: str | None = None
        # Of the address, then of the organisation.
        host = self.client[0] if self.client else ""
        self.account = self.watch.accounts.of_address(host)
        # Seconds that the account of the address was charged for this connection; given back when
        # it shows a key.
        self._used_s = 0.0
        self.watch.protocols.add(self)
        if len(self.connections) > self.watch.connections_max and not self.watch.evict_one():
            self._refuse(503, "GD-B002", "Too many connections")
        # Also if it is refused: its last answer lingers, and it may be evicted for another one.
        self.watch.strangers[self] = None

    def identified(self, organisation_id: str) -> bool:
        """Move the connection to the organisation whose key it carries.

        Returns:
            Whether the organisation has a place left; if not, the connection ends with the answer.
        """
        # Identified before, or evicted while the key was looked up.
        if self.organisation_id is not None or self not in self.watch.strangers:
            return True
        self.organisation_id = organisation_id
        del self.watch.strangers[self]
        self.watch.known.setdefault(organisation_id, {})[self] = None
        self.account.charge(-self._used_s)
        # The backlog moves too: its bytes are counted in the account that it waits in.
        backlog = self._take_backlog()
        self.account = self.watch.accounts.of_organisation(organisation_id)
        if backlog:
            self._hold(backlog)
        has_place = self.watch.has_place(organisation_id, self)
        if not has_place and self.cycle is not None:
            self.cycle.keep_alive = False
        return has_place

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight."""
        cycle = self.cycle
        return self.waiting_since is None and (cycle is None or cycle.response_complete)

    @property
    def is_held(self) -> bool:
        """Whether the gateway itself has paused reading."""
        return bool(self._backlog) or self.flow.read_paused

    def evict(self) -> None:
        """Close the connection to make room for another."""
        # At once, not in ``connection_lost``, which the loop calls later: further connections of
        # this turn of the loop must find the room.
        self.watch.forget(self)
        self.connections.discard(self)
        self.transport.abort()

    # -- reading -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse a small read at once, and a large one in slices, in turn with other connections."""
        # 1. The last answer is decided.
        if self._is_deaf:
            self._drop(len(data))
        # 2. Behind other data, too large for one turn of the loop, or the account has used its
        # share of the loop's time.
        elif self._backlog or len(data) > SLICE_BYTES or self.account.wait_s > 0:
            self._hold(data)
        # 3. At once: nearly every request.
        else:
            self._read(data)

    def _hold(self, data: bytes) -> None:
        """Add data to the backlog, and wait for a turn unless uvicorn has paused reading."""
        if not self.account.may_hold(len(data)):
            self.evict()
            return
        self.account.held += len(data)
        self._backlog += data
        self.transport.pause_reading()
        if not self.flow.read_paused:
            self.account.wait_turn(self)

    def _take_backlog(self) -> bytes:
        """Remove the backlog from the connection and from its account."""
        backlog, self._backlog = self._backlog, b""
        self.account.held -= len(backlog)
        self.account.forget(self)
        return backlog

    def read_on(self) -> None:
        """Parse the next slice of the backlog."""
        data, self._backlog = self._backlog[:SLICE_BYTES], self._backlog[SLICE_BYTES:]
        self.account.held -= len(data)
        self._read(data)
        # Not after an upgrade: the WebSocket reads nothing more before it has answered it.
        if self.parser is not None and not self.flow.read_paused:
            self._resumed()

    def _resumed(self) -> None:
        """Read again: the backlog first, then from the transport."""
        if self._backlog:
            self.account.wait_turn(self)
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def _read(self, data: bytes) -> None:
        """Parse data, and charge its account for the time.

        The parser calls the ``on_...`` methods below.
        """
        began_s = time.perf_counter()
        if self.waiting_since is None:
            self.waiting_since = self.loop.time()
        self._body_bytes = 0
        self._message_ended = False
        super().data_received(data)
        # A slice in which a message ends may also hold the beginning of the next, which is not
        # counted: the parser does not report where it begins.
        self._overhead = 0 if self._message_ended else (
            max(0, self._overhead + len(data) - 2 * self._body_bytes)
        )  # fmt: skip
        if self._overhead > _HEAD_MAX or (self.headers and len(self.headers) > _FIELDS_MAX):
            self._refuse(431, "GD-P003", "Request head too large")
        used_s = time.perf_counter() - began_s + READ_S
        if self.organisation_id is None:
            self.account.charge(used_s)
            self._used_s += used_s
        elif not self._message_ended:  # a request that comes in one read is paid for by its answer
            self.account.charge(used_s)

    def _drop(self, size: int) -> None:
        """Count and drop data that arrives after the last answer."""
        self._dropped += size
        self.account.charge(READ_S)
        if self._dropped > _DROPPED_MAX or self.account.wait_s > 0:
            self.transport.close()

    # -- messages ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Start the deadline of a request."""
        super().on_message_begin()
        self.waiting_since = self.loop.time()
        if len(self.pipeline) > _PIPELINE_MAX:
            self._listen_no_more()

    def on_headers_complete(self) -> None:
        """Refuse a head that is too large; offer the ASGI extensions to the request."""
        # Deaf since an earlier message of the same slice: the parser does not stop in its middle.
        if self._is_deaf:
            return
        if len(self.headers) > _FIELDS_MAX:
            self._refuse(431, "GD-P003", "Request head too large")
            return
        parser: Any = self.parser
        if parser.should_upgrade() and self._should_upgrade():
            self._check_upgrade()
        super().on_headers_complete()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.scope is not self.scope:  # a WebSocket
            return
        # The scope has the list of headers; from here on the parser reports trailers.
        self.headers = _DROPPED
        # Bound to this request: with pipelining, ``self.cycle`` may be a later one's by then. Weak,
        # because the cycle refers to the scope: a reference cycle would need the collector.
        one_write = functools.partial(self._one_write, weakref.ref(cycle))
        extensions: dict[str, Any] = {ONE_WRITE: one_write}
        if self.organisation_id is None:
            extensions[IDENTIFIED] = self.identified
        self.scope["extensions"] = extensions

    def _check_upgrade(self) -> None:
        """Refuse an upgrade that the WebSocket library could not read, with the right status."""
        # Behind a request that is still served: its answer would be lost.
        if not self.is_answered:
            self._listen_no_more()
        elif any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
                 for name, value in self.headers):  # fmt: skip
            self._refuse(400, "GD-P002", "Bad request")
        elif max(len(self.url), *(len(name) + len(value) for name, value in self.headers)) > (
            _UPGRADE_LINE_MAX
        ):
            self._refuse(431, "GD-P003", "Request head too large")

    @property
    def is_answered(self) -> bool:
        """Whether all requests so far are answered."""
        return self.cycle is None or self.cycle.response_complete

    def on_body(self, body: bytes) -> None:
        """Count the bytes of the body, for the overhead of the slice."""
        self._body_bytes += len(body)
        if not self._is_deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End the deadline: the request is complete."""
        if self._is_deaf:
            return
        super().on_message_complete()
        self._message_ended = True
        self.waiting_since = None
        # In advance, and about: the answer is given later, among other work of the loop.
        if self.organisation_id is None:
            self.account.charge(ANSWER_S)
            self._used_s += ANSWER_S

    def send_400_response(self, msg: str) -> None:
        """Answer data that is not HTTP."""
        if self.is_answered or not self.cycle.response_started:
            self._refuse(400, "GD-P002", "Bad request")
        elif not self.transport.is_closing():
            self.transport.close()

    def _one_write(
        self,
        cycle_ref: weakref.ref[RequestResponseCycle],
        status: int,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
    ) -> None:
        """Write a whole answer at once; uvicorn's ``send`` takes two messages and many checks."""
        cycle = cycle_ref()
        if cycle is None:
            return
        # Set even if the client is gone: uvicorn must not report a missing answer.
        cycle.response_started = cycle.response_complete = True
        if cycle.disconnected or self._refused or self.transport.is_closing():
            return
        closes = cycle.more_body or not cycle.keep_alive
        cycle.keep_alive = not closes
        parts = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        if closes:
            parts.append(b"connection: close\r\n")
        parts += (b"\r\n", b"" if cycle.scope["method"] == "HEAD" else body)
        self.transport.write(b"".join(parts))
        # Wakes an application that waits for more of the body.
        cycle.message_event.set()
        # With more of the body to come, ``on_response_complete`` closes in its own way.
        if closes and not cycle.more_body:
            self.transport.close()
        cycle.on_response()

    def on_response_complete(self) -> None:
        """Serve the next request; end the connection if this one has not arrived completely."""
        cycle = self.cycle
        is_early = cycle is not None and cycle.response_complete and cycle.more_body
        # 1. Answered early, with much still to come: not worth reading.
        if is_early and not (cycle.keep_alive and self._is_little()):
            self.server_state.total_requests += 1
            self._linger()
            return
        # 2. Answered. uvicorn begins the next request of the pipeline, or waits for one.
        super().on_response_complete()
        # The next request has begun to arrive: its deadline starts here, because uvicorn did not
        # read it while this one was served.
        if self.waiting_since is not None:
            self.waiting_since = self.loop.time()

    def _is_little(self) -> bool:
        """Whether the body that is still coming is small enough to be read and dropped.

        The answer had no ``connection: close``, so the client may use the connection again.
        """
        length = next((v for n, v in self.scope["headers"] if n == b"content-length"), b"")
        return length.isdigit() and int(length) <= _DRAINED_MAX

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over; the WebSocket has deadlines of its own."""
        if self._is_deaf:
            return
        self.waiting_since = None
        self.watch.forget(self)
        # Data behind the handshake's request is dropped: a client has to wait for the answer.
        self._take_backlog()
        self.transport.resume_reading()
        super().handle_websocket_upgrade()
        # Both refer to this connection, and ``connection_lost`` is the WebSocket's from here on.
        self.parser = None  # type: ignore[assignment]  # as uvicorn does at the end
        self.flow.resumed = None  # type: ignore[attr-defined]  # ours

    # -- the end -------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.waiting_since = None
        self.watch.forget(self)
        self._take_backlog()
        self.watch.accounts.keep(self.account)
        self.flow.resumed = None  # type: ignore[attr-defined]  # ours
        super().connection_lost(exc)
        # uvicorn leaves its timer running if the connection was reset. The timer refers to the
        # connection, whose memory would stay in use until it ends.
        self._unset_keepalive_if_required()
        # Both refer to this connection; a request that is still served has its own references.
        self.cycle = self.scope = None  # type: ignore[assignment]  # uvicorn never asks again

    def end_stalled(self) -> None:
        """Answer 408 if an answer is still possible, and close."""
        cycle = self.cycle
        # 1. The stalled request is the next to be answered, and has no answer yet.
        if self.is_answered or (cycle.more_body and not cycle.response_started):
            self._refuse(408, "GD-P006", "Request timed out")
        # 2. Its answer has begun: a second one cannot be written.
        elif cycle.more_body:
            self.transport.close()
        # 3. An earlier request is still being served.
        else:
            self._listen_no_more()

    def _listen_no_more(self) -> None:
        """Answer the requests that have arrived completely, then close."""
        self.waiting_since = None
        self._is_deaf = True
        self._take_backlog()
        self.cycle.keep_alive = False

    def _refuse(self, status: int, error_code: str, title: str) -> None:
        """Write a problem document as the last answer, and close in a moment."""
        if self.transport.is_closing() or self._refused:
            return
        self._refused = True
        body = wire.encode(render.problem(status, error_code, title))
        head = (
            f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._linger()

    def _linger(self) -> None:
        """Close in a moment, after the last answer.

        To close with unread data would reset the connection, and the client might lose the answer.
        So further data is dropped unparsed for a moment, up to a limit.
        """
        if self.transport.is_closing():
            return
        self.waiting_since = None
        self._is_deaf = True
        self._take_backlog()
        self.pipeline.clear()
        # The client sees the end of the answers, and ends its side. TLS has no half-close.
        with contextlib.suppress(OSError, NotImplementedError):
            self.transport.write_eof()
        self.transport.resume_reading()
        self.loop.call_later(_LINGER_S, self.transport.close)


class UvicornServer(Server):
    """uvicorn without its own signal handling, which would replace the caller's."""

    # Set before the server starts, from the same setting as the deadline of a request.
    handshake_deadline_s: float = 60.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; over TLS with a deadline for handshakes, which uvicorn does not set."""
        config = self.config
        if config.ssl is None:
            await super().startup(sockets)
            return
        # Everything but listening.
        await super().startup([])

        make: Any = config.http_protocol_class

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = make(
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                protocol,
                sock=each,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=self.handshake_deadline_s,
            )
            for each in sockets or []
        ]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield
