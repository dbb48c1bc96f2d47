"""Runs the program as if its caller had started it directly, and ends it once it is refused.

Runs in the main thread, except ``look``. A refusal arrives as a file in the run's directory,
written by the program's processes or by ``look``.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from guard.running import processes, reports
from guard.running.grace import LAST_WORDS_S, OWN_S, Grace
from guard.running.repeating import repeating
from guard.running.signals import SignalQueue
from guard.running.terminal import Terminal

_POLL_S: Final = 0.1
_JOIN_S: Final = 5.0
_JOB_CONTROL: Final = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_IGNORED_BY_PYTHON: Final = [
    number for name in ("SIGPIPE", "SIGXFSZ") if (number := getattr(signal, name, None))
]


Start = Callable[[Sequence[str], Mapping[str, str], set[Any]], int]
"""Starts a command with an environment and with some signals blocked, and returns its pid."""


def spawn(command: Sequence[str], environ: Mapping[str, str], mask: set[Any]) -> int:
    """Start a program as this process would be started; see :data:`Start`."""
    return os.posix_spawn(
        command[0],
        list(command),
        dict(environ),
        setsigmask=mask,
        setsigdef=_IGNORED_BY_PYTHON,
    )


def supervise(
    command: Sequence[str],
    environ: Mapping[str, str],
    directory: Path,
    look: Callable[[], None],
    at_the_end: Callable[[], None],
    spared: Callable[[], set[int]] = set,
    start: Start = spawn,
) -> int:
    """Run a program to its end and return its exit code; after a signal, minus its number.

    Args:
        command, environ: those of the program; standard input, output and the terminal are
            the caller's.
        directory: where its processes report refusals, which end it.
        look: called ten times a second, in a thread of its own.
        at_the_end: called once the program has ended; a refusal that it reports ends what is left.
        spared: returns the processes below this one that do not belong to the program.
        start: starts it.

    Raises:
        OSError: it cannot be started.
    """
    # Before the program: `_Family` notes the children that are there already. The signals are
    # blocked before it is started, so that none is lost in between.
    family = _Family(directory, spared)
    with SignalQueue() as signals, Terminal() as terminal:
        pid = start(command, environ, signals.mask_before)
        _raise_open_files()
        # The terminal and the mask are restored after the program has ended, in reverse order.
        # In a thread: signals do not wait for a gateway that is slow to answer.
        with repeating(look, _POLL_S, "guard-run", _JOIN_S):
            code = _Program(pid, directory, signals, terminal, family).wait()
    # One more Ctrl-C while the program ends is meant for it: what it has cost is still told.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    at_the_end()
    if reports.refusal(directory) is not None:
        family.end()
    return code


def _raise_open_files() -> None:
    """Make room for two descriptors for each connection; the program has the limit of before."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Family:
    """The program's processes, whatever process group and parent they have now.

    Args:
        directory: the directory of the run.
        spared: returns the processes below this one that do not belong to the program.
    """

    def __init__(self, directory: Path, spared: Callable[[], set[int]]) -> None:
        self._directory = directory
        self._spared = spared
        # A shell that became `guard run` may have had children.
        self._before = processes.below(os.getpid())

    def living(self) -> set[int]:
        """Return the living ones: those below this process, and guarded ones that left the tree."""
        guarded = reports.guarded(self._directory)[1]
        return processes.below(os.getpid(), self._spared() | self._before).union(guarded) - {
            os.getpid()
        }

    def grace(self, now_s: float) -> Grace:
        """Return the time that they have to end by themselves.

        In a guarded process the refusal is an exception, which needs time to pass through the
        program. Other programs have received the refusal as an answer, and may never end because of
        it.
        """
        is_guarded = bool(reports.guarded(self._directory)[1])
        return Grace(now_s, OWN_S if is_guarded else LAST_WORDS_S)

    def end(self) -> None:
        """End the processes that a refused program has left behind."""
        # SIGTERM, then SIGKILL; the list is made anew each time, since they may start others.
        for number in (signal.SIGTERM, signal.SIGKILL):
            grace = self.grace(time.monotonic())
            living = self.living()
            _signal(living, number)
            while living and not grace.is_over(time.monotonic(), processes.loads(living)):
                time.sleep(_POLL_S)
                living = self.living()


class _Program:
    """The program while it runs."""

    def __init__(
        self,
        pid: int,
        directory: Path,
        signals: SignalQueue,
        terminal: Terminal,
        family: _Family,
    ) -> None:
        self._family = family
        self._pid = pid
        self._directory = directory
        self._signals = signals
        self._terminal = terminal
        # The time for the program to end by itself, and after SIGTERM again to end on that. None
        # before a refusal.
        self._grace: Grace | None = None
        # How many of the two signals, SIGTERM and SIGKILL, were sent because of the refusal.
        self._sent = 0

    def wait(self) -> int:
        """Wait until it has ended, and return its exit code."""
        while True:
            for number in self._signals.get(_POLL_S):
                self._send(number)
            # Not a blocking wait: signals and refusals come in between.
            found, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
            if not found:
                self._end_if_refused()
            elif os.WIFSTOPPED(status):
                self._stop_with_it(os.WSTOPSIG(status))
            else:
                return os.waitstatus_to_exitcode(status)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._pid, number)

    def _stop_with_it(self, number: int) -> None:
        """Stop as the program has stopped (Ctrl-Z), so that the shell sees it; resume it later."""
        if number not in _JOB_CONTROL:
            return
        # Not in a refused run: a program that stops itself has to be ended all the same.
        if reports.refusal(self._directory) is None:
            os.kill(os.getpid(), signal.SIGSTOP)  # returns after `fg` or `bg`
        self._send(signal.SIGCONT)

    def _end_if_refused(self) -> None:
        if reports.refusal(self._directory) is None:
            return
        # 1. Time to end by itself. 2. SIGTERM, and the same time again. 3. SIGKILL.
        now_s = time.monotonic()
        self._grace = self._grace or self._family.grace(now_s)
        living = self._family.living()
        loads = processes.loads([self._pid, *living])
        if self._sent == 2 or not self._grace.is_over(now_s, loads):
            return
        number = (signal.SIGTERM, signal.SIGKILL)[self._sent]
        self._sent += 1
        self._grace = self._family.grace(now_s)
        self._terminal.restore_at_exit()  # the program may have no time to do so itself
        self._send(number)
        _signal(living, number)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
