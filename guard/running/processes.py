"""The processes of a run, as Linux lists them: which there are, and what they are connected to.

Processes end and start at any moment, so every file in ``/proc`` may be gone when it is opened.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import ipaddress
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import attrs

from guard.running.grace import ProcessLoad

IS_LINUX: Final = sys.platform == "linux"
_SUBREAPER: Final = 36
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_LISTENING: Final = "0A"
_ENDED: Final = "ZX"
_HELD: Final = "RDTt"
"""States of threads that cannot run although they would: wait for a CPU or disk, or stopped."""

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")

Address = tuple[str, int]
"""The IP address and the port of one end of a connection."""

Ends = tuple[Address, Address]
"""The own end of a connection and the other one."""


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end, so that none leaves the tree."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


@attrs.frozen
class Process:
    """A process.

    Attributes:
        pid: its number.
        name: the name of its program; of a Python script the interpreter's.
        is_dead: whether it has ended and its parent has not reaped it yet.
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
    # The name is in parentheses, and may contain some.
    name, _, rest = text.partition("(")[2].rpartition(")")
    with contextlib.suppress(OSError):  # another user's process
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


def below(root: int, left_out: Collection[int] = ()) -> set[int]:
    """Return all living processes below one.

    On other systems than Linux, processes whose parents have ended are not found.

    Args:
        root: the process.
        left_out: processes to leave out, with all that are only below them.
    """
    children_of = children if IS_LINUX else _listed().__getitem__
    found: set[int] = set()
    waiting = list(children_of(root))
    while waiting:
        pid = waiting.pop()
        if pid not in left_out and pid not in found:
            found.add(pid)
            waiting += children_of(pid)
    return {pid for pid in found if not _has_ended(pid)} if IS_LINUX else found


def _has_ended(pid: int) -> bool:
    fields = _stat(f"/proc/{pid}/stat")
    return fields is None or fields[0] in _ENDED


def _listed() -> dict[int, list[int]]:
    """Return the children of all processes, as ``ps`` lists them."""
    found: dict[int, list[int]] = collections.defaultdict(list)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["ps", "-A", "-o", "pid=,ppid=,stat="]
        listed = subprocess.run(  # noqa: S603  # a fixed command
            command, capture_output=True, text=True, timeout=5, check=True
        )
        for pid, parent, state in map(str.split, listed.stdout.splitlines()):
            if not state.startswith("Z"):
                found[int(parent)].append(int(pid))
    return found


def loads(roots: Iterable[int]) -> dict[int, ProcessLoad]:
    """Return the load of some processes and all below them; empty on other systems than Linux."""
    found: dict[int, ProcessLoad] = {}
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found and (load := _load(pid)) is not None:
            found[pid] = load
            waiting += children(pid)
    return found


def _load(pid: int) -> ProcessLoad | None:
    fields = _stat(f"/proc/{pid}/stat")
    if fields is None or fields[0] in _ENDED:
        return None
    is_held = False
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            states = _stat(f"/proc/{pid}/task/{thread}/stat")
            is_held = is_held or (states is not None and states[0] in _HELD)
    return ProcessLoad(sum(map(int, fields[11:15])) / _TICKS_A_SECOND, is_held)


def _stat(path: str) -> list[str] | None:
    """Return the fields of a ``stat`` after the name, the state first; None if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def reap(pid: int) -> None:
    """Reap an adopted process that has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def words(pid: int) -> list[str]:
    """Return the words of a process's command; empty if there is none."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    return []


def holder(ends: Ends, pids: Iterable[int]) -> int | None:
    """Return which of some processes has this end of a connection; None if none has.

    Each process is asked in its own network: a run may have put some behind a wall. By both ends:
    another process may have the same port, in another network or to another server.
    """
    inodes: dict[str, str | None] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            network = os.readlink(f"/proc/{pid}/ns/net")
            if network not in inodes:
                inodes[network] = _inode(pid, ends)
            if inodes[network] in _sockets(pid):
                return pid
    return None


def _inode(pid: int, ends: Ends) -> str | None:
    port = f":{ends[0][1]:04X}"
    for fields in _connections(pid):
        if fields[1].endswith(port) and (_address(fields[1]), _address(fields[2])) == ends:
            return fields[9]
    return None


def _sockets(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                match = _SOCKET.match(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
                if match is not None:
                    found.add(match[1])
    return found


def _connections(pid: int) -> Iterator[list[str]]:
    """Yield the fields of the TCP connections in a process's network."""
    for table in ("tcp", "tcp6"):
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{pid}/net/{table}", encoding="ascii") as file,
        ):
            next(file, None)
            for line in file:
                fields = line.split()
                if fields[3] != _LISTENING:
                    yield fields


def peers(pid: int) -> set[Address]:
    """Return the other ends of a process's TCP connections."""
    inodes = _sockets(pid)
    if not inodes:
        return set()
    # The tables list all connections of the network; the inode says whose one is.
    return {_address(fields[2]) for fields in _connections(pid) if fields[9] in inodes}


def owner(peer: Sequence[Any] | None, own: Sequence[Any] | None) -> int | None:
    """Return the user at the other end of a connection within this machine; None if not known.

    Args:
        peer, own: the two ends, as Python's sockets return them.
    """
    if not IS_LINUX or peer is None or own is None:
        return None
    table = "tcp6" if ":" in str(peer[0]) else "tcp"
    # Compared as text: parsing each line's addresses would take ten times as long. The line with
    # the peer's end first is the peer's socket, whose user is wanted.
    wanted = f"{_written(peer)} {_written(own)}".encode("ascii")
    with (
        contextlib.suppress(OSError, ValueError, IndexError),
        open(f"/proc/net/{table}", "rb") as file,
    ):
        for line in file:
            fields = line.split()
            if b" ".join(fields[1:3]) == wanted:
                return int(fields[7])
    return None


def _written(end: Sequence[Any]) -> str:
    """Return an address as :func:`_address` reads it."""
    packed = ipaddress.ip_address(end[0]).packed
    return f"{_in_words(packed).hex().upper()}:{end[1]:04X}"


def _in_words(packed: bytes) -> bytes:
    """Swap the bytes of an address between the network's order and the kernel's words."""
    if sys.byteorder == "big":
        return packed
    return b"".join(packed[at : at + 4][::-1] for at in range(0, len(packed), 4))


def _address(text: str) -> Address:
    """Read an address as the kernel writes it: words of four bytes in the host's order."""
    digits, _, port = text.partition(":")
    address = ipaddress.ip_address(_in_words(bytes.fromhex(digits)))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), int(port, 16)
