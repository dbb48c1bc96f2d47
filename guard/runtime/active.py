"""The process's one runtime: at most one is active at a time.

It is known here as the account of the process's own key, which is what those below it ask;
``guard.runtime.active_runtime`` returns it as what it is.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, cast

from guard.breaker.exceptions import GuardConfigError
from guard.settings import LOCAL, MODE_VARIABLE

if TYPE_CHECKING:  # constructing a runtime installs it, so this module is below it
    from guard.runtime.account import KeyAccount
    from guard.scope.scope import Scope

logger = logging.getLogger("guard")

# Held while one of the two below is replaced; they are read without it.
_lock = threading.Lock()
current: KeyAccount | None = None
"""The process's runtime."""

_switched_off: KeyAccount | None = None
"""The runtime that was made with ``mode="off"``; it is never the active one."""

_warned_of_no_key = False


def active_account(scope: Scope) -> KeyAccount | None:
    """Return the account that a scope belongs to; None without a runtime."""
    if current is None or scope.caller is None:
        return current
    return cast("KeyAccount", scope.caller)


def is_off() -> bool:
    """Return whether guard is switched off: by a runtime's ``mode``, else by ``GUARD_MODE``.

    Observing needs a key. Without one guard is off, and a warning is logged once.
    """
    if current is not None:
        return False
    if _switched_off is not None:
        return True
    mode = os.environ.get(MODE_VARIABLE, "").strip().lower()
    return mode == "off" or (mode == "observe" and not _has_key())


def _has_key() -> bool:
    global _warned_of_no_key
    if (
        os.environ.get("GUARD_API_KEY", "").strip()
        or os.environ.get("GUARD_API_URL", "").strip().lower() == LOCAL
    ):
        return True
    if not _warned_of_no_key:
        _warned_of_no_key = True
        logger.warning(
            "nothing is observed: guard.init() was not called and GUARD_API_KEY is not set"
        )
    return False


def known() -> KeyAccount | None:
    """Return the runtime that was made, active or switched off; at most one of them is there."""
    return current or _switched_off


def refuse_second() -> None:
    """Raise if a runtime is already active.

    Raises:
        GuardConfigError: GD-C004.
    """
    runtime = known()
    if runtime is not None and not runtime.is_shut_down:
        raise GuardConfigError(
            "guard is already initialised in this process; call guard.shutdown() first",
            error_code="GD-C004",
        )


def install(runtime: KeyAccount) -> None:
    """Make a runtime the process's own."""
    global current, _switched_off
    with _lock:
        # Again, under the lock: another thread may have installed one since the constructor
        # checked.
        refuse_second()
        if runtime.settings.mode == "off":
            current, _switched_off = None, runtime
        else:
            current, _switched_off = runtime, None


def uninstall(runtime: KeyAccount) -> None:
    """Forget a runtime, if it is the process's own."""
    global current, _switched_off
    with _lock:
        if current is runtime:
            current = None
        if _switched_off is runtime:
            _switched_off = None


def _after_fork() -> None:
    global _lock
    # Another thread, which does not exist here, may have held it.
    _lock = threading.Lock()
    if current is not None:
        current._after_fork()


os.register_at_fork(after_in_child=_after_fork)
