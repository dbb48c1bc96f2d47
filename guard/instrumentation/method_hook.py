"""One hooked method: wrapped, found again below other tools' wrappers, put back.

Other tools patch the same methods: they wrap what is there, restore what they have saved, or load
the module anew. Whether guard's wrapper is still called is derived from what the class has now.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import Any, Final

_LOOKED_AT_MAX: Final = 64
"""How many functions are searched below a method; most have two or three."""


class MethodHook:
    """A method of a class, and guard's wrappers around it.

    Usually there is one wrapper. There are two when another tool has wrapped the method in a way
    that hides guard's: the method is wrapped again then, and the inner wrapper does nothing,
    because the outer one is sending the same request.

    Changed under the lock of :mod:`guard.instrumentation.patching`. Only :meth:`is_untouched` and
    :meth:`leads_to` are called without.

    Args:
        owner, name: those of the method.
        wrap: makes the wrapper around a function that takes the instance first.
    """

    __slots__ = ("_seen_as", "_top", "_wrap", "_wrapped", "name", "owner")

    def __init__(self, owner: type[Any], name: str, wrap: Callable[[Any], Any]) -> None:
        self.owner = owner
        self.name = name
        self._wrap = wrap
        # What each of guard's wrappers was put around, as it was in the class (perhaps a
        # descriptor). Weak: a wrapper that another tool has dropped is forgotten.
        self._wrapped: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        # What was in the class when guard's wrapper was last known to be called, perhaps another
        # tool's function; and the class that had the owner's name then. As long as both are the
        # same, no tool has patched anything, and the search in `leads_to` is spared.
        self._top: Any = None
        self._seen_as: Any = None

    def __str__(self) -> str:
        return f"{self.owner.__module__}.{self.owner.__qualname__}.{self.name}"

    def is_untouched(self) -> bool:
        """Return whether nothing has changed since the last look; cheap."""
        return self.owner.__dict__.get(self.name) is self._top and self._class() is self._seen_as

    def is_in_place(self) -> bool:
        """Return whether the method still leads to guard's wrapper, and remember what was seen."""
        self._seen_as = self._class()
        current = self.owner.__dict__.get(self.name)
        if current is None or (current is not self._top and not self.leads_to(current)):
            return False
        self._top = current
        return True

    def leads_to(self, function: Any) -> bool:
        """Return whether a function is guard's wrapper, or calls it as far as can be seen."""
        return any(each in self._wrapped for each in _within(function) if _is_function(each))

    def put(self) -> bool:
        """Wrap what is in the class now; False if there is nothing."""
        current = self.owner.__dict__.get(self.name)
        if current is None:
            return False
        wrapper = self._wrap(unbound(current))
        self._wrapped[wrapper] = current
        setattr(self.owner, self.name, wrapper)
        self._top = wrapper
        self._seen_as = self._class()
        return True

    def take_out(self) -> bool:
        """Put back what was wrapped; False if a wrapper stays below another tool's."""
        current = self.owner.__dict__.get(self.name)
        # Only from the top: what another tool has put around guard's wrapper is not removed.
        while _is_function(current) and current in self._wrapped:
            current = self._wrapped.pop(current)
            setattr(self.owner, self.name, current)
        self._top = current
        return not self.leads_to(current)

    def _class(self) -> Any:
        """Return the class that has the owner's name: another one if the module was loaded anew."""
        return getattr(sys.modules.get(self.owner.__module__), self.owner.__name__, None)


def unbound(method: Any) -> Any:
    """Return an attribute of a class as a function that takes the instance first.

    A descriptor is bound as Python does for ``instance.method``: those of wrapt need it.

    >>> class Greeting:
    ...     @classmethod
    ...     def words(cls): return cls.__name__
    >>> unbound(Greeting.__dict__["words"])(Greeting())
    'Greeting'
    """
    if _is_function(method):
        return method
    get = getattr(type(method), "__get__", None)

    def call(self: Any, *args: Any, **options: Any) -> Any:
        bound = method if get is None else get(method, self, type(self))
        return bound(*args, **options)

    return functools.update_wrapper(call, method)


def _within(function: Any) -> Iterator[Any]:
    """Yield a function and those that it holds: what it wraps, and what its code names.

    Breadth first, so that the nearest come first; by identity, because functions refer to each
    other in circles.
    """
    seen: set[int] = set()
    waiting = [function]
    while waiting and len(seen) < _LOOKED_AT_MAX:
        each = waiting.pop(0)
        if id(each) not in seen and callable(each) and not isinstance(each, type):
            seen.add(id(each))
            yield each
            waiting += _held_by(each)


def _held_by(function: Any) -> Iterator[Any]:
    for name in ("__wrapped__", "__func__", "func"):
        held = getattr(function, name, None)
        if held is not None:
            yield held
    if not _is_function(function):
        # An object that can be called. A copy, since other threads may use the object.
        yield from tuple(getattr(function, "__dict__", {}).values())
        return
    for cell in function.__closure__ or ():
        yield from _contents(cell)
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in function.__code__.co_names:
        held = function.__globals__.get(name)
        if held is not None:
            yield held


def _contents(cell: CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # nothing yet
        return


def _is_function(value: Any) -> bool:
    # Not `isinstance`: wrapt's proxies pretend to be functions.
    return type(value) is FunctionType
