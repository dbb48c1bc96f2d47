"""Delays forks while a background thread does work that a child must not inherit half done."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Final

_WAIT_S: Final = 10.0
"""Limit of a fork's wait: the forking thread may hold a lock that the other thread waits for."""

# Held by `held_forks` and during a fork. Re-entrant: a module that is being imported may fork, in
# the same thread.
_lock = threading.RLock()
# In the thread that forks: the lock that it took for the fork, or None if the wait was too long.
_mine = threading.local()


@contextlib.contextmanager
def held_forks() -> Iterator[None]:
    """Make forks by other threads wait until the block ends.

    For imports off the main thread: a child would inherit a half-loaded module, and its import lock
    held by a thread that does not exist in the child.
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
