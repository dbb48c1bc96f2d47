"""``@guarded`` and ``handle``: a GuardError becomes a message on stderr and an exit code."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from guard.breaker.exceptions import GuardError
from guard.breaker.refusals import unwrap
from guard.hooks import ErrorContext, fire
from guard.last_words import end_in_two_lines, last_words, note_chain
from guard.messages import format_user_message, print_message
from guard.runtime.active import active_account
from guard.scope.callables import require_callable
from guard.scope.scope import current_scope
from guard.scope.wrapping import CallLifecycle, run_inside

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")


class handle:  # noqa: N801  # used like a function: `with guard.handle():`
    """Turn a GuardError into its user message on standard error and exit.

    So does an exception group of nothing else. ``WorkflowKilledInterrupt`` passes unchanged.

    Args:
        exit_code: code of the ``SystemExit``.

    Raises:
        SystemExit: a GuardError was raised inside.

    Example:
        >>> with handle(exit_code=2):
        ...     pass
    """

    def __init__(self, *, exit_code: int = 1) -> None:
        self._exit_code = exit_code

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        end = _exit_of(exc, self._exit_code)
        if end is not None:
            raise end

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, exc, traceback)


def _exit_of(exc: BaseException | None, exit_code: int) -> SystemExit | None:
    """Print the user message of a GuardError and return the exit that it becomes."""
    error = None if exc is None else _guard_error_in(exc)
    if error is None:
        return None
    scope = current_scope.get()
    account = active_account(scope)
    if account is None:
        fire(error, ErrorContext("call"))
    else:
        account.reports.error(error, "call", scope)
    note_chain(error if exc is None else exc)
    print_message(format_user_message(error))
    end = SystemExit(exit_code)
    end.__cause__ = exc  # for hooks and debuggers; the interpreter prints nothing of it
    return end


def _guard_error_in(exc: BaseException) -> GuardError | None:
    """Return the GuardError that an exception is, or that a group of nothing else begins with."""
    if isinstance(exc, BaseExceptionGroup):
        errors = [_guard_error_in(inner) for inner in exc.exceptions]
        return errors[0] if all(errors) else None
    error = unwrap(exc)
    return error if isinstance(error, GuardError) else None


class _HandledCall(CallLifecycle):
    """The edge of one call of a guarded function."""

    def leave(
        self, exc: BaseException | None = None, *, yields: bool = False
    ) -> BaseException | None:
        """Return the ``SystemExit`` of a GuardError, or what the body raised.

        A kill that nothing around catches ends the program without a traceback.
        """
        if exc is not None and last_words(exc) is not None:
            end_in_two_lines()
        return _exit_of(exc, 1) or exc


def guarded(function: F) -> F:
    """Print the user message of a GuardError raised inside and exit with code 1.

    Example:
        >>> @guarded
        ... def main() -> None: ...
    """
    require_callable(function, "@guarded")
    return run_inside(function, _HandledCall)
