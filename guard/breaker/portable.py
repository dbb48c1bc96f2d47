"""Exceptions that pickle and copy completely, so they survive leaving a process."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any, Self


class _Portable(BaseException):
    """Pickles and copies completely: attributes, notes and, if it survives pickling, the cause."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows in place of a traceback; IPython calls it, by this name."""
        return notebook_lines(self)

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        cause = self.__cause__
        if cause is not None:
            # Many exceptions can be pickled but not unpickled; one such cause would make the
            # whole error unreadable at its destination (a process pool hangs on that).
            with contextlib.suppress(Exception):
                pickle.loads(pickle.dumps(cause))  # noqa: S301  # its own output
                state["__cause__"] = cause
        return _rebuild, (type(self), self.args, state)

    def __copy__(self) -> Self:
        clone: Self = _rebuild(type(self), self.args, dict(self.__dict__))
        clone.__cause__ = self.__cause__
        clone.__context__ = self.__context__
        clone.__suppress_context__ = self.__suppress_context__
        clone.__traceback__ = self.__traceback__
        return clone


def notebook_lines(exc: BaseException) -> list[str]:
    """Return three lines: what happened, what to do, and where to read more."""
    code = str(getattr(exc, "error_code", ""))
    more = [f"guard explain {code}"] if code else []
    page = str(getattr(exc, "docs_url", ""))
    lines = (
        f"{type(exc).__name__}: {exc}",
        str(getattr(exc, "user_action", "")),
        " or ".join([*more, page] if page else more),
    )
    return [" ".join(line.split()) for line in lines if line]


def _rebuild(cls: type[Any], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    # Not by calling the class: the constructors take other arguments than `args`.
    exc: Any = cls.__new__(cls, *args)
    exc.args = args
    cause = state.pop("__cause__", None)
    if cause is not None:  # setting it, even to None, hides a later context
        exc.__cause__ = cause
    exc.__dict__.update(state)
    return exc
