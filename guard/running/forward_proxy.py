"""The forward proxy of a run: programs name a server to it, and it says who connects where.

It opens no TLS: it sees names of hosts and counts bytes. One thread of ``guard run`` serves it,
which waits in a system call, without an event loop, until a program connects.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Mapping
from typing import Final, Self

from guard.running.outward import UserProxies
from guard.running.past_guard import PastGuard
from guard.running.signals import start_uninterrupted

_BACKLOG: Final = 2048
_JOIN_S: Final = 5.0


class ForwardProxy:
    """The forward proxy of one run.

    Args:
        environ: the caller's environment; its own forward proxies are behind this one.
        past: judges the connections to LLM hosts.

    Attributes:
        url: where it listens, once entered.
    """

    def __init__(self, environ: Mapping[str, str], past: PastGuard) -> None:
        self._proxies = UserProxies.of(environ)
        self._past = past
        # Guarded by the lock: sockets that the thread has to take over, each with the port that its
        # connections are joined with; None for a forward proxy's.
        self._added: list[tuple[socket.socket, int | None]] = []
        self._lock = threading.Lock()
        # The thread owns the other end of its socket pair, and closes it.
        self._wake: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._wake, woken = socket.socketpair()
        self._thread = threading.Thread(
            target=self._run, args=(woken,), name="guard-forward", daemon=True
        )
        listening = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.serve(listening)
        start_uninterrupted(self._thread)
        return self

    def __exit__(self, *_: object) -> None:
        wake, self._wake = self._wake, None
        if wake is not None and self._thread is not None:
            wake.close()
            self._thread.join(_JOIN_S)

    def serve(self, listening: socket.socket) -> None:
        """Serve programs on one more socket, which is closed with the proxy. Thread-safe."""
        self._add(listening, None)

    def relay(self, listening: socket.socket, port: int) -> None:
        """Join each connection to a socket with one to a port of this machine. Thread-safe."""
        self._add(listening, port)

    def _add(self, listening: socket.socket, port: int | None) -> None:
        listening.setblocking(False)
        with self._lock:
            self._added.append((listening, port))
        assert self._wake is not None  # entered
        self._wake.send(b"+")

    def _run(self, woken: socket.socket) -> None:
        with woken:
            if not self._is_needed(woken):
                return
            from guard.running.tunnels import Tunnels  # with asyncio: most runs never need it

            proxies = self._proxies or UserProxies(None, None, ())
            Tunnels(proxies, self._past).run(woken, self._taken)

    def _taken(self) -> list[tuple[socket.socket, int | None]]:
        with self._lock:
            added, self._added = self._added, []
        return added

    def _is_needed(self, woken: socket.socket) -> bool:
        """Wait for the first connection; return False if the run has ended before."""
        known: set[socket.socket] = set()
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is not woken:
                        return True
                    if not woken.recv(4096):
                        self._close()
                        return False
                with self._lock:
                    fresh = [each for each, _ in self._added if each not in known]
                for each in fresh:
                    known.add(each)
                    selector.register(each, selectors.EVENT_READ)

    def _close(self) -> None:
        for listening, _ in self._taken():
            with contextlib.suppress(OSError):
                listening.close()
