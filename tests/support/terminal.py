"""A program in a terminal of its own, and a person at the keyboard."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.waiting import WAIT_S, until

_TAKE = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
_TAKE += "os.execvp(sys.argv[1], sys.argv[1:])"


class TerminalSession:
    """Runs a command as the leader of a terminal's session.

    Attributes:
        shown: all that the terminal has shown, as text.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path,
        rows: int = 24, columns: int = 80,
    ) -> None:  # fmt: skip
        self.shown = ""
        self._read_to = 0
        # A character of several bytes may come in two parts.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._device, inner = pty.openpty()
        self.resize(rows, columns)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", _TAKE, *command],
                stdin=inner, stdout=inner, stderr=inner, env=dict(env), cwd=cwd,
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._device)

    def resize(self, rows: int, columns: int) -> None:
        """Change the window's size."""
        fcntl.ioctl(self._device, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._device, text.encode())

    def expect(self, text: str, timeout_s: float = WAIT_S) -> str:
        """Wait until the terminal shows a text, after the earlier ones; return what came."""
        ends_s = time.monotonic() + timeout_s
        while (found := self.shown.find(text, self._read_to)) < 0:
            left_s = ends_s - time.monotonic()
            assert left_s > 0, f"no {text!r} in {self.shown[self._read_to :]!r}"
            if not self.read(left_s):
                raise AssertionError(f"it ended without {text!r}: {self.shown!r}")
        start, self._read_to = self._read_to, found + len(text)
        return self.shown[start : self._read_to]

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Read to the end; return the exit code."""
        ends_s = time.monotonic() + timeout_s
        while self.read(ends_s - time.monotonic()):
            assert time.monotonic() < ends_s, f"it did not end: {self.shown!r}"
        return self.process.wait(max(1.0, ends_s - time.monotonic()))

    def echoes(self) -> bool:
        """Tell whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._device)[3] & termios.ECHO)

    def foreground(self) -> int:
        """Return the process group that the keys reach: the shell's, or that of its job."""
        return os.tcgetpgrp(self._device)

    def continue_job(self, group: int) -> None:
        """Type `fg`, and wait until the job has the terminal: a key before that is the shell's."""
        self.type("fg\n")
        until(lambda: self.foreground() == group)

    def read(self, timeout_s: float) -> bool:
        """Read what is drawn within a time; return whether anything may draw more."""
        if not select.select([self._device], [], [], max(0.0, timeout_s))[0]:
            return True
        try:
            data = os.read(self._device, 65_536)
        except OSError:  # Linux: the last program has closed the terminal
            return False
        self.shown += self._decoder.decode(data)
        return bool(data)
