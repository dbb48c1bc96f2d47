"""A TCP proxy that can be broken: delay, hang, reset, truncate, corrupt, throttle, go down, lie.

It also balances between servers, and can lose what is sent, as a network does that is parted.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import urlsplit

from tests.support.closing import Accepted

Fault = Literal[
    "none", "hang", "partition", "reset", "truncate", "garbage", "refuse", "throttle", "storm",
    "bomb",
]  # fmt: skip

BACKLOG = 4096
_METHODS = (b"GET /", b"POST /", b"PUT /", b"DELETE /")
_STEP_S = 0.01
_BOMB = gzip.compress(bytes(64 << 20), 9)

Meeting = Callable[[bytes], "bytes | Literal['reset'] | None"]
"""Takes the first line of a request; returns what happens instead of its way to the server: these
bytes are its answer, or its connection is cut. ``None`` lets it go."""

LIES: Mapping[str, bytes] = {
    "storm": b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n"
    b"content-length: 2\r\n\r\n{}",
    "bomb": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BOMB), _BOMB),
}
"""Answers that take the place of the server's: an error, and 64 MB of nothing packed into 64 KB."""


class _Link:
    """One connection.

    Attributes:
        is_stranded: nothing passes any more, and neither side is told.
        is_mute: nothing passes from the server.
    """

    is_stranded = False
    is_mute = False


class ChaosProxy:
    """Stands between clients and servers; change the attributes at any time.

    Args:
        targets: URLs of servers, of which each new connection gets the next one that accepts it;
            ``unix:///path`` for a socket in a folder.

    Attributes:
        fault: what happens to the bytes from the server (``refuse`` closes new connections,
            ``partition`` also holds back what is sent to the server).
        mute_after: a connection on which a client sends these bytes gets no answer to them, nor
            to anything else; what it sends is done.
        delay_s: how long each piece from the server is held back.
        meet: called for each request, in the proxy's thread.
        holds: requests that begin with one of these bytes do not get to the server as long as they
            are named here.
        connections: how many connections were accepted.
        arrivals: when each of them brought its first request, and for which path.
        bytes_up: everything that clients sent.
    """

    def __init__(self, *targets: str) -> None:
        self._targets = [_address(each) for each in targets]
        self.mute_after: bytes | None = None
        self.holds: tuple[bytes, ...] = ()
        self.meet: Meeting = lambda line: None
        self.arrivals: list[tuple[float, bytes]] = []
        self._is_closing = False
        self._links: set[_Link] = set()
        self.fault: Fault = "none"
        self.delay_s = 0.0
        self.connections = 0
        self.bytes_up = bytearray()
        self._writers: set[asyncio.StreamWriter] = set()
        self._accepted = Accepted(self._serve)
        # With the protocol named asyncio sends at once, instead of waiting for an ACK.
        self._listener = socket.socket(proto=socket.IPPROTO_TCP)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(BACKLOG)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="chaos-proxy")
        self._thread.start()

    def retarget(self, *targets: str) -> None:
        """Send new connections to other servers."""
        self._targets = [_address(each) for each in targets]

    def strand(self) -> None:
        """Let nothing pass on the open connections any more, and tell neither side; new ones do."""
        for link in tuple(self._links):
            link.is_stranded = True

    def part(self, kind: str) -> None:
        """Part the two sides: ``hang``, ``refuse`` (what is open is cut too) or ``partition``.

        With ``hang`` what is asked is done, and nobody hears of it.
        """
        assert kind in ("hang", "refuse", "partition")
        self.fault = kind  # type: ignore[assignment]
        if kind == "refuse":
            self.cut()

    def accept_at_most(self, backlog: int) -> None:
        """Set how many connections may wait to be accepted; the kernel has others come again."""
        self._listener.listen(backlog)

    def stall(self, seconds: float) -> None:
        """Do nothing at all for a while, not even accept."""
        self._loop.call_soon_threadsafe(time.sleep, seconds)

    def cut(self) -> None:
        """Cut every open connection with a reset."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(60)

    def close(self) -> None:
        """End the proxy."""
        self._is_closing = True  # whatever is held back goes on, and ends
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._accepted, sock=self._listener, backlog=BACKLOG)
        )
        self._loop.run_forever()
        self._loop.run_until_complete(self._accepted.end(server))
        self._loop.close()

    async def _cut(self) -> None:
        for writer in list(self._writers):
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.fault == "refuse":
            _reset(writer)
            return
        self._writers.add(writer)
        link = _Link()
        self._links.add(link)
        await self._passes(link)
        up = await self._connected()
        if up is None:
            _reset(writer)
            self._writers.discard(writer)
            self._links.discard(link)
            return
        up_reader, up_writer = up
        self._writers.add(up_writer)
        self._accepted.transports.add(up_writer.transport)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._upward(link, reader, up_writer, writer))
                group.create_task(self._downward(link, up_reader, writer))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        except* asyncio.CancelledError:
            pass  # the proxy ends
        finally:
            self._links.discard(link)
            for each in (writer, up_writer):
                self._writers.discard(each)
                with contextlib.suppress(Exception):
                    each.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to the next server that accepts."""
        targets = self._targets
        for number in range(len(targets)):
            host, port = targets[(self.connections + number) % len(targets)]
            with contextlib.suppress(OSError):
                if port is None:
                    return await asyncio.open_unix_connection(host)
                return await asyncio.open_connection(host, port)
        return None

    async def _passes(self, link: _Link) -> None:
        while (link.is_stranded or self.fault == "partition") and not self._is_closing:
            await asyncio.sleep(_STEP_S)

    async def _upward(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
    ) -> None:
        is_first = True
        while data := await reader.read(65_536):
            if is_first:
                is_first = False
                path = data.partition(b" ")[2].partition(b" ")[0].partition(b"?")[0]
                self.arrivals.append((time.monotonic(), path))
            await self._passes(link)
            while data.startswith(self.holds) and not self._is_closing:
                await asyncio.sleep(_STEP_S)
            met = self.meet(data.partition(b"\r\n")[0]) if data.startswith(_METHODS) else None
            if met is not None:
                if met == "reset":
                    _reset(back)
                else:
                    back.write(met)
                    await back.drain()
                    back.close()
                writer.close()
                return
            self.bytes_up += data
            link.is_mute = link.is_mute or (self.mute_after is not None and self.mute_after in data)
            writer.write(data)
            await writer.drain()
        await self._passes(link)
        if writer.can_write_eof():
            writer.write_eof()

    async def _downward(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65_536):
            await self._passes(link)
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            while (self.fault == "hang" or link.is_mute) and not self._is_closing:
                await asyncio.sleep(_STEP_S)
            if self.fault == "reset":
                _reset(writer)
                return
            if self.fault == "truncate":
                writer.write(data[: len(data) // 2])
                await writer.drain()
                writer.close()
                return
            data = LIES.get(self.fault, data)
            if self.fault == "garbage":
                data = bytes(byte ^ 0x55 for byte in data)
            if self.fault == "throttle":
                for position in range(len(data)):
                    writer.write(data[position : position + 1])
                    await writer.drain()
                    await asyncio.sleep(0.05)
                continue
            writer.write(data)
            await writer.drain()
        await self._passes(link)
        if writer.can_write_eof():
            writer.write_eof()


def _address(url: str) -> tuple[str, int | None]:
    """Return host and port, or the path of a socket and ``None``."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path, None
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
