"""Judges the connections of a run's programs to LLM hosts past guard, and counts their bytes.

A connection by name is judged before it is made, by the process that asks for it. A program that
guard covers may also report to its vendor (what it is, how it fares, whether there is a newer one),
as long as it sends no more than that takes: a coding agent's request to a model is larger.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Final

import attrs

from guard.core.visible import one_line
from guard.running import reports
from guard.running.processes import Address
from guard.running.watch import TreeWatch, end

_HOSTS_MAX: Final = 100
_REACHED_AT_ONCE: Final = 65_536
"""Bytes that a program which guard covers may send to a vendor at once, encryption included."""

_UNREACHED_AT_ONCE: Final = 24_576
"""The same before a request of the program has reached guard."""

_MORE_A_SECOND: Final = 256
"""What it may send besides in the course of time."""

_ADVICE: Final = (
    "a limit cannot hold for what goes past guard: run it without that, or let it go on, "
    "uncounted, with --allow-unseen"
)


class RefusedError(Exception):
    """A connection is not made, or not carried on; the text says why."""


@attrs.define(eq=False)
class Traffic:
    """What one program and one host have exchanged past guard.

    Attributes:
        program: the name of the program.
        host: the name of the host.
        pid: the newest process of it; None where that is not known.
        connections: how many there were; of those that the watch has seen, one a process.
        sent, received: bytes, where the connection went through the forward proxy.
    """

    program: str
    host: str
    pid: int | None = None
    connections: int = 0
    sent: int = 0
    received: int = 0
    # What it may send at once, 0 where nothing limits it; what is left of that, and since when.
    _at_once: int = 0
    _room: float = 0.0
    _since_s: float = 0.0

    def takes(self, size: int, now_s: float) -> bool:
        """Count bytes that it sends; return whether it may send them."""
        self.sent += size
        more = (now_s - self._since_s) * _MORE_A_SECOND
        self._room = min(self._room + more, self._at_once) - size
        self._since_s = now_s
        return not self._at_once or self._room >= 0

    def allow(self, at_once: int) -> None:
        """Limit what it may send at once, or raise that limit."""
        self._room += max(0, at_once - self._at_once)
        self._at_once = max(self._at_once, at_once)


class PastGuard:
    """The connections past guard of one run. Thread-safe.

    Args:
        directory: the directory of the run.
        watch: knows the run's processes, and which of them guard covers.
        ends: whether a connection that cannot be covered ends the run.
    """

    def __init__(
        self,
        directory: Path,
        watch: TreeWatch,
        *,
        ends: bool,
    ) -> None:
        self._directory = directory
        self._watch = watch
        self._ends = ends
        self._lock = threading.Lock()
        # Guarded by the lock. By program and host, in order; and by host what no LLM was sent.
        self._past: dict[tuple[str, str], Traffic] = {}
        self._others: dict[str, Traffic] = {}

    def seen(self, pid: int, program: str, host: str) -> None:
        """Take note of a connection that a process has made without the forward proxy."""
        with self._lock:
            self._traffic(pid, program, host)
        if self._ends:
            self._refuse(f"{program} talks to {host}, and guard cannot see what it spends")
            # After the report: once the program has ended, `guard run` looks why.
            end(pid)

    def open(self, host: str, port: int, client: Address) -> Traffic:
        """Judge a connection that a program asks the forward proxy for.

        Args:
            host, port: the server.
            client: the program's end of its connection to the forward proxy.

        Raises:
            RefusedError: the run ends instead.
        """
        if not self._watch.hosts.has(host, port):
            with self._lock:
                return self._other(host)
        caller = self._watch.caller(client)
        if caller is not None and caller.is_covered:
            return Traffic(caller.name, host, caller.pid)  # its requests are counted by itself
        name = "a program" if caller is None else caller.name
        with self._lock:
            traffic = self._traffic(None if caller is None else caller.pid, name, host)
        if self._ends:
            if caller is None or not (caller.is_known or caller.has_reached):
                self._refuse(f"{name} talks to {host}, and guard cannot see what it spends")
                raise RefusedError(f"{host} would be asked past guard; {_ADVICE}")
            with self._lock:
                traffic.allow(_REACHED_AT_ONCE if caller.has_reached else _UNREACHED_AT_ONCE)
        return traffic

    def sent(self, traffic: Traffic, size: int) -> bool:
        """Count bytes that a program sends to a host; return whether it may send them."""
        with self._lock:
            if traffic.takes(size, time.monotonic()):
                return True
            # It may have reached guard since.
            if traffic.pid is not None and self._watch.has_reached(traffic.pid, traffic.program):
                traffic.allow(_REACHED_AT_ONCE)
                if traffic.takes(0, time.monotonic()):
                    return True
        self._refuse(
            f"{traffic.program} has sent {size_of(traffic.sent)} to {traffic.host} past guard, "
            "more than it needs to report to it"
        )
        if traffic.pid is not None:
            end(traffic.pid)
        return False

    def _refuse(self, message: str) -> None:
        reports.refuse(self._directory, "GD-X001", _ADVICE, message=message)

    def _traffic(self, pid: int | None, program: str, host: str) -> Traffic:
        found = self._past.setdefault((program, host), Traffic(program, host))
        found.connections += 1
        found.pid = pid
        return found

    def _other(self, host: str) -> Traffic:
        if host not in self._others and len(self._others) >= _HOSTS_MAX:
            host = "others"
        found = self._others.setdefault(host, Traffic("", host))
        found.connections += 1
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the JSON report."""
        with self._lock:
            past, others = list(self._past.values()), list(self._others.values())
        return {
            "unguarded_connections": [
                {"program": each.program, "host": each.host, **_counts(each)} for each in past
            ],
            "other_hosts": {each.host: _counts(each) for each in others},
        }

    def lines(self) -> list[str]:
        """Return what went past guard as lines for people."""
        with self._lock:
            past = list(self._past.values())
        return [one_line(f"not counted: {each.program} talked to {_said(each)}") for each in past]


def _counts(traffic: Traffic) -> dict[str, int]:
    return {
        "connections": traffic.connections,
        "sent_bytes": traffic.sent,
        "received_bytes": traffic.received,
    }


def _said(traffic: Traffic) -> str:
    if not traffic.sent:
        return traffic.host
    many = f"{traffic.connections} connection{'' if traffic.connections == 1 else 's'}"
    size = f"{size_of(traffic.sent)} sent, {size_of(traffic.received)} received"
    return f"{traffic.host} ({many}, {size})"


def size_of(count: int) -> str:
    """Return a number of bytes for people.

    >>> [size_of(count) for count in (1, 999, 1_449, 2_600_000)]
    ['1 byte', '999 bytes', '1.4 kB', '2.6 MB']
    """
    if count < 1000:
        return f"{count} byte{'' if count == 1 else 's'}"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"
