"""A request as it arrives: its body, whole or in parts, and whether its program has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from guard.gateway.api.http import Receive
from guard.proxy.counts import Counted

BODY_MAX: Final = 64 << 20
"""Maximum bytes of a request to a model, which is in memory as a whole."""


class TooLargeError(Exception):
    """A request to a model is larger than :data:`BODY_MAX`."""


class ProgramGoneError(Exception):
    """The program closed its connection before its request was complete."""


class Incoming:
    """One request.

    Two tasks use it: the exchange's reads the body, another waits in :meth:`gone`. ASGI's
    ``receive`` must not be called by both at once, so the second waits until the body is read.

    Args:
        receive: ASGI's.
        counted: counts the bytes that arrive.
    """

    def __init__(self, receive: Receive, counted: Counted) -> None:
        self._receive = receive
        self._counted = counted
        # Set once the body has ended, or the program has gone: from then on only `gone` receives.
        # An exchange that ends before never sets it; then its caller cancels `gone`.
        self._is_read = asyncio.Event()
        # Whether the connection was closed; written by whichever of the two tasks receives that.
        self._has_gone = False

    async def whole(self, length: bytes | None) -> bytes:
        """Return the body.

        Args:
            length: value of ``content-length``; None without one.

        Raises:
            TooLargeError: it is too large, or its length is no number.
            ProgramGoneError: the program left before all of it had arrived.
        """
        # Before a byte is read; 20 digits are more than any length has, and fast to convert.
        if length is not None and (not length.isdigit() or int(length[:20]) > BODY_MAX):
            raise TooLargeError
        parts, size = [], 0
        async for part in self.parts():
            parts.append(part)
            size += len(part)
            if size > BODY_MAX:
                raise TooLargeError
        return b"".join(parts)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            ProgramGoneError: the program left before all of it had arrived.
        """
        more = True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                self._has_gone = True
                self._is_read.set()
                raise ProgramGoneError
            body: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            if not more:
                self._is_read.set()
            if body:
                self._counted.received(len(body))
                yield body

    async def gone(self) -> None:
        """Return when the program has closed its connection; notices that once the body is read."""
        await self._is_read.wait()
        while not self._has_gone:
            message = await self._receive()
            self._has_gone = message["type"] == "http.disconnect"
