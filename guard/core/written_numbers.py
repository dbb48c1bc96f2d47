"""Numbers as people write them: ``2M``, ``$2``, ``24h``; pure, as guarded programs load it too."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from decimal import Decimal
from typing import Final

from guard.core.visible import quoted
from guard.core.wire import NANOUSD_PER_DOLLAR

_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_COUNT_MAX: Final = 10**15
_NANOUSD_MAX: Final = 10**18
_UNITS_MS: Final = {
    "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000,
}  # fmt: skip
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", re.IGNORECASE)
_MS_MAX: Final = 10**15


def read_count(text: str) -> int:
    """Return a number that may be written short.

    Raises:
        ValueError: it is none; the text says what is.

    >>> read_count("2M"), read_count("20k"), read_count("1_500"), read_count("1.5k")
    (2000000, 20000, 1500, 1500)
    """
    bare = _THOUSANDS.sub("", text.lower())
    match = re.fullmatch(r"\s*(\d[\d_]*(?:\.\d+)?)\s*([kmb]?)\s*", bare)
    if match is not None:
        times = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}[match[2]]
        found = Decimal(match[1].replace("_", "")) * times
        if found == int(found) and found <= _COUNT_MAX:
            return int(found)
    raise ValueError(f"{quoted(text)} is no whole number; write 20000, 20k or 2M")


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
            f"{quoted(text)} is no amount above zero; write '$2' or 0.50 (in single quotes, "
            "because the shell replaces $2), 500k for tokens, or 10 for calls"
        )
    return found


def read_dollars(text: str, option: str = "", *, or_nothing: bool = False) -> int:
    """Return an amount such as ``$2`` or ``0.50`` in nano-dollars, exactly.

    Args:
        text: the amount.
        option: that takes it, for the words of the error.
        or_nothing: whether ``0`` is an amount too.

    Raises:
        ValueError: it is no amount; the text says what is.

    A point comes first where a shell has replaced the ``$2`` of ``$2.50``: that is no amount.

    >>> read_dollars("$2"), read_dollars("0.50"), read_dollars("2 usd"), read_dollars("$1,500")
    (2000000000, 500000000, 2000000000, 1500000000000)
    """
    bare = text.strip().upper().removesuffix("USD").strip().removeprefix("$")
    try:
        nanousd = Decimal(_THOUSANDS.sub("", bare)) * NANOUSD_PER_DOLLAR
        least = 0 if or_nothing else 1
        if (
            re.fullmatch(r"\.\d+", text.strip())
            or not nanousd.is_finite()
            or not least <= nanousd <= _NANOUSD_MAX
        ):
            raise ValueError
        if nanousd != int(nanousd):
            raise ValueError
    except (ArithmeticError, ValueError):
        typed = f"{option} " if option else ""
        raise ValueError(
            f"{quoted(text)} is no amount of dollars{'' if or_nothing else ' above zero'}; write "
            f"{typed}'$2' or {typed}0.50 (use single quotes, or the shell expands $2)"
        ) from None
    return int(nanousd)


def read_duration(text: str) -> int:
    """Return a length of time in milliseconds.

    Raises:
        ValueError: it is none; the text says what is.

    >>> read_duration("24h"), read_duration("1.5 s"), read_duration("250ms"), read_duration("0")
    (86400000, 1500, 250, 0)
    """
    match = _TIME.fullmatch(text.strip())
    if match is not None:
        found = Decimal(match[1]) * _UNITS_MS[match[2].lower()]
        if found == int(found) and found <= _MS_MAX:
            return int(found)
    elif text.strip() == "0":
        return 0
    raise ValueError(f"{quoted(text)} is no length of time; write 30s, 5m, 24h or 7d")


def read_since(text: str, now_ms: int, zone: dt.tzinfo = dt.UTC) -> int:
    """Return the moment from which on something is wanted, in Unix milliseconds.

    Args:
        text: how long ago (``24h``), or a date or time.
        now_ms: the present.
        zone: the zone of a date or time that does not name its own.

    Raises:
        ValueError: it is neither; the text says what is.

    >>> read_since("24h", 86_400_000), read_since("2026-01-01", 0)
    (0, 1767225600000)
    """
    try:
        return max(0, now_ms - read_duration(text))
    except ValueError:
        pass
    try:
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{quoted(text)} is no time; write 24h or 7d (ago), 2026-01-31 or 2026-01-31T08:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return max(0, round(moment.timestamp() * 1000))


def written_duration(milliseconds: int) -> str:
    """Return a length of time as :func:`read_duration` takes it.

    >>> written_duration(15_000), written_duration(86_400_000), written_duration(1500)
    ('15s', '24h', '1500ms')
    """
    for unit in ("h", "m", "s"):
        if milliseconds and milliseconds % _UNITS_MS[unit] == 0:
            return f"{milliseconds // _UNITS_MS[unit]}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0"
