"""``@protect`` and ``@sensitive`` (spec part 4)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar, cast, overload

from guard.protected_call import ProtectedCall, Target
from guard.scope.callables import require_callable
from guard.scope.wrapping import run_inside

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")

_SENSITIVE: Final = "__guard_sensitive__"
_TARGET: Final = "__guard_target__"


@overload
def protect(function: F) -> F: ...
@overload
def protect(function: None = None) -> Callable[[F], F]: ...
def protect(function: Any = None) -> Any:
    """Check every call of a function at the gate before its body runs.

    Each call is checked against kill, pause, budget and tool policy; an operator's kill also stops
    a running body. Works on functions, coroutine functions, generators and asynchronous generators
    (the gate is asked when iteration begins), methods, classmethods, staticmethods, partials and
    callables, and keeps their signature, type and methods; what a plain function returns as a
    coroutine or generator is part of its call. Before ``guard.init()`` the runtime is made from
    the environment. Coroutines have to run in asyncio tasks, not under trio. ``@protect()`` is the
    same as ``@protect``.

    Raises:
        TypeError: calls of the decorated object cannot be guarded: a class, a property, a context
            manager, a coroutine, a task of Celery. The message says what to decorate instead.

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
        return type(function)(protect(function.__func__))
    if function is None:
        return protect
    require_callable(function, "@protect")
    target = Target.of(function, sensitive=getattr(function, _SENSITIVE, False))
    wrapper = run_inside(function, functools.partial(ProtectedCall, target))
    setattr(wrapper, _TARGET, target)
    return wrapper


def sensitive(function: F) -> F:
    """Mark a function as a sensitive tool; goes on either side of ``@protect``.

    Each of its calls gets a fresh decision from the gateway. When the gateway cannot be asked, the
    call is refused, whatever the fallback mode.

    Raises:
        TypeError: as :func:`protect`.

    Example:
        >>> @sensitive
        ... @protect
        ... def delete_account(user: str) -> None: ...
    """
    if isinstance(function, staticmethod | classmethod):
        return cast("F", type(function)(sensitive(function.__func__)))
    require_callable(function, "@sensitive")
    # Below is a protected function: its target is shared by all wrappers around it, so the mark is
    # effective through every reference to it.
    targets = list(_targets(function))
    for target in targets:
        target.sensitive = True
    if targets:
        return function
    try:
        setattr(function, _SENSITIVE, True)
        return function
    except (AttributeError, TypeError):  # a bound method, a builtin: it takes no attributes
        marked: Any = functools.partial(function)
        functools.update_wrapper(marked, function)
        setattr(marked, _SENSITIVE, True)
        return cast("F", marked)


def _targets(function: Any) -> Iterator[Target]:
    """Yield the targets of ``@protect`` in a function, also below other decorators."""
    while function is not None:
        target = getattr(function, "__dict__", {}).get(_TARGET)
        if target is not None:
            yield target
        function = getattr(function, "__wrapped__", None)
