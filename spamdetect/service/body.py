"""Reading and checking a request before any work is done for it."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, TypeVar

import msgspec

from spamdetect.models import ErrorCode
from spamdetect.service.respond import RefusalError

Scope = Any
Receive = Any
T = TypeVar("T", bound=msgspec.Struct)

_JSON_TYPE: Final = re.compile(
    r"""\s*application/json\s*(?:;\s*charset\s*=\s*"?utf-?8"?\s*)?;?\s*""", re.IGNORECASE
)
_FIELD: Final = re.compile(r"`(\w+)`|`\$\.(\w+)")


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of a header, or None; the first one when there are several."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def check_media_type(scope: Scope) -> None:
    """Refuse a body that is not declared as JSON in UTF-8.

    Raises:
        RefusalError: 415 ``UNSUPPORTED_MEDIA_TYPE``.
    """
    declared = header(scope, b"content-type")
    encoding = header(scope, b"content-encoding")
    if encoding not in {None, b"identity"}:
        raise RefusalError(
            415, ErrorCode.UNSUPPORTED_MEDIA_TYPE, "Compressed bodies are not taken.", close=True
        )
    # The plain form is nearly every request; the pattern is for the rest.
    if declared == b"application/json":
        return
    if declared is None or not _JSON_TYPE.fullmatch(declared.decode("latin-1")):
        raise RefusalError(
            415,
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "Send JSON in UTF-8, with the header Content-Type: application/json.",
            close=True,
        )


async def read_body(
    scope: Scope, receive: Receive, *, max_bytes: int, max_chars: int, timeout_s: float
) -> bytes:
    """Read a whole body, within a size and a total time.

    Raises:
        RefusalError: 413 ``TEXT_TOO_LONG`` or 408 ``REQUEST_TIMEOUT``.
        ClientGoneError: The client has gone.
    """
    declared = header(scope, b"content-length")
    if declared is not None and int(declared) > max_bytes:
        raise too_long(max_chars)
    message = await _soon(receive, timeout_s)
    chunks: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > max_bytes:
            raise too_long(max_chars)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        message = await _soon(receive, deadline_s - loop.time())


async def drain(scope: Scope, receive: Receive, *, max_bytes: int, timeout_s: float) -> bool:
    """Read the rest of a refused request's body and forget it.

    Closing a connection on which the client still sends makes TCP reset it, and the client then
    loses the answer that says why.

    Returns:
        True when the body is complete, so that the connection can be kept.

    Raises:
        ClientGoneError: The client has gone.
    """
    if header(scope, b"expect") is not None:
        return False
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            while size <= max_bytes:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return True
    except TimeoutError:
        pass
    return False


def too_long(max_chars: int) -> RefusalError:
    """413 for a text or a body beyond the limit."""
    return RefusalError(
        413,
        ErrorCode.TEXT_TOO_LONG,
        f"The text may have at most {max_chars} characters.",
        field="text",
        close=True,
    )


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode a body into its type.

    Raises:
        RefusalError: 400 ``INVALID_JSON``, or 422 ``INVALID_REQUEST`` naming the field.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        # msgspec names the type and the path, never the value.
        match = _FIELD.search(str(error))
        field = "" if match is None else (match[1] or match[2] or "")
        raise RefusalError(
            422, ErrorCode.INVALID_REQUEST, f"The body is not as expected: {error}.", field=field
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RefusalError(
            400, ErrorCode.INVALID_JSON, "The body is not valid JSON in UTF-8."
        ) from None


async def _soon(receive: Receive, timeout_s: float) -> dict[str, Any]:
    try:
        async with asyncio.timeout(timeout_s):
            message: dict[str, Any] = await receive()
            return message
    except TimeoutError:
        raise RefusalError(
            408, ErrorCode.REQUEST_TIMEOUT, "The body did not arrive in time.", close=True
        ) from None
