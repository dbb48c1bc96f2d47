"""Runs the bodies of decorated functions inside an edge: one driver for each kind of function.

``@protect``, ``@guarded`` and the context managers' decorators all run their functions here. A
generator's body shares the context of the code that asks it for the next item. So each step of the
body runs inside the edge; at each ``yield`` the scope outside is restored, and the body's own is
set again for its next step.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType
from typing import Any, Final, TypeVar, cast

from guard.scope.scope import Scope, current_scope

logger = logging.getLogger("guard")

C = TypeVar("C", bound=Callable[..., Any])
F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")

INTERRUPTIBLE: Final[set[CodeType]] = set()
"""Code of the SDK in which an exception may be raised from outside; see :func:`interruptible`.

A kill raises nothing in any other code of the SDK: a lock or a counter could be left wrong."""


_NEVER: Final[Mapping[type, Callable[..., Any]]] = {}


def interruptible(function: C) -> C:
    """Register a function of the SDK that calls the user's and is written to be interrupted."""
    INTERRUPTIBLE.add(function.__code__)
    return function


class CallLifecycle:
    """What surrounds the body of one call, from its admission to its end.

    A driver admits the call, runs the body (of a generator: each step) between :meth:`enter` and
    :meth:`leave`, and ends with :meth:`finish`. This base class does nothing but set the scope.

    One thread or task at a time uses it. The steps of a generator may run in different ones.

    Attributes:
        scope: the scope of the body, or None to run it in its caller's. A generator's body may
            change it; the change lasts from one step to the next.
        body: the registered body, or step of a generator, that is running and that a kill can stop.
        called: the arguments of the function; unset until a driver sets them.
    """

    called: tuple[tuple[Any, ...], dict[str, Any]]

    __slots__ = ("_outside", "body", "called", "scope")

    def __init__(self, scope: Scope | None = None) -> None:
        self.scope = scope
        self.body: Any = None
        # The caller's scope while the body's is in place; None otherwise.
        self._outside: Scope | None = None

    def admit(self) -> None:
        """Decide whether the body may run; raises if it may not."""

    def admit_async(self) -> Awaitable[None] | None:
        """Like :meth:`admit`, without blocking the caller's loop; None when there is no wait."""
        self.admit()
        return None

    def resume(self) -> None:
        """Put the body's scope in place."""
        if self.scope is not None:
            self._outside = current_scope.get()
            current_scope.set(self.scope)

    def suspend(self) -> None:
        """Give the caller its scope back. Idempotent."""
        outside = self._outside
        if outside is not None:
            self.scope = current_scope.get()  # the body may have changed it
            self._outside = None
            current_scope.set(outside)

    def enter(self, *, in_task: bool) -> None:
        """Prepare for the body, or its next step, which the calling frame is about to call.

        Args:
            in_task: whether the body is awaited, so that a kill cancels the task; else a kill
                raises in the thread.
        """
        self.resume()

    def leave(
        self, exc: BaseException | None = None, *, yields: bool = False
    ) -> BaseException | None:
        """End the body, or its step; return the exception to raise, or None.

        An exception that was meant for the body can be raised in here: leave again with it.

        Args:
            exc: the exception of the body; None if it returned or yielded.
            yields: whether it has yielded, and will be resumed.
        """
        self.suspend()
        return exc

    def finish(self, exc: BaseException | None) -> None:
        """End the call. Idempotent.

        Args:
            exc: the error; None if it has returned, or a generator was abandoned.
        """

    def finish_async(self, exc: BaseException | None) -> Awaitable[None] | None:
        """Like :meth:`finish`, without blocking the caller's loop; None when there is no wait."""
        self.finish(exc)
        return None


MakeCall = Callable[[], CallLifecycle]


def run_inside(function: F, make: MakeCall) -> F:
    """Return a function of the same kind and signature whose body runs inside an edge.

    ``send``, ``throw``, ``close`` and their asynchronous forms reach a generator's body.

    Args:
        function: a function, coroutine function, generator function (also asynchronous),
            ``staticmethod``, ``classmethod``, partial or callable object.
        make: makes the edge of one call; of a generator, when iteration begins.
    """
    if isinstance(function, staticmethod | classmethod):
        return cast("F", type(function)(run_inside(function.__func__, make)))
    called = _called(function)
    wrap: Callable[[Any, MakeCall], Any]
    if inspect.isasyncgenfunction(called):
        wrap = _wrap_async_generator
    elif inspect.iscoroutinefunction(called):
        wrap = _wrap_coroutine
    elif inspect.isgeneratorfunction(called):
        wrap = _wrap_generator
    else:
        wrap = functools.partial(wrap_function, later=_LATER)
    wrapper = wrap(function, make)
    # `functools.wraps` copies what the object holds itself; `cache_clear`, say, is of its class.
    kind = function.__class__
    for name in set(dir(kind)) - set(dir(wrapper)):
        if not name.startswith("_") and callable(getattr(kind, name)):
            setattr(wrapper, name, getattr(function, name))
    return cast("F", wrapper)


def _called(function: Any) -> Any:
    """Return the function behind partials and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        return function.__call__
    return function


def wrap_function(
    function: Any, make: MakeCall, later: Mapping[type, Callable[..., Any]] = _NEVER
) -> Any:
    """Return a plain function that calls another one inside an edge; see :func:`run_inside`.

    A plain function that returns a coroutine or generator, such as the wrapper of another decorator
    around an ``async def``, has not run its body yet: that runs inside the same edge.

    A kill of a blocking body is an exception that is posted to its thread. Python raises it between
    two instructions of this frame or of what it calls, so any line here may raise one.
    """

    @interruptible
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        edge = make()
        edge.called = args, kwargs
        error: BaseException | None = None
        try:
            try:
                # In here too: what a refused admission raises goes through `leave` and `finish`.
                edge.admit()
                edge.enter(in_task=False)
                result = function(*args, **kwargs)
                rest = later.get(type(result))
                error = edge.leave(yields=rest is not None)
            except BaseException as exc:
                # An exception that was posted to the thread while the body ran can arrive as late
                # as at the first instruction of the next call, which is `leave`; so can Ctrl-C.
                # It arrives once, so the second `leave` is not interrupted by it.
                try:
                    error = edge.leave(exc)
                except BaseException as late:  # noqa: BLE001  # becomes the exception of the call
                    error = edge.leave(late)
                edge.finish(error)
                if error is None or error is exc:
                    raise
                raise error from error.__cause__
            if rest is not None and error is None:
                if inspect.isawaitable(result):  # also a generator that `types.coroutine` has made
                    rest = _wrap_coroutine
                return rest(lambda: result, lambda: edge, admitted=True)()
            # Outside of the inner `try`: an error of `finish` is not one of the body.
            edge.finish(error)
            if error is not None:  # raised by the edge, although the body has returned
                raise error from error.__cause__
            return result
        finally:
            del error  # its traceback refers to this frame

    return wrapper


def _wrap_coroutine(function: Any, make: MakeCall, *, admitted: bool = False) -> Any:
    @interruptible
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        edge = make()
        edge.called = args, kwargs
        error: BaseException | None = None
        try:
            try:
                if not admitted and (wait := edge.admit_async()) is not None:
                    await wait
                edge.enter(in_task=True)
                result = await function(*args, **kwargs)
                error = edge.leave()
            except BaseException as exc:
                # Once, unlike in `wrap_function`: a kill cancels a task on its loop, never in here.
                error = edge.leave(exc)
                if (wait := edge.finish_async(error)) is not None:
                    await wait
                if error is None or error is exc:
                    raise
                raise error from error.__cause__
            if (wait := edge.finish_async(error)) is not None:
                await wait
            if error is not None:
                raise error from error.__cause__
            return result
        finally:
            del error  # its traceback refers to this frame

    return wrapper


def _wrap_generator(function: Any, make: MakeCall, *, admitted: bool = False) -> Any:
    @interruptible
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        edge = make()
        edge.called = args, kwargs
        generator = function(*args, **kwargs)
        step: Callable[[Any], Any] = generator.send
        value: Any = None
        error: BaseException | None = None
        try:
            if not admitted:
                edge.admit()
            while True:
                # One step: until the body yields (`item`), returns (`StopIteration`) or raises.
                try:
                    edge.enter(in_task=False)
                    item = step(value)
                    error = edge.leave(yields=True)
                except BaseException as exc:
                    try:
                        error = edge.leave(exc)
                    except BaseException as late:  # noqa: BLE001  # as in `wrap_function`
                        error = edge.leave(late)
                    if isinstance(error, StopIteration):
                        edge.finish(None)
                        return error.value
                    _close(edge, generator)
                    edge.finish(None if isinstance(error, GeneratorExit) else error)
                    if error is None or error is exc:
                        raise
                    raise error from error.__cause__
                if error is not None:  # killed, although the step has returned an item
                    _close(edge, generator)
                    edge.finish(error)
                    raise error from error.__cause__
                try:
                    value, step = (yield item), generator.send
                except BaseException as exc:  # noqa: BLE001  # it belongs to the body
                    value, step = exc, generator.throw
        finally:
            del error, value  # their tracebacks refer to this frame

    return wrapper


def _wrap_async_generator(function: Any, make: MakeCall, *, admitted: bool = False) -> Any:
    @interruptible
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        edge = make()
        edge.called = args, kwargs
        generator = function(*args, **kwargs)
        step: Callable[[Any], Any] = generator.asend
        value: Any = None
        error: BaseException | None = None
        try:
            if not admitted and (wait := edge.admit_async()) is not None:
                await wait
            while True:
                try:
                    edge.enter(in_task=True)
                    item = await step(value)
                    error = edge.leave(yields=True)
                except BaseException as exc:
                    error = edge.leave(exc)
                    if isinstance(error, StopAsyncIteration):
                        if (wait := edge.finish_async(None)) is not None:
                            await wait
                        return
                    await _aclose(edge, generator)
                    if (
                        wait := edge.finish_async(
                            None if isinstance(error, GeneratorExit) else error
                        )
                    ) is not None:
                        await wait
                    if error is None or error is exc:
                        raise
                    raise error from error.__cause__
                if error is not None:  # killed, although the step has returned an item
                    await _aclose(edge, generator)
                    if (wait := edge.finish_async(error)) is not None:
                        await wait
                    raise error from error.__cause__
                try:
                    value, step = (yield item), generator.asend
                except BaseException as exc:  # noqa: BLE001  # it belongs to the body
                    value, step = exc, generator.athrow
        finally:
            del error, value  # their tracebacks refer to this frame

    return wrapper


_LATER: Final[Mapping[type, Callable[..., Any]]] = {
    CoroutineType: _wrap_coroutine,
    GeneratorType: _wrap_generator,
    AsyncGeneratorType: _wrap_async_generator,
}


def _close(edge: CallLifecycle, generator: Generator[Any, Any, Any]) -> None:
    """Run the cleanup of a generator's body, in its scope; its errors are logged.

    The call raises the reason for its end, which an error of the cleanup must not replace.
    """
    edge.resume()
    try:
        generator.close()
    except Exception:
        logger.debug("a decorated generator could not be closed", exc_info=True)
    finally:
        edge.suspend()


async def _aclose(edge: CallLifecycle, generator: AsyncGenerator[Any, Any]) -> None:
    """Like :func:`_close`."""
    edge.resume()
    try:
        await generator.aclose()
    except Exception:
        logger.debug("a decorated generator could not be closed", exc_info=True)
    finally:
        edge.suspend()
