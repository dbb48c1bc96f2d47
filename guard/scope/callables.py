"""Checks what a decorator can run inside an edge: functions and callable objects only."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final


@contextlib.contextmanager
def _manager() -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def _async_manager() -> AsyncIterator[None]:
    yield


# By code: what `contextlib` returns is a plain function, but all of them share one code object.
_MANAGERS: Final[dict[object, str]] = {
    _manager.__code__: "contextmanager",
    _async_manager.__code__: "asynccontextmanager",
}
"""Code of the functions that these decorators return. Such a function only makes a context manager,
whose body runs later, outside of the edge."""

_DESCRIPTORS: Final = (property, functools.cached_property, functools.singledispatchmethod)


def require_callable(function: Any, decorator: str) -> None:
    """Raise for a function that a decorator could not guard, with advice what to decorate.

    Args:
        function: the decorated object.
        decorator: its name, for the message.

    Raises:
        TypeError: calls of it cannot be guarded.
    """
    inner = function
    while isinstance(inner, functools.partial | staticmethod | classmethod):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    kind = type(inner).__name__
    manager = _MANAGERS.get(getattr(inner, "__code__", None))
    if inspect.isclass(inner):
        raise TypeError(
            f"{decorator} cannot guard the class {inner.__name__}: decorate its methods that do "
            "the work, such as __call__ or run"
        )
    if manager is not None or isinstance(inner, _DESCRIPTORS):
        raise TypeError(f"{decorator} goes below @{manager or kind}, on the function itself")
    if isinstance(inner, functools.partialmethod):
        raise TypeError(f"{decorator} goes on the function inside the partialmethod")
    if inspect.isawaitable(inner) or inspect.isgenerator(inner) or inspect.isasyncgen(inner):
        raise TypeError(f"{decorator} takes the function itself, not a call of it ({kind})")
    if not inspect.isroutine(inner) and hasattr(inner, "__wrapped__") and hasattr(inner, "delay"):
        raise TypeError(
            f"{decorator} goes below the decorator that made the task {inner.__name__}, on the "
            "function itself: workers run that one"
        )
    if not callable(inner):
        raise TypeError(f"{decorator} takes a callable, not {kind}")
