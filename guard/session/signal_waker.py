"""Interrupts a main thread that blocks although a signal waits for its handler.

Python runs handlers in the main thread, between two of its steps. A signal that arrives just
before the main thread blocks in C, as on a lock of ``multiprocessing``, is handled only after that.
That may be never: the parent that sent it waits for ever. So a thread watches for signals, and
sends the main thread another one as long as the handler has not run: it interrupts the call in C.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

_AGAIN_S: Final = 0.05
_READ_BYTES: Final = 64


def wake_main_thread(number: int, is_handled: Callable[[], bool]) -> None:
    """Make sure that the handler of a signal runs soon, whatever the main thread waits for.

    Called in the main thread of a process whose parent waits for its end. Does nothing if the
    program uses ``signal.set_wakeup_fd`` itself.

    Args:
        number: the number of the signal.
        is_handled: whether its handler has begun.
    """
    main = threading.get_ident()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # C code writes the number of each signal into the pipe at once, before any Python handler.
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:  # the program's own: put it back
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
        return

    def watch() -> None:
        while True:
            seen = os.read(reader, _READ_BYTES)
            while number in seen:
                time.sleep(_AGAIN_S)  # usually the handler runs by itself
                if is_handled():
                    return
                signal.pthread_kill(main, number)

    # A forked child would write into its parent's pipe.
    os.register_at_fork(after_in_child=lambda: _let_go(writer))
    threading.Thread(target=watch, name="guard-signals", daemon=True).start()


def _let_go(writer: int) -> None:
    """Remove the pipe in a forked child, unless another one was set since."""
    other = signal.set_wakeup_fd(-1)
    if other != writer:
        signal.set_wakeup_fd(other)
