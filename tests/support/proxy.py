"""A TCP proxy that can be broken: delay, hang, reset, truncate, corrupt, throttle, go down, lie."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal[
    "none", "hang", "reset", "truncate", "garbage", "refuse", "throttle", "storm", "bomb"
]

_BOMB = gzip.compress(bytes(64 << 20), 9)

LIES: Mapping[str, bytes] = {
    "storm": b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n"
    b"content-length: 2\r\n\r\n{}",
    "bomb": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_BOMB), _BOMB),
}
"""Answers that take the place of the server's: an error, and 64 MB of nothing packed into 64 KB."""


class ChaosProxy:
    """Stands between a client and a server on loopback; change the attributes at any time.

    Attributes:
        fault: what happens to the bytes from the server (``refuse`` closes new connections).
        delay_s: how long each piece from the server is held back.
        connections: how many connections were accepted.
        bytes_up: everything that clients sent.
    """

    def __init__(self, target_url: str) -> None:
        parts = urlsplit(target_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self.fault: Fault = "none"
        self.delay_s = 0.0
        self.connections = 0
        self.bytes_up = bytearray()
        self._writers: set[asyncio.StreamWriter] = set()
        self._transports: set[asyncio.WriteTransport] = set()
        # With the protocol named asyncio sends at once, instead of waiting for an ACK.
        self._listener = socket.socket(proto=socket.IPPROTO_TCP)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(1024)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="chaos-proxy")
        self._thread.start()

    def retarget(self, target_url: str) -> None:
        """Send new connections to another server."""
        parts = urlsplit(target_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)

    def cut(self) -> None:
        """Cut every open connection with a reset."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    def close(self) -> None:
        """End the proxy."""
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, sock=self._listener)
        )
        self._loop.run_forever()
        # What was accepted is served before the server closes: asyncio would fail to attach it then
        # and leave its connection open.
        self._loop.remove_reader(self._listener.fileno())
        self._loop.run_until_complete(_turns())
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        for transport in list(self._transports):
            transport.abort()  # also where a closed one still has bytes to send
        self._loop.run_until_complete(_turns())  # transports close one turn later
        self._loop.close()

    async def _cut(self) -> None:
        for writer in list(self._writers):
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._transports.add(writer.transport)
        if self.fault == "refuse":
            _reset(writer)
            return
        self._writers.add(writer)
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            self._writers.discard(writer)
            return
        self._writers.add(up_writer)
        self._transports.add(up_writer.transport)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._upward(reader, up_writer))
                group.create_task(self._downward(up_reader, writer))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in (writer, up_writer):
                self._writers.discard(each)
                with contextlib.suppress(Exception):
                    each.close()

    async def _upward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self.bytes_up += data
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    async def _downward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            while self.fault == "hang":
                await asyncio.sleep(0.01)
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
        if writer.can_write_eof():
            writer.write_eof()


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
