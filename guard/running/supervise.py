"""Runs the program as if nothing were between it and its caller, and ends it when told to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from guard.running import reports

_POLL_S: Final = 0.1
_GRACE_S: Final = 3.0
"""How long a refused program may take to end by itself, and again to end on SIGTERM."""

_FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT,
                     signal.SIGUSR1, signal.SIGUSR2)  # fmt: skip


def supervise(
    command: Sequence[str],
    environ: Mapping[str, str],
    directory: Path,
    look: Callable[[], None],
) -> int:
    """Run a program to its end and return its exit code; 128 and the number after a signal.

    Args:
        command, environ: of the program; standard input, output and the terminal are the caller's.
        directory: where its processes tell of refusals, which end it.
        look: called ten times a second.

    Raises:
        OSError: it cannot be started.
    """
    process = subprocess.Popen(command, env=dict(environ))  # noqa: S603  # what the user asked for
    refused_s: float | None = None
    sent = 0
    with _forwarding(process):
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(_POLL_S)
                break
            look()
            if reports.refusal(directory) is None:
                continue
            now_s = time.monotonic()
            refused_s = now_s if refused_s is None else refused_s
            if now_s - refused_s >= _GRACE_S * (sent + 1) and sent < 2:
                number = (signal.SIGTERM, signal.SIGKILL)[sent]
                sent += 1
                process.send_signal(number)
                _signal(reports.guarded(directory)[1], number)
    if reports.refusal(directory) is not None:
        _end_rest(directory)
    return 128 - code if code < 0 else code


def _end_rest(directory: Path) -> None:
    """End the guarded processes that a refused program has left behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        ends_s = time.monotonic() + _GRACE_S
        living = reports.guarded(directory)[1]
        _signal(living, number)
        while living and time.monotonic() < ends_s:
            time.sleep(_POLL_S)
            living = reports.guarded(directory)[1]


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


@contextlib.contextmanager
def _forwarding(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Pass signals on to the program, except those that the terminal has sent to both."""

    def forward(number: int, _frame: FrameType | None) -> None:
        by_terminal = number in (signal.SIGINT, signal.SIGQUIT) and _is_in_foreground()
        if not by_terminal:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
