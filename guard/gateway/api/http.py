"""Reading requests and sending answers on bare ASGI, for routes where every microsecond counts."""

from __future__ import annotations

import hmac
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from guard.core import wire
from guard.gateway.domain import render
from guard.gateway.domain.commands import EncodedAnswer
from guard.gateway.domain.errors import StoreError, StoreFullError, UnstorableError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON: Final = b"application/json"
PROBLEM_JSON: Final = b"application/problem+json"
_RETRY_AFTER_MS: Final = 1000
ONE_WRITE: Final = "guard.one_write"
"""ASGI extension of the gateway's own server: a callable that takes status, headers and body of a
whole answer and writes them at once. Headers must not contain client input."""

IDENTIFIED: Final = "guard.identified"
"""ASGI extension of the gateway's own server: a callable that takes the owner of the connection's
key, which is an organisation, or a proxy's key without one. It returns whether there is a place for
one more connection of it; if not, the connection ends with the answer."""


def note_owner(scope: Scope, owner: str) -> bool:
    """Report the owner of the key that the connection carries to the server.

    Returns:
        Whether the owner has a place left. Operators are served all the same.
    """
    identified = scope.get("extensions", {}).get(IDENTIFIED)
    return identified is None or bool(identified(owner))


class ProblemError(Exception):
    """A request that is answered with a problem document."""

    def __init__(
        self, answer: EncodedAnswer, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        super().__init__(answer.status)
        self.answer = answer
        self.headers = headers or []


def fail(
    status: int,
    error_code: str,
    title: str,
    detail: str = "",
    headers: list[tuple[bytes, bytes]] | None = None,
    **members: Any,
) -> ProblemError:
    """Return an exception that answers with this problem."""
    document = render.problem(status, error_code, title, detail=detail, **members)
    retry_after_ms = _RETRY_AFTER_MS if status in (429, 503) else None
    document.retry_after_ms = retry_after_ms
    return ProblemError(EncodedAnswer(status, wire.encode(document), retry_after_ms), headers)


def take_place(scope: Scope, owner: str) -> None:
    """Report the owner of an SDK's key, like :func:`note_owner`.

    Raises:
        ProblemError: the owner has no place left.
    """
    if not note_owner(scope, owner):
        detail = "this organisation has its share of the gateway's connections"
        raise fail(429, "GD-R001", "Too many connections", detail)


def store_failed(exc: StoreError) -> ProblemError:
    """Return the exception that answers a request with the failure of the store."""
    if isinstance(exc, StoreFullError):
        return fail(503, "GD-B002", "Disk full", str(exc))
    if isinstance(exc, UnstorableError):  # 400: it would fail again
        return fail(400, "GD-P007", "Text not accepted", str(exc))
    return fail(503, "GD-B002", "Store not available", "try again")


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request.

    Raises:
        ProblemError: a significant header is repeated.
    """
    pairs: list[tuple[bytes, bytes]] = scope["headers"]
    headers = dict(pairs)
    if len(headers) != len(pairs):
        names = [name for name, _ in pairs]
        for name in (b"x-api-key", b"authorization", b"idempotency-key", b"content-type",
                     b"content-encoding", b"content-digest", b"signature",
                     b"signature-input", b"host", b"x-guard-protocol"):  # fmt: skip
            if names.count(name) > 1:
                raise fail(400, "GD-P002", "Bad request", f"{name.decode()} is given twice")
    return headers


def has_bearer(scope: Scope, token: str) -> bool:
    """Return whether a request carries this bearer token."""
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    kind, _, found = given.partition(b" ")
    return kind.lower() == b"bearer" and hmac.compare_digest(found.strip(), token.encode())


async def receive_get(
    scope: Scope, receive: Receive, bytes_max: int
) -> tuple[dict[bytes, bytes], bytes]:
    """Return the headers and the body of a GET; a signature is over both.

    Raises:
        ProblemError: another method, or a larger body.
    """
    if scope["method"] != "GET":
        raise fail(405, "GD-P005", "Method not allowed", headers=[(b"allow", b"GET")])
    headers = headers_of(scope)
    return headers, await read_body(headers, receive, bytes_max)


async def read_body(
    headers: dict[bytes, bytes],
    receive: Receive,
    bytes_max: int,
    count: Callable[[int], None] | None = None,
) -> bytes:
    """Return the body as sent, up to a cap.

    Args:
        headers: of the request.
        receive: of ASGI.
        bytes_max: maximum size.
        count: called with the number of bytes received so far; may raise to stop reading.

    Raises:
        ProblemError: too large, or the client went away.
    """
    # An announced size is refused before anything is read.
    length = headers.get(b"content-length")
    if length is not None and (not length.isdigit() or int(length[:20]) > bytes_max):
        raise _too_large(bytes_max)
    message = await receive()
    if message["type"] != "http.request":
        raise fail(400, "GD-P002", "Bad request", "the client went away")
    body: bytes = message.get("body", b"")
    if count is not None:
        count(len(body))
    # Nearly every body comes in one message, and need not be joined.
    if not message.get("more_body"):
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        return body
    parts = [body]
    size = len(body)
    while message.get("more_body"):
        message = await receive()
        if message["type"] != "http.request":
            raise fail(400, "GD-P002", "Bad request", "the client went away")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > bytes_max:
            raise _too_large(bytes_max)
        if count is not None:
            count(size)
    return b"".join(parts)


def decoded(headers: dict[bytes, bytes], body: bytes, bytes_max: int) -> bytes:
    """Decode the content coding, up to the cap.

    Raises:
        ProblemError: another type than JSON, an unknown coding, damaged, or too large unpacked.
    """
    content_type = headers.get(b"content-type", b"").split(b";", 1)[0].strip().lower()
    if content_type != JSON:
        raise fail(415, "GD-P004", "Unsupported media type", "the body must be application/json")
    coding = headers.get(b"content-encoding", b"identity").strip().lower()
    if coding == b"identity":
        return body
    if coding != b"gzip":
        raise fail(415, "GD-P004", "Unsupported media type", "the only content coding is gzip")
    unpacker = zlib.decompressobj(wbits=31)
    # One byte more than is allowed: a small body can unpack to gigabytes.
    try:
        unpacked = unpacker.decompress(body, bytes_max + 1)
    except zlib.error:
        raise fail(400, "GD-P002", "Bad request", "the gzip body is damaged") from None
    if len(unpacked) > bytes_max:
        raise _too_large(bytes_max)
    if not unpacker.eof:
        raise fail(400, "GD-P002", "Bad request", "the gzip body is cut short")
    return unpacked


def _too_large(bytes_max: int) -> ProblemError:
    return fail(413, "GD-P003", "Body too large", f"at most {bytes_max} bytes")


async def send_answer(
    scope: Scope,
    send: Send,
    answer: EncodedAnswer,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    """Send a finished reply: in one write if the server offers it, else by ASGI messages."""
    status = answer.status
    out = [
        (b"content-type", JSON if status < 400 else PROBLEM_JSON),
        (b"content-length", b"%d" % len(answer.body)),
    ]
    if answer.retry_after_ms is not None:
        out.append((b"retry-after", b"%d" % -(-answer.retry_after_ms // 1000)))
    if answer.replay:
        out.append((b"idempotency-replayed", b"true"))
    if headers:
        out += headers
    await send_whole(scope, send, status, out, answer.body)


async def send_whole(
    scope: Scope, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Send a whole answer: in one write if the server offers it, else by ASGI messages.

    An answer may come before its request has arrived completely. In one write the server then adds
    ``connection: close``, and the client does not use the connection again.
    """
    extensions = scope.get("extensions")
    if extensions is not None and ONE_WRITE in extensions:
        extensions[ONE_WRITE](status, headers, body)
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def in_one_write(scope: Scope, send: Send) -> Send:
    """Wrap ``send`` so that an answer whose body is one message goes out as by `send_whole`."""
    one_write = (scope.get("extensions") or {}).get(ONE_WRITE)
    if one_write is None:
        return send
    # The head, kept back until it is known whether the body is one message.
    start: Message | None = None

    async def joining(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start" and _has_length(message):
            start = message
        elif start is None:
            await send(message)
        elif message.get("more_body", False):
            await send(start)
            start = None
            await send(message)
        else:
            one_write(start["status"], list(start["headers"]), message.get("body", b""))

    return joining


def _has_length(start: Message) -> bool:
    return any(name.lower() == b"content-length" for name, _ in start.get("headers", ()))
