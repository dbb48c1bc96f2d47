"""Reading and checking a request before any work is done for it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from spamdetect._exchange import too_long_message
from spamdetect.models import ErrorCode
from spamdetect.service.respond import Headers, RefusalError
from spamdetect.service.steps import Steps

Receive = Any

_JSON_TYPE: Final = re.compile(
    r"""\s*application/json\s*(?:;\s*charset\s*=\s*"?utf-?8"?\s*)?;?\s*""", re.IGNORECASE
)


class ClientGoneError(Exception):
    """The client closed the connection before its request was complete."""


def fields_of(headers: Headers) -> dict[bytes, bytes]:
    """The headers by name; the values of one that came several times are joined (RFC 9110, 5.3)."""
    fields = dict(headers)
    if len(fields) != len(headers):
        fields = {}
        for name, value in headers:
            fields[name] = fields[name] + b", " + value if name in fields else value
    return fields


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
        content: The body, where all of it has come.
        fields: The headers of the request.
        receive: The ASGI channel that the rest comes from.
        timeout_s: Seconds in which the whole body must arrive.
    """

    __slots__ = ("_content", "_deadline_s", "_fields", "_receive", "_timeout_s", "complete")

    def __init__(
        self,
        content: bytes,
        fields: Mapping[bytes, bytes] | None = None,
        receive: Receive = None,
        timeout_s: float = 0.0,
    ) -> None:
        self.complete = receive is None
        self._content = content
        self._fields = fields or {}
        self._receive = receive
        self._timeout_s = timeout_s
        self._deadline_s = 0.0

    def content(self, *, max_bytes: int, too_long: Callable[[], RefusalError]) -> Steps[bytes]:
        """The whole body.

        Raises:
            RefusalError: What ``too_long`` makes, or 408 ``REQUEST_TIMEOUT``.
            ClientGoneError: The client has gone.
        """
        if not self.complete:
            yield self._read(max_bytes, too_long)
        if len(self._content) > max_bytes:
            raise too_long()
        return self._content

    async def _read(self, max_bytes: int, too_long: Callable[[], RefusalError]) -> None:
        declared = self._fields.get(b"content-length")
        if declared is not None and int(declared) > max_bytes:
            raise too_long()
        chunks: list[bytes] = []
        size = 0
        while not self.complete:
            chunks.append(await self._next())
            size += len(chunks[-1])
            if size > max_bytes:
                raise too_long()
        self._content = chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def drain(self, max_bytes: int) -> None:
        """Read and discard the rest of a refused request's body, where it ends soon.

        Closing a connection while the client is still sending makes TCP reset it, and the client
        then loses the answer that says why.

        Raises:
            ClientGoneError: The client has gone.
        """
        if b"expect" in self._fields:
            return
        size = 0
        with contextlib.suppress(RefusalError):
            while not self.complete and size <= max_bytes:
                size += len(await self._next())

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
        self.complete = not message.get("more_body", False)
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


def batch_too_long(max_bytes: int) -> RefusalError:
    """413 for a batch beyond the limit."""
    return RefusalError(
        413,
        ErrorCode.TEXT_TOO_LONG,
        f"The body of a batch may have at most {max_bytes} bytes; send fewer texts at once.",
        field="texts",
        close=True,
    )
