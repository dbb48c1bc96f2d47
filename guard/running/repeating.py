"""Calls a function at intervals, in a thread, while a block lasts."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from guard.running.signals import start_uninterrupted

logger = logging.getLogger("guard.run")


@contextlib.contextmanager
def repeating(
    look: Callable[[], None], every_s: float, name: str, join_s: float | None = None
) -> Iterator[None]:
    """Call ``look`` until the block ends.

    Args:
        look: the function; an exception in it is logged, once if it comes again at each call.
        every_s: how long to wait before each call, in seconds.
        name: the name of the thread.
        join_s: how long the block's end waits for a call under way, in seconds; None waits for it
            to end.
    """
    over = threading.Event()

    def repeat() -> None:
        said = None
        while not over.wait(every_s):
            try:
                look()
                said = None
            except Exception as exc:  # one failed look does not end the others
                if repr(exc) != said:  # many calls a second may all fail in the same way
                    said = repr(exc)
                    logger.exception("%s: a look failed, the next may do better", name)

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    start_uninterrupted(thread)
    try:
        yield
    finally:
        over.set()
        thread.join(join_s)
