"""Numbers on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import click

from guard.core.written_numbers import read_count

_TIMES_MAX: Final = 100_000
_EXAMPLES: Final = (10, 1, 100, 0.5, 0)


def read_by(read: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the callback of an option whose text is read by a function that raises ValueError."""

    def callback(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
        if text is None:
            return None
        try:
            return read(text)
        except ValueError as exc:
            raise click.BadParameter(str(exc)) from None

    return callback


class Count(click.ParamType[Any]):
    """A whole number from 0 on, which may be written short: ``20k``, ``2M``."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the number."""
        if isinstance(value, int):
            return value
        try:
            return read_count(str(value))
        except ValueError as exc:
            self.fail(f"{exc}.", param, ctx)


class Repeated(click.ParamType[Any]):
    """A glob, and how often what matches it may be repeated: ``search=5``."""

    name = "glob=times"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read both."""
        if isinstance(value, tuple):
            return value
        glob, _, times = str(value).rpartition("=")
        try:
            found = read_count(times)
        except ValueError:
            found = 0
        if not glob or not 1 <= found <= _TIMES_MAX:
            self.fail(f"{value!r} is no glob and a number above zero; write search=5.", param, ctx)
        return glob, found


class Finite(click.FloatRange):
    """A number in a range. ``nan`` is in every range of click's, and ``1e400`` is infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the number."""
        try:
            found = float(value)
            if not math.isfinite(found) or not _is_within(self, found):
                raise ValueError
        except (TypeError, ValueError):
            self.fail(_wanted(self, value, "a number"), param, ctx)
        return found


class Whole(click.IntRange):
    """A whole number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the number."""
        try:
            found = int(value)
            if not _is_within(self, found):
                raise ValueError
        except (TypeError, ValueError):
            self.fail(_wanted(self, value, "a whole number"), param, ctx)
        return found


def _is_within(kind: click.FloatRange | click.IntRange, value: float) -> bool:
    return (kind.min is None or value >= kind.min) and (kind.max is None or value <= kind.max)


def _wanted(kind: click.FloatRange | click.IntRange, value: Any, noun: str) -> str:
    """Return what to type instead."""
    low, high = kind.min, kind.max
    if low is not None and high is not None:
        which = f"{noun} from {low:g} to {high:.15g}"
    elif low is not None:
        which = f"{noun}, {low:g} or more"
    else:
        which = noun
    example = next((each for each in _EXAMPLES if _is_within(kind, each)), low)
    shown = value if len(str(value)) <= 40 else f"{str(value)[:40]}..."
    return f"{shown!r} is not {which}; for example {example}."
