"""The application: each request to its upstream, and its answer back."""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from collections.abc import Callable
from typing import Final

import httpx

from guard.core.usage.vendors import find_named
from guard.gateway.api.http import JSON, Receive, Scope, Send, has_bearer, send_whole
from guard.loop.quiet import no_cookies
from guard.proxy.admission import RequestAdmission
from guard.proxy.counts import Counted, ProxyCounts
from guard.proxy.custody import Custody
from guard.proxy.exchange import Exchange
from guard.proxy.incoming import Incoming
from guard.proxy.refusals import REFUSED, ErrorAnswer, dialect_of
from guard.proxy.upstreams import Destination, NoUpstreamError, Upstreams
from guard.transport.connections import Connections

logger = logging.getLogger("guard.proxy")

_CONNECT_S: Final = 30.0
_KEPT_ALIVE_MAX: Final = 256
"""Idle connections upstream that are kept for later requests."""

_CANCELLED_MAX: Final = 1000
"""Programs that leave in the middle of an answer, until the client upstream is replaced."""

_KEY_NEEDED: Final = (
    b"the metrics need the key that GUARD_PROXY_METRICS_KEY gives the proxy: "
    b"Authorization: Bearer KEY"
)
_UPGRADE: Final = b"a WebSocket is not forwarded; send the request over HTTP"


class ProxyApp:
    """Forwards requests; one for a process, on one loop.

    Args:
        upstreams: maps paths to addresses.
        admission: decides whose money requests spend.
        counts: those of requests and bytes.
        seen: called before each request to a model.
        metrics_key: for ``/metrics``; None where only its own user can connect.
        custody: what passes where it holds the vendors' keys; None where programs send them.
    """

    def __init__(
        self,
        upstreams: Upstreams,
        admission: RequestAdmission,
        counts: ProxyCounts,
        seen: Callable[[], None] = lambda: None,
        metrics_key: str | None = None,
        custody: Custody | None = None,
    ) -> None:
        self._custody = custody
        self._upstreams = upstreams
        self._admission = admission
        self._counts = counts
        self._seen = seen
        self._metrics_key = metrics_key
        make = functools.partial(_client, ssl.create_default_context())
        self._connections = Connections(make, _CANCELLED_MAX)

    async def close(self) -> None:
        """Close the connections upstream."""
        await self._connections.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path: bytes = scope["raw_path"]
        if path in (b"/healthz", b"/metrics"):
            await self._about_itself(path, scope, send)
            return
        if any(name == b"upgrade" for name, _ in scope["headers"]):
            await _answer(scope, send, 426, b"text/plain", _UPGRADE)
            return
        try:
            destination = self._upstreams.find(path, scope["query_string"])
        except NoUpstreamError as exc:
            told = ErrorAnswer(REFUSED, "GD-P002", f"guard: {exc}")
            headers, body = told.whole(dialect_of("", None))
            await send_whole(scope, send, told.status, headers, body)
            return
        with self._counts.open(destination.vendor) as counted:
            await self._exchange(destination, scope, Incoming(receive, counted), send, counted)

    async def _exchange(
        self,
        destination: Destination,
        scope: Scope,
        incoming: Incoming,
        send: Send,
        counted: Counted,
    ) -> None:
        endpoint = find_named(
            scope["method"], destination.host, destination.path, destination.known_as
        )
        exchange = Exchange(
            self._connections,
            self._admission,
            destination,
            endpoint,
            scope,
            incoming,
            send,
            counted,
            self._seen,
            self._custody,
        )
        # In a task of its own, which is cancelled when the program leaves: that may happen at any
        # moment, also while the request waits in line or for a person.
        working = asyncio.create_task(exchange.run())
        watching = asyncio.create_task(incoming.gone())
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Reached when either has ended, or when the server stops and cancels this.
            watching.cancel()
            if not working.done():
                counted.left()
                working.cancel()
            # The exchange may still close its connection upstream. What it raises is read below.
            await asyncio.wait((working, watching))
        if not working.cancelled() and (error := working.exception()) is not None:
            raise error

    async def _about_itself(self, path: bytes, scope: Scope, send: Send) -> None:
        if path == b"/healthz":
            await _answer(scope, send, 200, JSON, b'{"status":"ok"}')
        elif self._metrics_key is not None and not has_bearer(scope, self._metrics_key):
            await _answer(scope, send, 401, b"text/plain", _KEY_NEEDED)
        else:
            await _answer(scope, send, 200, self._counts.MEDIA, self._counts.text())


async def _answer(scope: Scope, send: Send, status: int, media: bytes, body: bytes) -> None:
    headers = [(b"content-type", media), (b"content-length", b"%d" % len(body))]
    await send_whole(scope, send, status, headers, body)


def _client(tls: ssl.SSLContext) -> httpx.AsyncClient:
    """Return a client that adds nothing to a request and keeps nothing of an answer.

    No timeout but that of connecting: a model may think for many minutes, and the program decides
    how long it waits. No limit on connections: the server limits its own.
    """
    return httpx.AsyncClient(
        verify=tls,
        cookies=no_cookies(),
        follow_redirects=False,
        timeout=httpx.Timeout(None, connect=_CONNECT_S),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=_KEPT_ALIVE_MAX),
    )
