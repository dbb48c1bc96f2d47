"""A port for a program that is told of it, and listens there later."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """Return a port below those that the machine gives to sockets without one.

    One of those could be another socket's, also of a connection to elsewhere, before the program
    listens, or while it is away.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
