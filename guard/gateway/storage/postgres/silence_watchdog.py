"""Ends connections whose server is silent when it has to answer.

The kernel notices a server that is gone. It does not notice one that is connected and silent: a
frozen server, or a proxy in between that has lost the other side. A thread that waits for its
answer would wait for ever. So each connection sets a time by which it expects an answer, and
another thread ends the connections that get none. The waiting thread sees a lost connection like
any other.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
from typing import Final

CHECK_S: Final = 0.25
"""How often the watch looks at the connections."""


class WatchedSocket:
    """A duplicate of a connection's socket, which another thread may shut down.

    Args:
        fileno: of the socket. It is duplicated: if the connection closes its own, the number may
            become another file's, and the watch would cut that.
    """

    def __init__(self, fileno: int) -> None:
        self._socket = socket.socket(fileno=os.dup(fileno))
        # Keeps the watch from cutting a socket while the connection's thread closes it.
        self._lock = threading.Lock()
        # Monotonic time. Written by the connection's thread, read by the watch, without a lock: one
        # assignment is whole, and a value that is a moment old is looked at again 0.25 s later.
        self.answers_by_s = math.inf

    def expect(self, within_s: float) -> None:
        """Expect everything that is asked from now on to be answered within a time."""
        self.answers_by_s = time.monotonic() + within_s

    def rest(self) -> None:
        """Expect nothing."""
        self.answers_by_s = math.inf

    def cut(self) -> None:
        """End the connection under the thread that waits on it."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the duplicate. Idempotent."""
        with self._lock:
            self._socket.close()


class AnswerWatch:
    """Cuts the lines on which an answer is overdue, from a thread of its own."""

    def __init__(self) -> None:
        # Any thread adds and removes; the watch iterates over a copy. Both are single operations of
        # the interpreter, so no lock is needed.
        self._lines: set[WatchedSocket] = set()
        # Ends the watch, and interrupts its waits.
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._closing.clear()
        self._thread = threading.Thread(target=self._run, name="guard-gateway-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def add(self, line: WatchedSocket) -> None:
        """Watch a line."""
        self._lines.add(line)

    def remove(self, line: WatchedSocket) -> None:
        """Stop watching a line, and close its duplicate of the socket."""
        self._lines.discard(line)
        line.close()

    def _run(self) -> None:
        while not self._closing.wait(CHECK_S):
            now_s = time.monotonic()
            for line in tuple(self._lines):
                if line.answers_by_s < now_s:
                    # Before the cut: the thread that it wakes may set its next time at once, which
                    # this must not overwrite.
                    line.rest()
                    line.cut()
