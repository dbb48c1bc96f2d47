"""Decorates generator functions: each step of the body runs inside, what it yields is outside.

A generator's body shares the context of whoever asks it for the next item. What a decorator sets
for the body has to be taken back at each ``yield``, or the consumer would run inside it too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Steps(Protocol):
    """What surrounds the steps of one iteration."""

    def step(self) -> AbstractContextManager[None]:
        """Surround one step of the body."""

    def ended(self, exc: BaseException | None) -> None:
        """The iteration is over: at its end, abandoned (both None), or with an error."""


def stepped(function: Callable[..., Any], begin: Callable[[], Steps]) -> Callable[..., Any] | None:
    """Return a generator function, or None when ``function`` is none.

    ``send``, ``throw``, ``close`` and their asynchronous forms reach the body.

    Args:
        function: a generator function or an asynchronous one.
        begin: called when iteration begins.
    """
    if inspect.isasyncgenfunction(function):
        return _asynchronous(function, begin)
    if inspect.isgeneratorfunction(function):
        return _synchronous(function, begin)
    return None


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
