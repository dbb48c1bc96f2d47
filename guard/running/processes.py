"""What Linux says of a run's processes: which there are, and whom they are connected to."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import re
import sys
from collections.abc import Iterator
from typing import Final

import attrs

IS_LINUX: Final = sys.platform == "linux"
_SUBREAPER: Final = 36
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_LISTENING: Final = "0A"

Address = tuple[str, int]
"""Of a peer: its IP address and port."""


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end, so that none leaves the tree."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


@attrs.frozen
class Process:
    """A process.

    Attributes:
        pid: its number.
        name: of its program; of a Python script the interpreter's.
        is_dead: whether it has ended, and waits for its parent to ask how.
    """

    pid: int
    name: str
    is_dead: bool = False


def process(pid: int) -> Process | None:
    """Return a process; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    with contextlib.suppress(OSError):  # of another user's
        # The kernel calls a script by its own name, and so a child of one before it has begun.
        interpreter = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        name = interpreter if interpreter.startswith("python") else name
    return Process(pid, name, rest.split()[:1] == ["Z"])


def children(pid: int) -> Iterator[int]:
    """Yield the children of all threads of a process."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file,
            ):
                yield from map(int, file.read().split())


def reap(pid: int) -> None:
    """Ask how an adopted process has ended, which lets it go."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def peers(pid: int) -> set[Address]:
    """Return whom a process is connected to over TCP."""
    inodes = set()
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                match = _SOCKET.match(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
                if match is not None:
                    inodes.add(match[1])
    if not inodes:
        return set()
    found = set()
    for table in ("tcp", "tcp6"):
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{pid}/net/{table}", encoding="ascii") as file,
        ):
            next(file, None)
            for line in file:
                fields = line.split()
                if fields[3] != _LISTENING and fields[9] in inodes:
                    found.add(_address(fields[2]))
    return found


def _address(text: str) -> Address:
    """Read an address as the kernel writes it: words of four bytes in the host's order."""
    digits, _, port = text.partition(":")
    words = [bytes.fromhex(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    ordered = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    address = ipaddress.ip_address(ordered)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), int(port, 16)
