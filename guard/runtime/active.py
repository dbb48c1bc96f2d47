"""The process's one runtime: at most one is active at a time."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from guard.breaker.exceptions import GuardConfigError

if TYPE_CHECKING:  # constructing a runtime installs it, so this module is below it
    from guard.runtime.runtime import GuardRuntime

_lock = threading.Lock()
current: GuardRuntime | None = None
"""The process's runtime; hot paths read it here; everything else calls :func:`active_runtime`."""


def active_runtime() -> GuardRuntime | None:
    """Return the process's runtime, or None."""
    return current


def refuse_second() -> None:
    """Raise if a runtime is already active.

    Raises:
        GuardConfigError: GD-C004.
    """
    if current is not None and not current.is_shut_down:
        raise GuardConfigError(
            "guard is already initialised in this process; call guard.shutdown() first",
            error_code="GD-C004",
        )


def install(runtime: GuardRuntime) -> None:
    """Make a runtime the process's own."""
    global current
    with _lock:
        refuse_second()
        current = runtime


def uninstall(runtime: GuardRuntime) -> None:
    """Forget a runtime, if it is the process's own."""
    global current
    with _lock:
        if current is runtime:
            current = None


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    if current is not None:
        current._after_fork()


os.register_at_fork(after_in_child=_after_fork)
