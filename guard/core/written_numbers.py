"""Numbers as people write them: ``2M``, ``$2``; pure, since a guarded program loads it too."""

from __future__ import annotations

import contextlib
import re
from decimal import Decimal
from typing import Final

from guard.core.wire import NANOUSD_PER_DOLLAR

_COUNT_MAX: Final = 10**15
_NANOUSD_MAX: Final = 10**18


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
        if found == int(found) and found <= _COUNT_MAX:
            return int(found)
    raise ValueError(f"{text!r} is no whole number; write 20000, 20k or 2M")


def read_amounts(text: str) -> dict[str, int]:
    """Return what an amount may be, by its unit: ``usd`` (in nano-dollars), ``tokens``, ``calls``.

    Raises:
        ValueError: it is none above zero; the text says what is.

    >>> read_amounts("$2"), read_amounts("500k tokens"), read_amounts("1 call")
    ({'usd': 2000000000}, {'tokens': 500000}, {'calls': 1})
    >>> read_amounts("10")
    {'usd': 10000000000, 'tokens': 10, 'calls': 10}
    """
    found: dict[str, int] = {}
    with contextlib.suppress(ValueError):
        found["usd"] = read_dollars(text)
    for unit in ("tokens", "calls"):
        with contextlib.suppress(ValueError):
            count = read_count(re.sub(rf"(?<=[\d\skmb]){unit[:-1]}s?$", "", text.strip().lower()))
            found |= {unit: count} if count else {}
    if not found:
        raise ValueError(
            f"{text!r} is no amount above zero; write '$2' or 0.50 (in single quotes, because the "
            "shell replaces $2), 500k for tokens, or 10 for calls"
        )
    return found


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
