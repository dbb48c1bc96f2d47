"""Delivery on platforms that freeze the process between two calls, such as AWS Lambda.

A frozen background thread delivers nothing, and a process that is discarded while it is frozen runs
no exit handler. So everything is delivered before a handler returns.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

from guard.breaker.exceptions import BreakerTransportError
from guard.runtime import active_runtime
from guard.runtime.runtime import GuardRuntime

F = TypeVar("F", bound=Callable[..., Any])
logger = logging.getLogger("guard.events")


@overload
def flush_on_return(function: F) -> F: ...
@overload
def flush_on_return(*, timeout: float = 2.0) -> Callable[[F], F]: ...


def flush_on_return(function: F | None = None, *, timeout: float = 2.0) -> F | Callable[[F], F]:
    """Deliver buffered events before a function or coroutine function returns or raises.

    A failed delivery does not affect the call: the events stay buffered (or go to the spool) and
    the next call tries again.

    Args:
        function: the handler.
        timeout: for how long the delivery may add to a call while no batch is accepted, in
            seconds.

    Example:
        >>> @flush_on_return
        ... def handler(event, context): ...
    """
    if function is None:
        return cast("Callable[[F], F]", functools.partial(flush_on_return, timeout=timeout))
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            finally:
                runtime = _with_events()
                if runtime is not None:
                    # Awaited here: the platform may freeze the process as soon as this returns.
                    await asyncio.to_thread(_deliver, runtime, timeout)

        return cast("F", coroutine)

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        finally:
            runtime = _with_events()
            if runtime is not None:
                _deliver(runtime, timeout)

    return cast("F", plain)


def _with_events() -> GuardRuntime | None:
    runtime = active_runtime()
    if runtime is None or runtime.is_shut_down or not runtime.events.waiting:
        return None
    return runtime


def _deliver(runtime: GuardRuntime, timeout: float) -> None:
    try:
        runtime.flush(timeout)
    except (BreakerTransportError, RuntimeError) as exc:
        logger.warning("before the freeze: %s", exc)
