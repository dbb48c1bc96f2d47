"""A request as it arrives: its body, whole or in parts, and whether its program has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from guard.gateway.api.http import Receive
from guard.proxy.counts import Counted

BODY_MAX: Final = 64 << 20
"""Bytes of a request to a model: it is read whole before it is held."""


class TooLargeError(Exception):
    """A request to a model is larger than :data:`BODY_MAX`."""


class ProgramGoneError(Exception):
    """The program has gone before its request was complete."""


class Incoming:
    """One request.

    Args:
        receive: of ASGI.
        counted: counts what arrives.
    """

    def __init__(self, receive: Receive, counted: Counted) -> None:
        self._receive = receive
        self._counted = counted
        # Set once nothing more of the body will be read here: then only the end can arrive.
        self._is_read = asyncio.Event()
        self._has_gone = False

    async def whole(self, length: bytes | None) -> bytes:
        """Return the body.

        Args:
            length: what the request says of its length.

        Raises:
            TooLargeError: it is too large.
            ProgramGoneError: it has not arrived.
        """
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
            ProgramGoneError: it does not arrive any more.
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
        """Return when the program has gone; once its request is complete, that is all to come."""
        await self._is_read.wait()
        while not self._has_gone:
            message = await self._receive()
            self._has_gone = message["type"] == "http.disconnect"
