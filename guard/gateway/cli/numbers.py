"""Numbers on the command line."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

import click

from guard.core.wire import NANOUSD_PER_DOLLAR

_NANOUSD_MAX: Final = 10**18


class Finite(click.FloatRange):
    """A number in a range. ``nan`` is in every range of click's, and ``1e400`` is infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the number."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return found


def read_dollars(_context: click.Context, _option: click.Parameter, text: str) -> int:
    """Return an amount such as ``$2`` or ``0.50`` in nano-dollars; the callback of an option.

    Raises:
        BadParameter: it is no amount.
    """
    bare = text.strip().upper().removesuffix("USD").strip().removeprefix("$")
    try:
        nanousd = Decimal(bare) * NANOUSD_PER_DOLLAR
        if not nanousd.is_finite() or not 1 <= nanousd <= _NANOUSD_MAX:
            raise ValueError
    except (ArithmeticError, ValueError):
        raise click.BadParameter(
            f"{text!r} is no amount of dollars above zero; write '$2' or 0.50 (in single quotes, "
            "because the shell replaces $2)"
        ) from None
    return int(nanousd)
