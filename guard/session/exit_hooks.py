"""The ways in which a process ends, and the last delivery before each.

``atexit`` for a normal exit, SIGTERM for a supervisor's stop, and ``multiprocessing``'s finalizers
and celery's signal for their children, which exit by ``os._exit`` and never run ``atexit``. It
knows nothing about events: it calls back.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from guard.session.signal_waker import wake_main_thread

logger = logging.getLogger("guard.exit")

_SIGNAL_FLUSH_S: Final = 2.0
_ANSWERS_S: Final = 2.0


class ExitHooks:
    """Registers the callbacks for every way in which the process can end.

    Args:
        flush: delivers within the given seconds; the process continues afterwards.
        close: delivers and ends the service. Idempotent: several hooks may call it.
        wait: waits at most the given seconds for answers that are under way in other threads.
    """

    def __init__(
        self,
        flush: Callable[[float], object],
        close: Callable[[], object],
        wait: Callable[[float], object] = lambda seconds: None,
    ) -> None:
        self._flush = flush
        self._close = close
        self._wait = wait
        # What is installed. `install` may be called by any thread, and again by a forked child,
        # which inherits `atexit` and the signal's handler, but neither the finalizer nor the waker:
        # these are noted with the process that has them.
        self._at_exit = False
        self._in_child: int | None = None
        self._handles_sigterm = False
        # The handler before ours. From here on the main thread changes everything.
        self._previous: Any = None
        # Whether the handler has run; read by the waker's thread.
        self._is_seen = False
        self._woken_pid: int | None = None
        # Whether `signal_held` is active, and the signal that arrived meanwhile.
        self._is_held = False
        self._deferred: tuple[int, FrameType | None] | None = None

    def install(self) -> None:
        """Register the missing hooks; the signal's only from the main thread."""
        if not self._at_exit:
            self._at_exit = True
            atexit.register(self._end)
        self._install_finalizer()
        self._install_celery()
        self._install_signal()
        self._install_waker()

    def uninstall(self) -> None:
        """Remove the hooks."""
        atexit.unregister(self._end)
        self._at_exit = False
        ours = self._handles_sigterm and signal.getsignal(signal.SIGTERM) == self._on_sigterm
        if ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._previous)
            self._handles_sigterm = False

    @contextlib.contextmanager
    def signal_held(self) -> Iterator[None]:
        """Put SIGTERM off until the block ends: its handler would stop what the block waits for.

        Only in a child of ``multiprocessing``: its pool sends the signal while the child is ending
        by itself. Handlers run in the main thread only, so in another thread it does nothing.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or self._is_held or not _is_child_of_multiprocessing():
            yield
            return
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            deferred, self._deferred = self._deferred, None
            if deferred is not None:
                self._on_sigterm(*deferred)

    def _install_finalizer(self) -> None:
        if self._in_child == os.getpid() or not _is_child_of_multiprocessing():
            return
        from multiprocessing import util

        # Not before the child's own start-up, which clears inherited finalizers.
        self._in_child = os.getpid()
        util.Finalize(None, self._end, exitpriority=100)

    def _install_celery(self) -> None:
        signals = sys.modules.get("celery.signals")
        if signals is not None:  # the uid prevents a second connection
            signals.worker_process_shutdown.connect(
                self._at_celery_exit, weak=False, dispatch_uid="guard.exit"
            )

    def _at_celery_exit(self, **_: object) -> None:
        self._end()

    def _install_signal(self) -> None:
        if self._handles_sigterm or threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)
        if previous is signal.SIG_IGN or previous is None:  # ignored, or not Python's
            return
        # First: the signal may arrive as soon as its handler is set.
        self._previous = previous
        try:
            signal.signal(signal.SIGTERM, self._on_sigterm)
        except ValueError:  # a sub-interpreter
            return
        self._handles_sigterm = True

    def _install_waker(self) -> None:
        """Make a child of ``multiprocessing`` react to SIGTERM: its pool waits for its end."""
        is_main = threading.current_thread() is threading.main_thread()
        if not self._handles_sigterm or not is_main or self._woken_pid == os.getpid():
            return
        if _is_child_of_multiprocessing():
            self._woken_pid = os.getpid()
            wake_main_thread(signal.SIGTERM, lambda: self._is_seen)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._is_seen = True
        if self._is_held:
            self._deferred = (number, frame)
            return
        previous = self._previous
        # 1. The program has no handler: the signal ends the process.
        if not callable(previous):
            # The vendor bills requests under way; their answers say how much.
            self._wait(_ANSWERS_S)
            self._end()
            # Die of the signal, as without guard: a supervisor checks how its child ended.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        # 2. The program has its own, which decides what happens.
        try:
            # Deliver first: the handler may end the process. Do not close: it may also continue.
            self._flush(_SIGNAL_FLUSH_S)
        except Exception as exc:  # noqa: BLE001  # the user's handler always runs
            logger.warning("at SIGTERM: %s", exc)
        finally:
            previous(number, frame)

    def _end(self) -> None:
        try:
            self._close()
        except Exception as exc:  # noqa: BLE001  # the process is ending: no caller is left
            logger.warning("at exit: %s", exc)


def _is_child_of_multiprocessing() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None
