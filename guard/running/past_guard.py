"""Judges the connections of a run's programs to LLM hosts past guard, and counts their bytes.

A connection by name is judged before it is made, by the process that asks for it. A program that
guard covers may also report to its vendor (what it is, how it fares, whether there is a newer one).
Such reports are as large as requests to models, but only the latter are answered at length.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

from guard.core.visible import one_line
from guard.running import reports
from guard.running.processes import Ends
from guard.running.watch import TreeWatch, end

_HOSTS_MAX: Final = 100
_ASKED: Final = 16_384
"""Bytes that a request to a model has at least, encryption included: those of coding agents begin
at 30 kB. What they report is up to 250 kB at once, also before anybody has asked them anything."""

_ANSWERED: Final = 4096
"""Bytes that come back for a report at most: a status, headers, the tickets of a TLS session."""

_CONTROL: Final = 64
"""Bytes of HTTP/2 that only acknowledge: they begin no request."""

_AT_ONCE: Final = 1_048_576
"""Bytes that a program which guard covers may send to a vendor at once, in many small requests."""

_MORE_A_SECOND: Final = 16_384
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
        is_limited: whether it may only report to the host.
    """

    program: str
    host: str
    pid: int | None = None
    connections: int = 0
    sent: int = 0
    received: int = 0
    is_limited: bool = False
    # What is left of what it may send at once, and since when.
    _room: float = _AT_ONCE
    _since_s: float = 0.0

    def takes(self, size: int, now_s: float) -> bool:
        """Count bytes that it sends; return whether it may send them."""
        self.sent += size
        more = (now_s - self._since_s) * _MORE_A_SECOND
        self._room = min(self._room + more, _AT_ONCE) - size
        self._since_s = now_s
        return not self.is_limited or self._room >= 0


@attrs.define(eq=False)
class HostConnection:
    """One connection of a program to a host.

    Attributes:
        traffic: what it counts for.
    """

    traffic: Traffic
    # What the program has sent since it last began to send, and what has come back for that.
    _asked: int = 0
    _answered: int = 0

    def sends(self, size: int) -> None:
        """Take note of bytes that the program sends."""
        if self._answered and size > _CONTROL:
            self._asked = self._answered = 0
        self._asked += size

    def gets(self, size: int) -> bool:
        """Take note of bytes for the program; return whether a report could be answered so."""
        self._answered += size
        is_models = self._asked >= _ASKED and self._answered >= _ANSWERED
        return not (self.traffic.is_limited and is_models)


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

    def open(
        self, host: str, port: int, client: Ends, has_left: Callable[[], bool] = lambda: False
    ) -> HostConnection:
        """Judge a connection that a program asks the forward proxy for.

        Args:
            host, port: the server.
            client: the program's end of its connection to the forward proxy, and the other one.
            has_left: returns whether the program has closed that connection.

        Raises:
            RefusedError: the run ends instead; not for a program that has left before it was found.
        """
        if not self._watch.hosts.has(host, port):
            with self._lock:
                return HostConnection(self._other(host))
        caller = self._watch.caller(client)
        if caller is not None and caller.is_covered:
            # Its requests are counted by itself.
            return HostConnection(Traffic(caller.name, host, caller.pid))
        if caller is None and has_left():
            raise RefusedError(f"nobody waits for {host}")
        name = "a program" if caller is None else caller.name
        with self._lock:
            traffic = self._traffic(None if caller is None else caller.pid, name, host)
        if self._ends:
            if caller is None or not caller.is_known:
                self._refuse(f"{name} talks to {host}, and guard cannot see what it spends")
                raise RefusedError(f"{host} would be asked past guard; {_ADVICE}")
            traffic.is_limited = True
        return HostConnection(traffic)

    def sent(self, connection: HostConnection, size: int) -> bool:
        """Count bytes that a program sends to a host; return whether it may send them."""
        traffic = connection.traffic
        with self._lock:
            connection.sends(size)
            if traffic.takes(size, time.monotonic()):
                return True
        self._end(traffic, f"has sent {size_of(traffic.sent)} to {traffic.host} past guard, "
                           "more than it needs to report to it")  # fmt: skip
        return False

    def received(self, connection: HostConnection, size: int) -> bool:
        """Count bytes that a host sends to a program; return whether the program may have them."""
        traffic = connection.traffic
        with self._lock:
            traffic.received += size
            if connection.gets(size):
                return True
        self._end(traffic, f"is answered by {traffic.host} past guard as models answer, after "
                           f"{size_of(traffic.sent)}")  # fmt: skip
        return False

    def _end(self, traffic: Traffic, why: str) -> None:
        self._refuse(f"{traffic.program} {why}")
        if traffic.pid is not None:
            end(traffic.pid)

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
