"""Error hooks: told of every GuardError before it propagates (spec part 4, ``on_error``)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

import attrs

from guard.breaker.exceptions import GuardError

logger = logging.getLogger("guard.hooks")


@attrs.frozen
class ErrorContext:
    """Where an error happened.

    Attributes:
        stage: ``init``, ``gate``, ``call``, ``track``, ``flush``, ``shutdown`` or ``status``.
        workflow_id: the workflow, if any.
        tool_name: the tool, if any.
        api_key_prefix: the first characters of the key, never the key.
    """

    stage: str
    workflow_id: str | None = None
    tool_name: str | None = None
    api_key_prefix: str = ""


Hook = Callable[[GuardError, ErrorContext], object]

_FIRED: Final = "_guard_hooks_fired"


class _Registration:
    """One registered hook; the same function registered twice is two registrations."""

    __slots__ = ("hook",)

    def __init__(self, hook: Hook) -> None:
        self.hook = hook


_hooks: tuple[_Registration, ...] = ()
_lock = threading.Lock()
"""Held while the tuple is replaced; firing reads it without."""


def on_error(hook: Hook) -> Callable[[], None]:
    """Register a hook for every GuardError, called in registration order.

    Args:
        hook: takes the error and an :class:`ErrorContext`. What it raises is logged at debug level.

    Returns:
        A callable that unregisters the hook; calling it again does nothing.

    Raises:
        TypeError: ``hook`` cannot be called.

    Example:
        >>> unregister = on_error(lambda error, context: None)
        >>> unregister()
    """
    global _hooks
    if not callable(hook):
        raise TypeError(f"on_error takes a callable, not {type(hook).__name__}")
    registration = _Registration(hook)
    with _lock:
        _hooks = (*_hooks, registration)

    def unregister() -> None:
        global _hooks
        with _lock:
            _hooks = tuple(other for other in _hooks if other is not registration)

    return unregister


def fire(error: BaseException, context: ErrorContext) -> None:
    """Tell the hooks of an error, once per error; never raises an ``Exception``."""
    if not isinstance(error, GuardError) or error.__dict__.get(_FIRED):
        return
    error.__dict__[_FIRED] = True
    for registration in _hooks:
        try:
            registration.hook(error, context)
        except Exception:
            logger.debug("an on_error hook raised", exc_info=True)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
