"""A peer of the gateway that sends what it likes, until the gateway has had enough."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

PATIENCE_S = 120.0
"""The end of a wait that would last for ever."""


def connect(url: str, source: str = "127.0.0.1") -> socket.socket:
    """Connect to a gateway, from an address of this machine."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    address = (parts.hostname, parts.port)
    return socket.create_connection(address, timeout=PATIENCE_S, source_address=(source, 0))


def pour(sock: socket.socket, first: bytes, repeated: bytes, bytes_max: int) -> int:
    """Send a beginning, then something again and again; return how much until the end.

    That is ``bytes_max``, or less where the gateway has closed the connection.
    """
    block = repeated * (65_536 // len(repeated) + 1)
    sent = 0
    with contextlib.suppress(OSError):
        sock.sendall(first)
        while sent < bytes_max:
            sock.sendall(block)
            sent += len(block)
    return sent


def read_to_end(sock: socket.socket) -> bytes:
    """Return what the gateway says until it closes."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(65_536):
            received += data
    return received


@contextlib.contextmanager
def attacking(url: str, source: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Connect for the length of a block."""
    with connect(url, source) as sock:
        yield sock
