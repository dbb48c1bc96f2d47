"""The HTTP client of the gateway: builds requests, signs them and reads capped replies."""

from __future__ import annotations

import functools
import gzip
import ssl
import time
from collections.abc import Callable
from typing import Final, cast
from urllib.parse import urlsplit

import attrs

from guard.breaker.exceptions import GuardTransportError, was_shut_down
from guard.core import wire
from guard.core.mistaken import why_unreached
from guard.core.plaintext import is_loopback
from guard.loop.quiet import no_cookies, unlogged
from guard.scope.scope import OWN_TRAFFIC
from guard.settings import Settings, require_secure
from guard.tls import client_context
from guard.transport.connections import Connections, ConnectionsClosedError
from guard.transport.own_httpx import httpx
from guard.transport.replies import Reply, UnreadableReplyError
from guard.transport.signer import Signer
from guard.version import __version__

_CONNECTIONS_MAX: Final = 64
"""More than are ever used at once. The pool scans all its connections for all its waiters at every
event, so callers wait at the gate, which admits ``GATE_CONCURRENCY`` at once, and not in the
pool."""

_CONNECTIONS_KEPT: Final = 16
_CANCELLED_MAX: Final = _CONNECTIONS_MAX // 4
_GZIP_ABOVE_BYTES: Final = 1024
_REPLY_BYTES_MAX: Final = 4 * 1024 * 1024
"""A larger reply comes from another server, or a broken one; it must not fill the memory."""


@attrs.frozen
class HttpRequest:
    """One request to the gateway; the same for every retry.

    Attributes:
        method, path: those of the request; the path may include a query.
        headers: those specific to this request; the signature is new at each try.
        body: as sent, possibly compressed.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = attrs.field(default=b"", repr=False)

    @property
    def endpoint(self) -> str:
        """The path without its query."""
        return self.path.partition("?")[0]

    @classmethod
    def of(
        cls, method: str, path: str, body: bytes = b"", idempotency_key: str | None = None
    ) -> HttpRequest:
        """Make a request; a large JSON body is compressed."""
        headers = {}
        if body:
            headers["Content-Type"] = "application/json"
            if len(body) > _GZIP_ABOVE_BYTES:
                body = gzip.compress(body, compresslevel=1)
                headers["Content-Encoding"] = "gzip"
        if idempotency_key is not None:
            headers[wire.HEADER_IDEMPOTENCY] = idempotency_key
        return cls(method, path, headers, body)


class GatewayHttp:
    """Sends one request and reads one reply; no retry, no deadline. On the background loop.

    Args:
        settings: address, key and secret.
        restarts: returns whether the gateway is this user's own, which is restarted automatically.

    Attributes:
        signer: signs the requests.
        tls: checks the gateway's certificate; None for plain HTTP.
    """

    def __init__(self, settings: Settings, restarts: Callable[[], bool] = lambda: False) -> None:
        require_secure(settings.api_url, settings.allow_plaintext_hosts)
        self._restarts = restarts
        self._address = settings.api_url
        # Whether a reply has come: then the address is right, whatever happens to a connection.
        self._has_answered = False
        self.signer = Signer(settings)
        parts = urlsplit(settings.api_url)
        host = parts.hostname or ""
        # Loading the trust store costs about 20 ms; plain http needs none.
        self.tls = client_context(settings.tls_fingerprint) if parts.scheme == "https" else None
        make = functools.partial(
            httpx.AsyncClient,
            base_url=settings.api_url,
            verify=False if self.tls is None else self.tls,
            # A proxy from the environment must not see traffic that is not encrypted.
            trust_env=self.tls is not None and not is_loopback(host),
            cookies=no_cookies(),
            follow_redirects=False,
            timeout=None,  # the caller's total deadline, instead of one per read
            limits=httpx.Limits(
                max_connections=_CONNECTIONS_MAX, max_keepalive_connections=_CONNECTIONS_KEPT
            ),
            headers={
                wire.HEADER_API_KEY: settings.api_key,
                wire.HEADER_PROTOCOL: str(wire.PROTOCOL_VERSION),
                "User-Agent": f"guard-python/{__version__}",
                "Accept": "application/json",
                "Accept-Encoding": "identity",  # replies are small
            },
        )
        self._connections = Connections(make, _CANCELLED_MAX)
        base = httpx.URL(settings.api_url.rstrip("/"))
        # Built once: building a URL takes a tenth of a call's time.
        self._urls = {
            path: base.copy_with(path=base.path.rstrip("/") + path)
            for path in (wire.GATE_PATH, wire.EVENTS_PATH)
        }

    async def close(self) -> None:
        """End the requests under way, and close the connections."""
        await self._connections.close()

    async def send(self, request: HttpRequest) -> Reply:
        """Send a request and return its reply, whatever its status.

        A signed request that is refused because of its time is sent again, once, with the time of
        the gateway's clock.

        Raises:
            GuardTransportError: no reply, or one above the size cap, or closed.
        """
        reply = await self._send(request)
        if self.signer.resynchronised(reply):
            reply = await self._send(request)
        return reply

    async def _send(self, request: HttpRequest) -> Reply:
        endpoint = request.endpoint
        try:
            async with self._connections.lend() as client:
                return await self._exchange(client, request)
        except ConnectionsClosedError:
            raise was_shut_down() from None
        except (httpx.HTTPError, httpx.StreamError, ssl.SSLError, OSError) as exc:
            # `from None`: the cause refers to the request, and that to the key, which must not be
            # logged with a traceback.
            if self._connections.is_closed:
                raise was_shut_down() from None
            text = f"{endpoint}: {_why(exc)}"
            failed = isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout)
            is_mistake = why_unreached(self._address, _why(exc)) is not None
            if failed or (is_mistake and not self._has_answered):
                text = unreachable(self._address, _why(exc), restarts=self._restarts())
            raise GuardTransportError(text, source="NETWORK_ERROR", endpoint=endpoint) from None

    async def _exchange(self, client: httpx.AsyncClient, request: HttpRequest) -> Reply:
        endpoint = request.endpoint
        outgoing = client.build_request(
            request.method,
            self._urls.get(request.path, request.path),
            headers=request.headers,
            content=request.body,
            extensions={OWN_TRAFFIC: True},
        )
        nonce = ""
        if self.signer.signs:
            signature, nonce = self.signer.headers(request.method, str(outgoing.url), request.body)
            outgoing.headers.update(signature)
        # Streamed, so that a reply is cut off at the size cap and not only measured.
        with unlogged():
            response = await client.send(outgoing, stream=True)
            body = await _read(response, endpoint)
        self._has_answered = True
        return Reply(
            endpoint=endpoint,
            status=response.status_code,
            body=body,
            retry_after=response.headers.get("Retry-After"),
            now_s=time.time(),
            nonce=nonce,
            signature=response.headers.get("X-Guard-Signature", ""),
        )


def unreachable(address: str, why: str, *, restarts: bool = False) -> str:
    """Return the text for a failed connection: why it failed, and what to do about it."""
    text = f"no gateway can be reached at {address} ({why})"
    if restarts:
        return f"{text}: this user's local gateway has ended, and is started again by itself"
    if (mistake := why_unreached(address, why)) is not None:
        return f"{text}: {mistake}"
    if is_loopback(urlsplit(address).hostname or ""):
        return (
            f"{text}: start one with `guard gateway serve`, or set GUARD_API_URL=local for a "
            "gateway of your own that needs no key"
        )
    return f"{text}: check GUARD_API_URL, and that the gateway runs there"


async def _read(response: httpx.Response, endpoint: str) -> bytes:
    """Read a response's body, up to the size cap, and close the response."""
    body = bytearray()
    # Without a coding, the raw stream: decoding nothing would cost a tenth of a call's time.
    coded = "content-encoding" in response.headers
    stream = cast("httpx.AsyncByteStream", response.stream)
    try:
        async for chunk in response.aiter_bytes(65_536) if coded else stream:
            body += chunk
            if len(body) > _REPLY_BYTES_MAX:
                raise GuardTransportError(
                    f"{endpoint} answered more than {_REPLY_BYTES_MAX} bytes",
                    source="GATEWAY_ERROR",
                    endpoint=endpoint,
                    retryable=False,
                )
    except httpx.TransportError as exc:
        if not response.is_success:
            raise
        raise UnreadableReplyError(
            f"{endpoint}: {_why(exc)}", source="NETWORK_ERROR", endpoint=endpoint
        ) from None
    finally:
        await response.aclose()
        del response.stream  # breaks a reference cycle with the response
    return bytes(body)


def _why(exc: BaseException) -> str:
    """Name a network failure without repeating anything of the request."""
    name = type(exc).__name__
    text = str(exc)
    return f"{name}: {text}" if text else name
