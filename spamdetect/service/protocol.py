"""HTTP/1.1 on a socket, hardened: a cap on connections and a deadline for a request's head.

uvicorn bounds neither, so a few thousand idle or slow connections would block the service. Both
refusals use the service's own envelope.

This is the one file that imports uvicorn's internals, whose names are not promised to stay;
:mod:`.direct` builds on it. ``pyproject.toml`` has an upper bound, and a test that fails where one
of the names is gone says what to do.
"""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING, Any

from spamdetect.models import ErrorCode
from spamdetect.service.respond import RefusalError
from spamdetect.service.settings import ServiceSettings

if TYPE_CHECKING or importlib.util.find_spec("httptools") is not None:
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _Base
else:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Base

    STATUS_LINE: dict[int, bytes] = {}  # only :mod:`.direct` reads it, which needs httptools

__all__ = ["STATUS_LINE", "HardenedProtocol", "hardened_protocol"]


def hardened_protocol(settings: ServiceSettings) -> type[asyncio.Protocol]:
    """The protocol class for uvicorn, bound to the settings."""
    return type("_HardenedProtocol", (HardenedProtocol,), {"settings": settings})


class HardenedProtocol(_Base):
    """HTTP/1.1 with bounds; a subclass is bound to the settings."""

    settings: ServiceSettings
    _head_timer: asyncio.TimerHandle | None = None
    _turned_away = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            self._turned_away = True
            self._close_with(503, ErrorCode.OVERLOADED, "The service has too many connections.")
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._turned_away:
            return
        super().data_received(data)
        if not self._is_between_requests():
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None and not self.transport.is_closing():
            # Only a head that is not complete yet is worth a timer.
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._close_with(400, ErrorCode.INVALID_REQUEST, "This is not HTTP/1.1.")

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
        reason = {400: "Bad Request", 408: "Request Timeout", 503: "Service Unavailable"}
        head = (
            f"HTTP/1.1 {status_code} {reason[status_code]}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"{'retry-after: 1' + chr(13) + chr(10) if status_code == 503 else ''}"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
