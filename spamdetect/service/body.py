"""Reading and checking a request before any work is done for it."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, TypeVar

import msgspec

from spamdetect._exchange import too_long_message
from spamdetect.models import ErrorCode
from spamdetect.service.respond import Headers, RefusalError

Receive = Any
T = TypeVar("T", bound=msgspec.Struct)

_JSON_TYPE: Final = re.compile(
    r"""\s*application/json\s*(?:;\s*charset\s*=\s*"?utf-?8"?\s*)?;?\s*""", re.IGNORECASE
)
_FIELD: Final = re.compile(r"`\$\.(\w+)|field `(\w+)`")


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


def header(headers: Headers, name: bytes) -> bytes | None:
    """The value of a header, or None; the first one when there are several."""
    for key, value in headers:
        if key == name:
            return value
    return None


def check_media_type(declared: bytes | None, encoding: bytes | None) -> None:
    """Refuse a body that is not declared as JSON in UTF-8.

    Args:
        declared: ``Content-Type``.
        encoding: ``Content-Encoding``.

    Raises:
        RefusalError: 415 ``UNSUPPORTED_MEDIA_TYPE``.
    """
    if encoding not in {None, b"identity"}:
        raise RefusalError(
            415, ErrorCode.UNSUPPORTED_MEDIA_TYPE, "Compressed bodies are not taken.", close=True
        )
    # Nearly every request has the plain form; the pattern is for the rest.
    if declared == b"application/json":
        return
    if declared is None or not _JSON_TYPE.fullmatch(declared.decode("latin-1")):
        raise RefusalError(
            415,
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "Send JSON in UTF-8, with the header Content-Type: application/json.",
            close=True,
        )


class RequestBody:
    """The body of one request: read within limits, or read and discarded.

    Args:
        headers: The headers of the request.
        receive: The ASGI channel.
        timeout_s: Seconds in which the whole body must arrive.
    """

    __slots__ = ("_complete", "_deadline_s", "_headers", "_receive", "_timeout_s")

    def __init__(self, headers: Headers, receive: Receive, timeout_s: float) -> None:
        self._headers = headers
        self._receive = receive
        self._timeout_s = timeout_s
        self._deadline_s = 0.0
        self._complete = False

    async def read(self, *, max_bytes: int, max_chars: int) -> bytes:
        """Read the whole body.

        Raises:
            RefusalError: 413 ``TEXT_TOO_LONG`` or 408 ``REQUEST_TIMEOUT``.
            ClientGoneError: The client has gone.
        """
        declared = header(self._headers, b"content-length")
        if declared is not None and int(declared) > max_bytes:
            raise too_long(max_chars)
        chunks: list[bytes] = []
        size = 0
        while not self._complete:
            chunks.append(await self._next())
            size += len(chunks[-1])
            if size > max_bytes:
                raise too_long(max_chars)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def drain(self, *, max_bytes: int) -> bool:
        """Read and discard the rest of a refused request's body.

        Closing a connection while the client is still sending makes TCP reset it, and the client
        then loses the answer that says why.

        Returns:
            True when the body is complete, so that the connection can be kept open.

        Raises:
            ClientGoneError: The client has gone.
        """
        if header(self._headers, b"expect") is not None:
            return self._complete
        size = 0
        while not self._complete:
            try:
                size += len(await self._next())
            except RefusalError:
                return False
            if size > max_bytes:
                return False
        return True

    async def _next(self) -> bytes:
        now_s = asyncio.get_running_loop().time()
        self._deadline_s = self._deadline_s or now_s + self._timeout_s
        try:
            async with asyncio.timeout(self._deadline_s - now_s):
                message = await self._receive()
        except TimeoutError:
            raise RefusalError(
                408, ErrorCode.REQUEST_TIMEOUT, "The body did not arrive in time.", close=True
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        self._complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk


def too_long(max_chars: int) -> RefusalError:
    """413 for a text or a body beyond the limit."""
    return RefusalError(
        413,
        ErrorCode.TEXT_TOO_LONG,
        too_long_message(max_chars),
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
