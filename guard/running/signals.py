"""The signals that ``guard run`` receives and forwards to its program."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final, Self

FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT,
                    signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP)  # fmt: skip
HELD: Final = (*FORWARDED, signal.SIGALRM)
"""What no thread may be interrupted by: one that another thread got would never be waited for."""

_BY_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
"""Signals of the terminal's keys: all processes in its foreground get them, also the program."""

_SI_KERNEL: Final = 128
"""``si_code`` of a signal that the terminal has sent, on Linux."""

_HAS_INFO: Final = hasattr(signal, "sigtimedwait") and os.uname().sysname == "Linux"
_AWAITED: Final = {*HELD, signal.SIGCHLD}


def start_uninterrupted(thread: threading.Thread) -> None:
    """Start a thread of a run.

    A thread inherits the mask. With the signals blocked in every thread they stay pending until the
    main thread waits for them; Python would act on one that any thread gets.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class SignalQueue:
    """Collects signals instead of acting on them, while it is entered. Main thread only.

    Attributes:
        mask_before: the signals that were blocked before it, for the program.
    """

    def __init__(self) -> None:
        self.mask_before: set[Any] = set()
        # On systems where signals cannot be waited for: the handlers before, and the signals that
        # were caught since the last `get`.
        self._handlers: dict[int, Any] = {}
        self._caught: list[int] = []

    def __enter__(self) -> Self:
        self.mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        # Blocked, not handled: a signal stays pending until `get`, which then learns its sender.
        if _HAS_INFO:
            signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
            # A thread that was started before may get an alarm between two waits, and must live.
            self._handlers = {signal.SIGALRM: signal.signal(signal.SIGALRM, lambda *_: None)}
        else:
            self._handlers = {number: signal.signal(number, self._catch) for number in FORWARDED}
        return self

    def __exit__(self, *_: object) -> None:
        if _HAS_INFO:
            # Discard what was meant for the program, which has ended, before unblocking it here.
            list(_pending())
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask_before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def get(self, timeout_s: float) -> list[int]:
        """Return the signals to forward to the program; wait for one, or for its end, if needed.

        Args:
            timeout_s: the longest wait in seconds.
        """
        if _HAS_INFO:
            # An alarm ends the wait, not a timeout of `sigtimedwait`: if the process is stopped and
            # continued during that, CPython returns a signal that is made of whatever the memory
            # held (3.10 to 3.13).
            signal.setitimer(signal.ITIMER_REAL, timeout_s, timeout_s)
            first = signal.sigwaitinfo(_AWAITED)
            signal.setitimer(signal.ITIMER_REAL, 0)
            return [each.si_signo for each in (first, *_pending()) if _is_to_forward(each)]
        if not self._caught:
            time.sleep(timeout_s)
        caught, self._caught = self._caught, []
        return caught

    def _catch(self, number: int, _frame: FrameType | None) -> None:
        if number not in _BY_TERMINAL or not _is_in_foreground():
            self._caught.append(number)


def _pending() -> Iterator[signal.struct_siginfo]:
    """Take the signals that have arrived already."""
    return iter(lambda: signal.sigtimedwait(_AWAITED, 0), None)


def _is_to_forward(info: signal.struct_siginfo) -> bool:
    by_terminal = info.si_signo in _BY_TERMINAL and info.si_code == _SI_KERNEL
    return info.si_signo in FORWARDED and not by_terminal


def _is_in_foreground() -> bool:
    with contextlib.suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False
