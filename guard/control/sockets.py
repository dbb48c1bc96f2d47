"""Ends a blocking HTTP call of another thread by shutting its socket down.

No method is patched: the socket is found in the innermost frame of the blocked thread. This works
for every client built on the standard library's sockets (httpx, httpx2, requests, urllib3,
http.client, botocore), for connections made before ``guard.init()``, while connecting, during the
TLS handshake, before the first byte and in mid-stream. A shut-down socket reads as a closed
connection, so the client's own clean-up drops it from its pool.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

HTTP_CLIENTS: Final = frozenset(
    {
        "botocore",
        "h11",
        "h2",
        "http",
        "httpcore",
        "httpcore2",
        "httpx",
        "httpx2",
        "requests",
        "urllib",
        "urllib3",
    }
)
"""Top-level modules whose frames mean that a thread is in an HTTP call."""


def blocking_socket(self: object = None, sock: object = None) -> socket.socket | None:
    """Return the socket that a thread blocks on, by variables of its innermost frame, or None.

    The frame is a method of the socket (``ssl.SSLSocket.read``), of something that holds it as
    ``_sock`` (``socket.SocketIO``, httpcore's streams), or a function with a variable ``sock``
    (``socket.create_connection`` and its copy in urllib3).
    """
    for candidate in (self, getattr(self, "_sock", None), sock):
        if isinstance(candidate, socket.socket):
            return candidate
    return None


def shut_down(sock: socket.socket) -> None:
    """Make the call that blocks on the socket return, without closing the descriptor.

    A close would let the kernel reuse the descriptor's number while the other thread still uses it.
    """
    with contextlib.suppress(OSError):  # it is closed already, or not connected yet
        # The base class's method: that of ssl.SSLSocket would also drop the TLS state in use.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
