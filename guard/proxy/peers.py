"""Whose connection it is: the user at the other end of a socket on this machine (Linux)."""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from typing import Any


def owner_of(peer: tuple[Any, ...] | None, own: tuple[Any, ...] | None) -> int | None:
    """Return the user at the other end of a connection within this machine; None if not known.

    Args:
        peer, own: the two ends, as Python says them.
    """
    if not sys.platform.startswith("linux") or peer is None or own is None:
        return None
    is_v6 = ":" in str(peer[0])
    wanted = f"{_address(peer)} {_address(own)}".encode("ascii")
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open("/proc/net/tcp6" if is_v6 else "/proc/net/tcp", "rb") as table,
    ):
        for line in table:
            fields = line.split()
            if b" ".join(fields[1:3]) == wanted:
                return int(fields[7])
    return None


def _address(end: tuple[Any, ...]) -> str:
    """Return an address as the kernel writes it: words of four bytes in the host's order."""
    packed = ipaddress.ip_address(end[0]).packed
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return f"{b''.join(words).hex().upper()}:{end[1]:04X}"
