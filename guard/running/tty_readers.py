"""Finds processes that wait for input from a terminal, by the system calls of their threads."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping
from typing import Final

from guard.running.processes import IS_LINUX

_TERMINAL: Final = re.compile(r"/dev/(?:pts/\d+|tty\w*|console)$")
_STANDARD: Final = 3
"""Descriptors below this are standard input, output and error."""


_READS: Final[Mapping[str, frozenset[int]]] = {
    "x86_64": frozenset({0, 17, 19, 295}),
    "aarch64": frozenset({63, 65, 67, 69}),
}
_SELECTS: Final[Mapping[str, frozenset[int]]] = {
    "x86_64": frozenset({23, 270}),
    "aarch64": frozenset({72}),
}
_EPOLLS: Final[Mapping[str, frozenset[int]]] = {
    "x86_64": frozenset({232, 281, 441}),
    "aarch64": frozenset({22, 441}),
}
"""System calls that wait for input: of one file, of the first files (``select``), of an epoll
set."""


def anyone_reads_terminal(pids: Iterable[int]) -> bool:
    """Return whether any of these processes waits for a terminal, or cannot be inspected.

    A process that waits with ``poll`` is not recognised; programs that do so change the terminal's
    mode.
    """
    machine = platform.machine()
    if not IS_LINUX or machine not in _READS:
        return True
    return any(_reads(pid, machine) for pid in pids)


def _reads(pid: int, machine: str) -> bool:
    try:
        terminals = _terminals(pid)
        if any(fd >= _STANDARD for fd in terminals):
            return True  # it has opened the terminal for itself
        threads = os.listdir(f"/proc/{pid}/task")
        return any(_waits(pid, thread, terminals, machine) for thread in threads)
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended
    except OSError:
        return True


def _terminals(pid: int) -> set[int]:
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            if _TERMINAL.match(os.readlink(f"/proc/{pid}/fd/{name}")):
                found.add(int(name))
        except FileNotFoundError:
            continue
    return found


def _waits(pid: int, thread: str, terminals: set[int], machine: str) -> bool:
    try:
        with open(f"/proc/{pid}/task/{thread}/syscall", encoding="ascii") as file:
            words = file.read().split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    if len(words) < 2 or not words[0].isdigit():
        return False  # it runs, or waits in no system call
    number, first = int(words[0]), int(words[1], 16)
    if number in _READS[machine]:
        return first in terminals
    if number in _SELECTS[machine]:
        return first == 1 and 0 in terminals  # it waits for standard input alone
    if number in _EPOLLS[machine]:
        return not terminals.isdisjoint(_watched(pid, first))
    return False


def _watched(pid: int, epoll: int) -> set[int]:
    """Return the descriptors in an epoll set."""
    try:
        with open(f"/proc/{pid}/fdinfo/{epoll}", encoding="ascii") as file:
            return {int(line.split()[1]) for line in file if line.startswith("tfd:")}
    except FileNotFoundError:
        return set()
