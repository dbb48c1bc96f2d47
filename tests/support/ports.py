"""Where a program listens later than its test knows of it."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path


def free_port() -> int:
    """Return a port below those that the machine gives to sockets without one.

    One of those could be another socket's, also of a connection to elsewhere, before the program
    listens, or while it is away.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def listens(path: Path) -> bool:
    """Tell whether a server takes connections; its socket is in the folder a moment earlier."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0
