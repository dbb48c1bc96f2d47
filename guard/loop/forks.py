"""Forks wait while a background thread does what a child must not inherit half done."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Final

_WAIT_S: Final = 10.0
"""How long a fork waits at most: it may itself hold what the background thread waits for."""

_lock = threading.RLock()  # a module that is being imported may fork in the same thread
# Of the thread that forks: the lock that it took for the fork, None if it waited in vain.
_mine = threading.local()


@contextlib.contextmanager
def held_forks() -> Iterator[None]:
    """Have forks by other threads wait until the block ends.

    Meant for imports off the main thread: a child inherits a module as far as it is loaded, and
    its import lock, held by a thread that does not exist there.
    """
    with _lock:
        yield


def _before_fork() -> None:
    _mine.lock = _lock if _lock.acquire(timeout=_WAIT_S) else None


def _after_fork_in_parent() -> None:
    if _mine.lock is not None:
        _mine.lock.release()


def _after_fork_in_child() -> None:
    global _lock
    if _mine.lock is None:
        _lock = threading.RLock()  # its holder does not exist here
    else:
        _mine.lock.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
