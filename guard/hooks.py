"""Hooks for errors (spec part 4, ``on_error``) and for the gateway's warnings.

The hooks of an error that is raised to a caller run before it propagates: in the caller's thread,
or in a thread of their own while an asynchronous caller awaits them. The hooks of everything that
happens in the background run in guard's hook thread, never on its loop.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Final, Generic, TypeVar

import attrs

from guard.breaker.exceptions import GuardError, WorkflowKilledInterrupt
from guard.loop.threads import in_thread

logger = logging.getLogger("guard.hooks")

H = TypeVar("H", bound=Callable[..., object])

_QUEUE_MAX: Final = 1000
_FIRED: Final = "_guard_hooks_fired"
"""Attribute of an error whose hooks have been called."""


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


@attrs.frozen
class GatewayWarning:
    """A warning with which the gateway allowed a call.

    Attributes:
        text: such as ``"85% of budget used or reserved: workflow w"``.
        workflow_id, chain_id: those of the call, if any.
        tool_name: name of the protected function.
    """

    text: str
    workflow_id: str | None = None
    chain_id: str | None = None
    tool_name: str | None = None


@attrs.frozen
class WindDown:
    """A run for which only what a budget keeps for winding down is left.

    Attributes:
        workflow_id, run_id: the workflow and the run, if any.
        is_last: whether the request under way is the run's last one.
    """

    workflow_id: str | None = None
    run_id: str | None = None
    is_last: bool = False


ErrorHook = Callable[[GuardError, ErrorContext], object]
WarningHook = Callable[[GatewayWarning], object]
WindDownHook = Callable[[WindDown], object]


class _Registration(Generic[H]):
    """One registered hook; the same function registered twice is two registrations."""

    __slots__ = ("hook",)

    def __init__(self, hook: H) -> None:
        self.hook = hook


class _Registry(Generic[H]):
    """The hooks of one kind, in registration order.

    Args:
        takes: name of the public function that registers them, for its errors.
    """

    def __init__(self, takes: str) -> None:
        self._takes = takes
        self.lock = threading.Lock()
        """Held while the tuple is replaced; :meth:`call` reads the tuple without it."""
        self.registrations: tuple[_Registration[H], ...] = ()

    def add(self, hook: H) -> Callable[[], None]:
        if not callable(hook):
            raise TypeError(f"{self._takes} takes a callable, not {type(hook).__name__}")
        registration = _Registration(hook)
        with self.lock:
            self.registrations = (*self.registrations, registration)

        def unregister() -> None:
            with self.lock:
                self.registrations = tuple(
                    other for other in self.registrations if other is not registration
                )

        return unregister

    def call(self, *args: object) -> None:
        """Call each hook; an exception of one neither stops the others nor reaches the caller."""
        for registration in self.registrations:
            try:
                registration.hook(*args)
            except (KeyboardInterrupt, WorkflowKilledInterrupt):
                raise  # Ctrl-C, or a kill of the body that the hook runs in: not the hook's own
            except BaseException:  # SystemExit as well
                logger.debug("a hook raised", exc_info=True)


class _HookThread:
    """Calls hooks one after the other in a daemon thread, which ends when nothing is left."""

    def __init__(self) -> None:
        # All three change under the condition's lock; the hooks, the user's code, run without it.
        self._queue: deque[Callable[[], object]] = deque()
        # Notified when the queue is empty and the thread ends.
        self._idle = threading.Condition()
        # The thread while it has work; None means that the queue is empty.
        self._thread: threading.Thread | None = None

    def put(self, call: Callable[[], object]) -> None:
        """Queue a call, without waiting for those that are queued."""
        with self._idle:
            if len(self._queue) >= _QUEUE_MAX:
                logger.warning("the hooks are too slow: one more call of them is dropped")
                return
            self._queue.append(call)
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._work, name="guard-hooks", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter is ending
                logger.debug("hooks cannot be called any more")
                self._thread = None
                self._queue.clear()

    def _work(self) -> None:
        while True:
            with self._idle:
                # Under the lock, together with the check: a later `put` starts a new thread.
                if not self._queue:
                    self._thread = None
                    self._idle.notify_all()
                    return
                call = self._queue.popleft()
            try:
                call()
            except BaseException:  # it has no caller; the other calls are still to be made
                logger.debug("a hook raised", exc_info=True)

    def wait(self, timeout_s: float) -> None:
        """Wait until every queued call has been made; returns at once within a hook."""
        if threading.current_thread() is self._thread:
            return
        with self._idle:
            self._idle.wait_for(lambda: self._thread is None, timeout_s)


_errors: _Registry[ErrorHook] = _Registry("on_error")
_warnings: _Registry[WarningHook] = _Registry("on_warning")
_wind_downs: _Registry[WindDownHook] = _Registry("on_wind_down")
_background = _HookThread()


def on_error(hook: ErrorHook) -> Callable[[], None]:
    """Register a hook for every GuardError, called in registration order.

    Args:
        hook: takes the error and an :class:`ErrorContext`. What it raises is logged at debug level.
            One that blocks delays the call that failed, and nothing else.

    Returns:
        A callable that unregisters the hook; calling it again does nothing.

    Raises:
        TypeError: ``hook`` cannot be called.

    Example:
        >>> unregister = on_error(lambda error, context: None)
        >>> unregister()
    """
    return _errors.add(hook)


def on_warning(hook: WarningHook) -> Callable[[], None]:
    """Register a hook for the gateway's warnings: a soft budget, a chain or a threshold is passed.

    Args:
        hook: takes a :class:`GatewayWarning`, once for each text; called in guard's hook thread.

    Returns:
        A callable that unregisters the hook; calling it again does nothing.

    Raises:
        TypeError: ``hook`` cannot be called.

    Example:
        >>> unregister = on_warning(lambda warning: None)
        >>> unregister()
    """
    return _warnings.add(hook)


def on_wind_down(hook: WindDownHook) -> Callable[[], None]:
    """Register a hook for runs that begin to wind down: finish, with what a budget keeps for that.

    Args:
        hook: takes a :class:`WindDown`, once for each run of this process; called in guard's hook
            thread.

    Returns:
        A callable that unregisters the hook; calling it again does nothing.

    Raises:
        TypeError: ``hook`` cannot be called.

    Example:
        >>> unregister = on_wind_down(lambda run: None)
        >>> unregister()
    """
    return _wind_downs.add(hook)


def fire(error: BaseException, context: ErrorContext) -> None:
    """Call the hooks for an error in the calling thread, once per error."""
    if _is_first(error):
        _errors.call(error, context)


async def fire_async(error: BaseException, context: ErrorContext) -> None:
    """Call the hooks for an error in a thread and await them, once per error."""
    if _errors.registrations and _is_first(error):
        await in_thread(copy_context().run, _errors.call, error, context)


def fire_in_background(error: BaseException, context: ErrorContext) -> None:
    """Queue the hooks for an error that is raised to no caller, once per error."""
    if _errors.registrations and _is_first(error):
        _background.put(lambda: _errors.call(error, context))


def warn_in_background(warning: GatewayWarning) -> None:
    """Queue the hooks for a warning."""
    if _warnings.registrations:
        _background.put(lambda: _warnings.call(warning))


def wind_down_in_background(run: WindDown) -> None:
    """Queue the hooks for a run that winds down."""
    if _wind_downs.registrations:
        _background.put(lambda: _wind_downs.call(run))


def wait(timeout_s: float) -> None:
    """Wait until the queued hooks have been called, ``timeout_s`` seconds at most."""
    _background.wait(timeout_s)


def _is_first(error: BaseException) -> bool:
    """Return whether an error is for the hooks and has not been passed to them; then mark it."""
    if not isinstance(error, GuardError) or error.__dict__.get(_FIRED):
        return False
    # On the error itself: it may pass several places that report errors on its way out.
    error.__dict__[_FIRED] = True
    return True


def _after_fork() -> None:
    global _background
    # The thread is gone, and another one may have held a lock at the moment of the fork.
    _background = _HookThread()
    _errors.lock = threading.Lock()
    _warnings.lock = threading.Lock()
    _wind_downs.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
