"""A client that costs next to nothing: requests over open connections, and when answers come."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import attrs


@attrs.define
class Load:
    """What came of a load.

    Attributes:
        answers: how many.
        first_s, whole_s: of each answer, until its first byte of body and its end.
        took_s: all of it.
    """

    answers: int = 0
    first_s: list[float] = attrs.Factory(list)
    whole_s: list[float] = attrs.Factory(list)
    took_s: float = 0.0


class _Connection(asyncio.Protocol):
    def __init__(self, request: bytes, load: Load, ends_s: float) -> None:
        self._request, self._load, self._ends_s = request, load, ends_s
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._data = bytearray()
        self._first_s = 0.0
        self._asked_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        at = self._data.find(b"\r\n\r\n")
        if at < 0 or len(self._data) == at + 4:
            return
        now_s = time.perf_counter()
        if not self._first_s:
            self._first_s = now_s
            head = bytes(self._data[:at]).lower()
            assert b" 200 " in head[:20], bytes(self._data[:300])
            _, found, rest = head.partition(b"content-length:")
            self._size = at + 4 + int(rest.partition(b"\r\n")[0]) if found else None
        if self._size is None:
            if not self._data.endswith(b"0\r\n\r\n"):
                return
        elif len(self._data) < self._size:
            return
        self._load.answers += 1
        self._load.first_s.append(self._first_s - self._asked_s)
        self._load.whole_s.append(now_s - self._asked_s)
        if now_s < self._ends_s:
            self._ask()
        elif not self.over.done():
            self._transport.close()
            self.over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(exc or ConnectionError("closed"))


async def load(url: str, request: bytes, connections: int, seconds: float) -> Load:
    """Send a request over so many connections again and again.

    Args:
        url: of the server.
        request: head and body.
        connections: at once.
        seconds: no request begins later.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    found = Load()
    began_s = time.perf_counter()
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(
            lambda: _Connection(request, found, began_s + seconds), host, int(port)
        )
        for _ in range(connections)
    ]
    await asyncio.gather(*(protocol.over for _, protocol in made))
    found.took_s = time.perf_counter() - began_s
    return found
