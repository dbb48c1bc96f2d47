"""HTTP connections on uvicorn, with the deadlines and caps that it lacks.

This is the one file of guard that relies on how uvicorn works inside: which of its methods call
which, and what they keep on themselves. Those names are not promised to stay. ``pyproject.toml``
therefore has an upper bound, and a test that fails where one of them is gone says what to do.

All of it runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import weakref
from collections.abc import Iterator
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import Server, ServerState

from guard.core import wire
from guard.gateway.api.http import IDENTIFIED, ONE_WRITE
from guard.gateway.domain import render
from guard.gateway.settings import GatewaySettings

__all__ = [
    "Config", "GuardedHttpProtocol", "HttpConnections", "ServerState", "UvicornServer",
]  # fmt: skip

_SCAN_INTERVAL_S: Final = 0.25
_HEAD_MAX: Final = 32_768
_LINGER_S: Final = 1.0


class HttpConnections:
    """The connections of one server.

    One timer scans them all for stalled requests. When the server is full, one is closed to make
    room for another.

    Attributes:
        strangers: connections that have not authenticated yet, oldest first.
        known: authenticated connections by organisation, oldest first.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.deadline_s = settings.request_deadline_ms / 1000
        self.connections_max = settings.connections_max
        # All that may stall. Weak, so that a connection that uvicorn has let go of is gone at once.
        self.protocols: weakref.WeakSet[GuardedHttpProtocol] = weakref.WeakSet()
        self.strangers: dict[GuardedHttpProtocol, None] = {}
        self.known: dict[str, dict[GuardedHttpProtocol, None]] = {}

    def make_room(self) -> bool:
        """Close the oldest stranger, else an idle connection of the organisation with the most."""
        for protocol in self.strangers:
            protocol.evict()
            return True
        largest = max(self.known.values(), key=len, default={})
        for protocol in largest:
            if protocol.is_idle:
                protocol.evict()
                return True
        return False

    def forget(self, protocol: GuardedHttpProtocol) -> None:
        """Stop watching a connection."""
        self.protocols.discard(protocol)
        self.strangers.pop(protocol, None)
        owner = protocol.organisation_id
        if owner is not None and owner in self.known:
            group = self.known[owner]
            group.pop(protocol, None)
            if not group:
                del self.known[owner]

    async def run(self) -> None:
        """Scan until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SCAN_INTERVAL_S)
            self.scan(loop.time())

    def scan(self, now: float) -> None:
        """End connections whose request has not arrived in time."""
        for protocol in list(self.protocols):
            if protocol.waiting_since is not None and (
                now - protocol.waiting_since > self.deadline_s
            ):
                protocol.end_stalled()


class GuardedHttpProtocol(HttpToolsProtocol):
    """Ends requests whose head or body does not arrive in time, and caps heads and connections.

    ``waiting_since`` is when the connection, or the request now arriving, began; ``None`` while
    the gateway waits for nothing. One scan per quarter second reads it, so that a request costs
    two attribute writes and no timer.
    """

    watch: HttpConnections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows the type the same way
        """Refuse connections above the cap."""
        super().connection_made(transport)
        self.waiting_since: float | None = self.loop.time()
        # Of the head that is arriving; httptools has no limit of its own.
        self._head_bytes = 0
        self._in_head = True
        # Whether the last answer is written: what still arrives is read and dropped.
        self._refused = False
        # Whose key the connection has carried; ``None`` until then.
        self.organisation_id: str | None = None
        self.watch.protocols.add(self)
        if len(self.connections) > self.watch.connections_max and not self.watch.make_room():
            self._refuse(503, "GD-B002", "Too many connections")
        self.watch.strangers[self] = None

    def identified(self, organisation_id: str) -> None:
        """Note that the connection carries a key of this organisation."""
        if self.organisation_id is None and self in self.watch.strangers:
            self.organisation_id = organisation_id
            del self.watch.strangers[self]
            self.watch.known.setdefault(organisation_id, {})[self] = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight."""
        cycle = self.cycle
        return self.waiting_since is None and (cycle is None or cycle.response_complete)

    def evict(self) -> None:
        """Close the connection to make room for another."""
        self.watch.forget(self)
        self.connections.discard(self)
        self.transport.abort()

    def on_message_begin(self) -> None:
        """Start the deadline of a request."""
        super().on_message_begin()
        self._head_bytes = 0
        self._in_head = True
        self.waiting_since = self.loop.time()

    def on_headers_complete(self) -> None:
        """Offer the ASGI extensions to the request whose head is complete."""
        self._in_head = False
        super().on_headers_complete()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None:  # a WebSocket
            return
        # Bound to this request: with pipelining, ``self.cycle`` may be a later one's by then. Weak,
        # because the cycle refers to the scope: a reference cycle would need the collector.
        one_write = functools.partial(self._one_write, weakref.ref(cycle))
        extensions: dict[str, Any] = {ONE_WRITE: one_write}
        if self.organisation_id is None:
            extensions[IDENTIFIED] = self.identified
        self.scope["extensions"] = extensions

    def data_received(self, data: bytes) -> None:
        """Cap the size of the head."""
        if self._refused:
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_MAX:
                self._refuse(431, "GD-P003", "Request head too large")

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
        # Set even if the client has gone: uvicorn must not report a missing answer.
        cycle.response_started = cycle.response_complete = True
        if cycle.disconnected or self._refused or self.transport.is_closing():
            return
        parts = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            parts.append(b"connection: close\r\n")
        parts += (b"\r\n", b"" if cycle.scope["method"] == "HEAD" else body)
        self.transport.write(b"".join(parts))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    def on_message_complete(self) -> None:
        """End the deadline: the request is complete."""
        super().on_message_complete()
        self.waiting_since = None

    def handle_websocket_upgrade(self) -> None:
        """End the deadline: the WebSocket has its own."""
        self.waiting_since = None
        self.watch.forget(self)
        super().handle_websocket_upgrade()
        # It refers to this connection; uvicorn forgets it only where no WebSocket takes over.
        self.parser = None  # type: ignore[assignment]  # as uvicorn does at the end

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.waiting_since = None
        self.watch.forget(self)
        super().connection_lost(exc)
        # uvicorn leaves the timer where the connection was reset: it would hold everything of the
        # connection for as long as an idle one is kept.
        self._unset_keepalive_if_required()
        # Both refer to this connection; a request that is still served has its own references.
        self.cycle = self.scope = None  # type: ignore[assignment]  # uvicorn never asks again

    def end_stalled(self) -> None:
        """Answer 408 where an answer is still possible, and close."""
        self.waiting_since = None
        cycle = self.cycle
        if cycle is None or not cycle.response_started:
            self._refuse(408, "GD-P006", "Request timed out")
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, status: int, error_code: str, title: str) -> None:
        if self.transport.is_closing() or self._refused:
            return
        self._refused = True
        body = wire.encode(render.problem(status, error_code, title))
        head = (
            f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        # Closing with unread data would reset the connection and may lose the answer, so further
        # data is read and dropped for a moment.
        with contextlib.suppress(OSError, NotImplementedError):
            self.transport.write_eof()
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
