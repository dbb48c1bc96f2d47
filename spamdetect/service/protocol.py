"""HTTP/1.1 on a socket, hardened: what a stranger sends is bounded in number, in time and in bytes.

uvicorn bounds none of them: a few thousand idle or slow connections would block the service, and
one with endless header fields, or a trailer of them, would take its memory. Refusals use the
service's own envelope.

This is the one file that imports uvicorn's internals, whose names are not promised to stay;
:mod:`.direct` builds on it. ``pyproject.toml`` has an upper bound, and a test that fails where one
of the names is gone says what to do.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from spamdetect.models import ErrorCode
from spamdetect.service.respond import RefusalError
from spamdetect.service.settings import ServiceSettings

__all__ = ["STATUS_LINE", "HardenedProtocol", "hardened_protocol"]

_HEAD_MAX: Final = 32_768
"""Bytes of one request that are not its body: empty lines, head, framing of chunks, trailer."""

_FIELDS_MAX: Final = 128
"""Fields of head and trailer."""

_PIPELINE_MAX: Final = 64
"""Requests that may wait behind the one that is served."""

_LINGER_S: Final = 2.0
"""How long a client that was refused may go on sending. Closed at once, with its bytes unread, TCP
resets the connection, and the client loses the answer that says why."""

_LINGER_MAX_BYTES: Final = 4 * 2**20
"""How much it may send meanwhile."""


class _TooMuchError(Exception):
    """A request has more fields, or a connection more requests, than are taken."""


class _NoHostError(Exception):
    """A request does not name its host once, as RFC 9112 (3.2) asks."""


def hardened_protocol(settings: ServiceSettings) -> type[asyncio.Protocol]:
    """The protocol class for uvicorn, bound to the settings."""
    bound = {"settings": settings, "lingering": set()}
    return type("_HardenedProtocol", (HardenedProtocol,), bound)


class HardenedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with bounds; a subclass is bound to the settings.

    The parser calls the ``on_...`` methods. What they raise ends its work on the data at once, and
    uvicorn then calls :meth:`send_400_response`.
    """

    settings: ServiceSettings
    lingering: set[HardenedProtocol]
    _linger_timer: asyncio.TimerHandle | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _turned_away = False
    _lingered = 0
    # Bytes since the end of the last message that were not body, less those that were: a client
    # that sends its body in many small chunks is paid back for their framing.
    _overhead = 0
    # Of the data that is being parsed: bytes of bodies, and whether a message ended in it.
    _body_bytes = 0
    _message_ended = False
    _is_too_much = False
    _is_without_host = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) - len(self.lingering) > self.settings.max_connections:
            self._close_with(503, ErrorCode.OVERLOADED, "The service has too many connections.")
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._turned_away:
            self._lingered += len(data)
            if self._lingered > _LINGER_MAX_BYTES:
                self.transport.close()
            return
        self._body_bytes = 0
        self._message_ended = False
        super().data_received(data)
        # What follows the end of a message is not counted: the parser does not say where it begins.
        self._overhead = 0 if self._message_ended else (
            max(0, self._overhead + len(data) - 2 * self._body_bytes)
        )  # fmt: skip
        if self._overhead > _HEAD_MAX and not self.transport.is_closing():
            self._refuse_too_much()
        if not self._is_between_requests():
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None and not self.transport.is_closing():
            # Only a head that is not complete yet is worth a timer.
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lingering.discard(self)
        for timer in (self._head_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = None
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._bound_pipeline()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Of the trailer, too: the parser adds its fields to those of the head.
        if len(self.headers) >= _FIELDS_MAX:
            self._raise_too_much()
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._check_host()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._message_ended = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._is_too_much:
            self._refuse_too_much()
        elif self._is_without_host:
            self._close_with(
                400, ErrorCode.INVALID_REQUEST, "A request of HTTP/1.1 has the field Host, once."
            )
        else:
            self._close_with(400, ErrorCode.INVALID_REQUEST, "This is not HTTP/1.1.")

    def _bound_pipeline(self) -> None:
        if len(self.pipeline) >= _PIPELINE_MAX:
            self._raise_too_much()

    def _check_host(self) -> None:
        hosts = sum([name == b"host" for name, _ in self.headers])
        parser: Any = self.parser
        if hosts != 1 and (hosts or parser.get_http_version() != "1.0"):
            self._is_without_host = True
            raise _NoHostError

    def _raise_too_much(self) -> None:
        self._is_too_much = True
        raise _TooMuchError

    def _refuse_too_much(self) -> None:
        self._close_with(
            431,
            ErrorCode.INVALID_REQUEST,
            f"A request has at most {_FIELDS_MAX} header fields and {_HEAD_MAX} bytes beside its "
            f"body, and at most {_PIPELINE_MAX} requests wait on a connection.",
        )

    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.settings.header_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_between_requests():
            self._close_with(
                408, ErrorCode.REQUEST_TIMEOUT, "The head of the request did not arrive."
            )

    def _close_with(self, status_code: int, error_code: ErrorCode, message: str) -> None:
        body = RefusalError(status_code, error_code, message).body()
        fields = (
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"{'retry-after: 1' + chr(13) + chr(10) if status_code == 503 else ''}"
            "connection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[status_code] + fields.encode() + body)
        # As many may linger as be served; further ones are not waited for.
        if len(self.lingering) >= self.settings.max_connections or not self._can_end():
            self.transport.close()
            return
        self._turned_away = True
        self.lingering.add(self)
        self._linger_timer = self.loop.call_later(_LINGER_S, self.transport.close)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self.flow.resume_reading()

    def _can_end(self) -> bool:
        # An answer under way could not be written any more.
        is_idle = self._is_between_requests() and not self.transport.is_closing()
        if not is_idle or not self.transport.can_write_eof():
            return False
        self.transport.write_eof()
        return True
