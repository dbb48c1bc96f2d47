"""``@protect`` and ``@sensitive`` (spec part 4)."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Final, TypeVar, cast

from guard.breaker.exceptions import GuardError, WorkflowKilledInterrupt
from guard.facade import ready_runtime
from guard.protected_call import ProtectedCall, Target

logger = logging.getLogger("guard")

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")

_SENSITIVE: Final = "__guard_sensitive__"


def protect(function: F) -> F:
    """Check every call of a function at the gate before its body runs.

    Each call is checked against kill, pause, budget and tool policy; an operator's kill also stops
    a body that is running. Works on functions, coroutine functions, generators and asynchronous
    generators (the gate is asked when iteration begins), methods, classmethods, staticmethods,
    partials and callables; the signature and the type stay. Before ``guard.init()`` the runtime is
    made from the environment.

    Raises (from the wrapped call):
        GuardBudgetError: the budget is exhausted.
        GuardToolBlockedError: the function, or a tool of the call context, is blocked.
        WorkflowPausedException: the workflow is paused.
        WorkflowKilledInterrupt: the workflow is killed, before or in mid-call.
        GuardTransportError: the gateway could not be asked (unless ``GUARD_FALLBACK_MODE=open``).

    Example:
        >>> @protect
        ... async def answer(question: str) -> str: ...
    """
    if isinstance(function, staticmethod | classmethod):
        return cast("F", type(function)(protect(function.__func__)))
    if not callable(function):
        raise TypeError(f"@protect takes a callable, not {type(function).__name__}")
    called = _called(function)
    wrapper: Any
    if inspect.isasyncgenfunction(called):
        wrapper = _protect_async_generator(function)
    elif inspect.iscoroutinefunction(called):
        wrapper = _protect_coroutine(function)
    elif inspect.isgeneratorfunction(called):
        wrapper = _protect_generator(function)
    else:
        wrapper = _protect_function(function)
    return cast("F", wrapper)


def sensitive(function: F) -> F:
    """Mark a function as a sensitive tool; stands on either side of ``@protect``.

    Its calls always get a fresh decision of the gateway. When the gateway cannot be asked the call
    is refused, whatever the fallback mode.

    Example:
        >>> @sensitive
        ... @protect
        ... def delete_account(user: str) -> None: ...
    """
    if isinstance(function, staticmethod | classmethod):
        return cast("F", type(function)(sensitive(function.__func__)))
    if not callable(function):
        raise TypeError(f"@sensitive takes a callable, not {type(function).__name__}")
    marked: Any = function
    while marked is not None:
        # Another decorator (``@guarded``, ``@workflow``) may stand between this one and
        # ``@protect``; the mark has to reach the one that asks the gate.
        setattr(marked, _SENSITIVE, True)
        marked = getattr(marked, "__wrapped__", None)
    return function


def _called(function: Any) -> Any:
    """Return the function behind partials and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        return function.__call__
    return function


def _begin(function: Any, wrapper: Any) -> ProtectedCall:
    named = function
    while isinstance(named, functools.partial):
        named = named.func
    name = getattr(named, "__name__", type(named).__name__)
    qualified = getattr(named, "__qualname__", name)
    module = getattr(named, "__module__", None)
    target = Target(
        function=f"{module}.{qualified}" if module else qualified,
        tool_name=name,
        sensitive=getattr(wrapper, _SENSITIVE, False),
    )
    return ProtectedCall(ready_runtime(), target)


def _gate(call: ProtectedCall) -> None:
    try:
        call.admitted(ready_runtime().gate.ask(call.request))
    except (GuardError, WorkflowKilledInterrupt) as exc:
        call.refused(exc)
        if not call.falls_back(exc):
            raise


async def _gate_async(call: ProtectedCall) -> None:
    try:
        call.admitted(await ready_runtime().gate.ask_async(call.request))
    except (GuardError, WorkflowKilledInterrupt) as exc:
        call.refused(exc)
        if not call.falls_back(exc):
            raise


# An interrupt that is posted while the body runs can be raised as late as at the first instruction
# of what is called next, which is `settle` or `leave`: hence their second call, with what arrived.


def _protect_function(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = _begin(function, wrapper)
        error: BaseException | None
        try:
            _gate(call)
            call.enter(in_task=False)
            result = function(*args, **kwargs)
            error = call.settle()
        except BaseException as exc:
            try:
                error = call.settle(exc)
            except WorkflowKilledInterrupt as late:
                error = call.settle(late)
            if error is exc or error is None:
                raise
            raise error from None
        if error is not None:
            raise error
        return result

    return wrapper


def _protect_coroutine(function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = _begin(function, wrapper)
        error: BaseException | None
        try:
            await _gate_async(call)
            call.enter(in_task=True)
            result = await function(*args, **kwargs)
            error = call.settle()
        except BaseException as exc:
            error = call.settle(exc)
            if error is exc or error is None:
                raise
            raise error from None
        if error is not None:
            raise error
        return result

    return wrapper


def _protect_generator(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        call = _begin(function, wrapper)
        generator = function(*args, **kwargs)
        step: Callable[[Any], Any] = generator.send
        value: Any = None
        error: BaseException | None
        _gate(call)
        while True:
            try:
                call.enter(in_task=False)
                item = step(value)
                error = call.leave()
            except BaseException as exc:
                try:
                    error = call.leave(exc)
                except WorkflowKilledInterrupt as late:
                    error = call.leave(late)
                if isinstance(error, StopIteration):
                    call.finish(None)
                    return error.value
                _close(generator)
                call.finish(None if isinstance(error, GeneratorExit) else error)
                if error is exc or error is None:
                    raise
                raise error from None
            if error is not None:
                _close(generator)
                call.finish(error)
                raise error
            try:
                value, step = (yield item), generator.send
            except BaseException as exc:  # noqa: BLE001  # it belongs to the inner generator
                value, step = exc, generator.throw

    return wrapper


def _close(generator: Generator[Any, Any, Any]) -> None:
    """Run what the generator has left to clean up; why the call ends is what is raised."""
    try:
        generator.close()
    except Exception:
        logger.debug("a protected generator could not be closed", exc_info=True)


def _protect_async_generator(function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        call = _begin(function, wrapper)
        generator = function(*args, **kwargs)
        step: Callable[[Any], Any] = generator.asend
        value: Any = None
        error: BaseException | None
        await _gate_async(call)
        while True:
            try:
                call.enter(in_task=True)
                item = await step(value)
                error = call.leave()
            except BaseException as exc:
                error = call.leave(exc)
                if isinstance(error, StopAsyncIteration):
                    call.finish(None)
                    return
                await _aclose(generator)
                call.finish(None if isinstance(error, GeneratorExit) else error)
                if error is exc or error is None:
                    raise
                raise error from None
            if error is not None:
                await _aclose(generator)
                call.finish(error)
                raise error
            try:
                value, step = (yield item), generator.asend
            except BaseException as exc:  # noqa: BLE001  # it belongs to the inner generator
                value, step = exc, generator.athrow

    return wrapper


async def _aclose(generator: AsyncGenerator[Any, Any]) -> None:
    """Run what the generator has left to clean up; why the call ends is what is raised."""
    try:
        await generator.aclose()
    except Exception:
        logger.debug("a protected generator could not be closed", exc_info=True)
