"""The routes that take texts, answered by the server's own protocol, below ASGI.

uvicorn makes a scope, a cycle, an event and a task for each request, and checks and joins what the
application sends. A request whose whole body came with its head, as nearly all do, needs none of
that: it goes from the parser to the routes, and its answer is written in one piece. Everything else
(other pages, bodies in pieces, pipelined requests, ``Expect``, HTTP/1.0) goes to the application,
which answers alike.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from spamdetect.service.body import RequestBody, fields_of
from spamdetect.service.protocol import STATUS_LINE, HardenedProtocol
from spamdetect.service.respond import Reply
from spamdetect.service.routes import ENDPOINTS, HotRoutes
from spamdetect.service.settings import ServiceSettings
from spamdetect.service.state import Request
from spamdetect.service.steps import run_soon

_ENDPOINTS: Final = {path.encode(): endpoint for path, endpoint in ENDPOINTS.items()}


def direct_protocol(settings: ServiceSettings, routes: HotRoutes) -> type[asyncio.Protocol]:
    """The protocol class for uvicorn, bound to the settings and the routes."""
    bound = {"settings": settings, "routes": routes, "heads": {}, "lingering": set()}
    return type("_DirectProtocol", (DirectProtocol,), bound)


class _NoEvent:
    """Takes the place of the event that wakes an application."""

    @staticmethod
    def set() -> None:
        """Nobody waits."""


class _DirectCycle:
    """A request that needs no application, where uvicorn expects its own cycle.

    uvicorn lets pipelined requests wait while ``response_complete`` is false, and sets
    ``keep_alive`` to false when the server stops.
    """

    __slots__ = (
        "disconnected", "endpoint", "headers", "keep_alive", "more_body", "parts",
        "response_complete",
    )  # fmt: skip
    message_event = _NoEvent

    def __init__(self, endpoint: str, headers: list[tuple[bytes, bytes]]) -> None:
        self.endpoint = endpoint
        self.headers = headers
        self.parts: list[bytes] = []
        self.more_body = True
        self.response_complete = False
        self.keep_alive = True
        self.disconnected = False


class DirectProtocol(HardenedProtocol):
    """HTTP/1.1 that answers the routes that take texts; a subclass is bound to them."""

    routes: HotRoutes
    heads: dict[int, tuple[object, bytes]]
    _idle_since_s = 0.0
    _idle_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle: Any = self.cycle
        if cycle.__class__ is _DirectCycle and cycle.more_body and not self.transport.is_closing():
            # The rest of the body comes later, or never: that is for the application.
            self._hand_over_body(cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        # The rest is done when the application is to answer.
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._bound_pipeline()

    def on_headers_complete(self) -> None:
        self._check_host()
        endpoint = _ENDPOINTS.get(self.url)
        if endpoint is not None and self._is_plain():
            self.cycle = _DirectCycle(endpoint, self.headers)  # type: ignore[assignment]  # see there
        else:
            self._hand_over()

    def on_body(self, body: bytes) -> None:
        cycle: Any = self.cycle
        if cycle.__class__ is _DirectCycle:
            self._body_bytes += len(body)
            cycle.parts.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        cycle: Any = self.cycle
        if cycle.__class__ is not _DirectCycle:
            super().on_message_complete()
            return
        self._message_ended = True
        cycle.more_body = False
        parts = cycle.parts
        content = parts[0] if len(parts) == 1 else b"".join(parts)
        request = Request(cycle.endpoint, "POST", fields_of(cycle.headers), RequestBody(content))
        run_soon(self.routes.answer(request), partial(self._send, cycle))

    def _is_plain(self) -> bool:
        parser: Any = self.parser
        return bool(
            self._is_between_requests()
            and not self.expect_100_continue
            and not self.flow.write_paused
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
        )

    def _hand_over(self) -> None:
        """Let the application answer the request whose head was read last."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url = url
        self.headers += headers
        self.expect_100_continue = expects
        super().on_headers_complete()

    def _hand_over_body(self, cycle: _DirectCycle) -> None:
        """Let the application answer the request after all."""
        self.cycle = None  # type: ignore[assignment]  # as before the first request
        self._hand_over()
        super().on_body(b"".join(cycle.parts))

    def _head(self, status_code: int) -> bytes:
        """The answer's head up to the value of its ``content-length``."""
        defaults = self.server_state.default_headers  # new every second, for the date
        found = self.heads.get(status_code)
        if found is None or found[0] is not defaults:
            fields = b"".join([b"%b: %b\r\n" % field for field in defaults])
            head = STATUS_LINE[status_code] + fields
            found = defaults, head + b"content-type: application/json\r\ncontent-length: "
            self.heads[status_code] = found
        return found[1]

    def _send(self, cycle: _DirectCycle, reply: Reply) -> None:
        cycle.response_complete = True
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        keep_alive = cycle.keep_alive and not reply.close
        fields = b"".join([b"%b: %b\r\n" % field for field in reply.headers])
        if not keep_alive:
            fields += b"connection: close\r\n"
        self.transport.write(
            b"%b%d\r\ncache-control: no-store\r\n%b\r\n%b"
            % (self._head(reply.status_code), len(reply.body), fields, reply.body)
        )
        if not keep_alive:
            self.transport.close()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_since_s = self.loop.time()
            if self._idle_timer is None:
                self._end_when_idle(self.timeout_keep_alive)

    def _end_when_idle(self, seconds: float) -> None:
        self._idle_timer = self.loop.call_later(seconds, self._idle_too_long)

    def _idle_too_long(self) -> None:
        # One timer serves many requests: it is set anew only when it has fired.
        self._idle_timer = None
        if not self._is_between_requests() or self.timeout_keep_alive_task is not None:
            return  # the next answer sets it, or uvicorn's own has taken over
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if self._head_timer is not None:
            self._end_when_idle(self.timeout_keep_alive)
        elif left_s > 0:
            self._end_when_idle(left_s)
        else:
            self.transport.close()
