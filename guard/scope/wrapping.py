"""Decorates functions of every kind so that their bodies run inside a context manager.

Of a generator, each step of the body runs inside and what it yields is outside: its body shares the
context of whoever asks it for the next item. What a decorator sets for the body has to be taken
back at each ``yield``, or the consumer would run inside it too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, cast

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")


class Steps(Protocol):
    """What surrounds the steps of one iteration."""

    def step(self) -> AbstractContextManager[None]:
        """Surround one step of the body."""

    def ended(self, exc: BaseException | None) -> None:
        """The iteration is over: at its end, abandoned (both None), or with an error."""


def surrounded(
    function: F,
    call: Callable[[], AbstractContextManager[object]],
    begin: Callable[[], Steps],
) -> F:
    """Return a function of the same kind whose body runs inside a context manager.

    ``send``, ``throw``, ``close`` and their asynchronous forms reach a generator's body.

    Args:
        function: a function, coroutine function, generator function (also asynchronous),
            ``staticmethod`` or ``classmethod``.
        call: makes the context manager of one call.
        begin: makes what surrounds the steps of one iteration, when it begins.
    """
    if isinstance(function, staticmethod | classmethod):
        return cast("F", type(function)(surrounded(function.__func__, call, begin)))
    if inspect.isasyncgenfunction(function):
        return cast("F", _asynchronous(function, begin))
    if inspect.isgeneratorfunction(function):
        return cast("F", _synchronous(function, begin))
    called: Any = function
    if inspect.iscoroutinefunction(function):

        @functools.wraps(called)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with call():
                return await called(*args, **kwargs)

        return cast("F", coroutine)

    @functools.wraps(called)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with call():
            return called(*args, **kwargs)

    return cast("F", plain)


def _synchronous(function: Callable[..., Any], begin: Callable[[], Steps]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        steps = begin()
        generator = function(*args, **kwargs)
        advance: Callable[[Any], Any] = generator.send
        value: Any = None
        while True:
            try:
                with steps.step():
                    item = advance(value)
            except StopIteration as end:
                steps.ended(None)
                return end.value
            except BaseException as exc:
                steps.ended(None if isinstance(exc, GeneratorExit) else exc)
                raise
            try:
                value, advance = (yield item), generator.send
            except BaseException as exc:  # noqa: BLE001  # it belongs to the body
                value, advance = exc, generator.throw

    return wrapper


def _asynchronous(function: Callable[..., Any], begin: Callable[[], Steps]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        steps = begin()
        generator = function(*args, **kwargs)
        advance: Callable[[Any], Any] = generator.asend
        value: Any = None
        while True:
            try:
                with steps.step():
                    item = await advance(value)
            except StopAsyncIteration:
                steps.ended(None)
                return
            except BaseException as exc:
                steps.ended(None if isinstance(exc, GeneratorExit) else exc)
                raise
            try:
                value, advance = (yield item), generator.asend
            except BaseException as exc:  # noqa: BLE001  # it belongs to the body
                value, advance = exc, generator.athrow

    return wrapper
