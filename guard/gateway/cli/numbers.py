"""Numbers on the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import click

from guard.core.wire import NANOUSD_PER_DOLLAR

_EXAMPLES: Final = (10, 1, 100, 0.5, 0)
_NANOUSD_MAX: Final = 10**18
COUNT_MAX: Final = 10**15


def read_count(text: str) -> int:
    """Return a number that may be written short.

    Raises:
        ValueError: it is none; the text says what is.

    >>> read_count("2M"), read_count("20k"), read_count("1_500"), read_count("1.5k")
    (2000000, 20000, 1500, 1500)
    """
    match = re.fullmatch(r"\s*(\d[\d_,]*(?:\.\d+)?)\s*([kmb]?)\s*", text.lower())
    if match is not None:
        times = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}[match[2]]
        found = Decimal(re.sub("[_,]", "", match[1])) * times
        if found == int(found) and found <= COUNT_MAX:
            return int(found)
    raise ValueError(f"{text!r} is no whole number; write 20000, 20k or 2M")


def read_dollars(text: str, option: str = "") -> int:
    """Return an amount such as ``$2`` or ``0.50`` in nano-dollars.

    Args:
        text: the amount.
        option: that takes it, for the words of the error.

    Raises:
        ValueError: it is no amount; the text says what is.

    >>> read_dollars("$2"), read_dollars("0.50"), read_dollars("2 usd")
    (2000000000, 500000000, 2000000000)
    """
    bare = text.strip().upper().removesuffix("USD").strip().removeprefix("$")
    try:
        nanousd = Decimal(bare) * NANOUSD_PER_DOLLAR
        if not nanousd.is_finite() or not 1 <= nanousd <= _NANOUSD_MAX:
            raise ValueError
    except (ArithmeticError, ValueError):
        typed = f"{option} " if option else ""
        raise ValueError(
            f"{text!r} is no amount of dollars above zero; write {typed}'$2' or {typed}0.50 "
            "(in single quotes, because the shell replaces $2)"
        ) from None
    return int(nanousd)


def read_by(read: Callable[[str], Any]) -> Callable[..., Any]:
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
