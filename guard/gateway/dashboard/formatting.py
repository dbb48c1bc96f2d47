"""Numbers and times formatted for people. Pure."""

from __future__ import annotations

import datetime as dt
import json
import re
import unicodedata
from typing import Any, Final

from guard.core.wire import NANOUSD_PER_DOLLAR

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
NOTHING: Final = "–"
_BLANKS: Final = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and symbols that show nothing."""

_GAP: Final = re.compile(r"\n(?:[^\S\n]*\n)+")
_LINE_LENGTH: Final = 70


def money(nanousd: int | None) -> str:
    """Return nano-dollars as dollars: cents for large sums, three digits for small ones.

    >>> money(1_234_567_890_000), money(2_000_000), money(0)
    ('$1,234.57', '$0.002', '$0.00')
    """
    if nanousd is None:
        return NOTHING
    sign, dollars = ("-" if nanousd < 0 else ""), abs(nanousd) / NANOUSD_PER_DOLLAR
    if dollars == 0 or dollars >= 0.1:
        return f"{sign}${dollars:,.2f}"
    digits = f"{dollars:.9f}"
    first = next((at for at, digit in enumerate(digits[2:], 2) if digit != "0"), len(digits))
    return f"{sign}${digits[: first + 3].rstrip('0')}"


def amount(number: int | None, unit: str) -> str:
    """Return an amount of a budget: dollars, or so many tokens or calls.

    >>> amount(2_000_000, "usd"), amount(2_000_000, "tokens")
    ('$0.002', '2,000,000')
    """
    return money(number) if unit == "usd" else count(number)


def in_doubt(number: int, unit: str = "usd") -> str:
    """Return what to say beside a sum of which so much is uncertain; nothing for nothing.

    >>> in_doubt(400_000_000), in_doubt(0), in_doubt(1500, "tokens")
    ('of it up to $0.40 uncertain', '', 'of it up to 1,500 uncertain')
    """
    return f"of it up to {amount(number, unit)} uncertain" if number else ""


def dollars_input(nanousd: int) -> str:
    """Return nano-dollars as the value of a form field, without loss.

    >>> dollars_input(5_000_000_000), dollars_input(1)
    ('5', '0.000000001')
    """
    whole, rest = divmod(nanousd, NANOUSD_PER_DOLLAR)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


def count(number: int | None) -> str:
    """Return a count with thousands separated.

    >>> count(1234567)
    '1,234,567'
    """
    return NOTHING if number is None else f"{number:,}"


def compact(number: int) -> str:
    """Return a count in three digits.

    >>> compact(1_530_000), compact(980)
    ('1.53 M', '980')
    """
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def duration(milliseconds: float | None) -> str:
    """Return a length of time.

    >>> duration(0.4), duration(1530), duration(90_000)
    ('<1 ms', '1.5 s', '1 min 30 s')
    """
    if milliseconds is None:
        return NOTHING
    if milliseconds < 1:
        return "<1 ms"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    return span(seconds)


def span(seconds: float) -> str:
    """Return whole seconds in the two largest units.

    >>> span(3700), span(0)
    ('1 h 1 min', '0 s')
    """
    left = int(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts) or "0 s"


def ago(at_ms: int | None, now_ms: int) -> str:
    """Return how long ago a moment was, in one unit.

    >>> ago(0, 61_000), ago(0, 500)
    ('1 min ago', 'now')
    """
    if at_ms is None:
        return "never"
    seconds = max(0, (now_ms - at_ms) // 1000)
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "now"


def iso(at_ms: int) -> str:
    """Return a moment for a ``datetime`` attribute."""
    return _moment(at_ms).isoformat(timespec="milliseconds")


def moment(at_ms: int | None) -> str:
    """Return a moment in UTC, to the second."""
    return NOTHING if at_ms is None else _moment(at_ms).strftime("%Y-%m-%d %H:%M:%S")


def clock(at_ms: int) -> str:
    """Return the time of day in UTC."""
    return _moment(at_ms).strftime("%H:%M:%S")


def _moment(at_ms: int) -> dt.datetime:
    # A client may claim any time, but the calendar ends in the year 9999.
    return dt.datetime.fromtimestamp(min(max(at_ms, 0), 253_402_300_799_000) / 1000, dt.UTC)


def visible(text: str) -> str:
    """Return text with what cannot be seen, or turns the order of the rest around, as its code.

    Line breaks and tabs stay.

    >>> visible("pay" + chr(0x202E) + "exe.pdf" + chr(0))
    'pay⟨U+202E⟩exe.pdf⟨U+0000⟩'
    """
    return "".join(each if _is_seen(each) else f"⟨U+{ord(each):04X}⟩" for each in text)


def _is_seen(char: str) -> bool:
    if char in "\n\t" or " " <= char <= "~":
        return True
    category = unicodedata.category(char)
    return category[0] != "C" and category not in ("Zl", "Zp") and char not in _BLANKS


def detail(value: Any) -> str:
    """Return one of an approval's details as text: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return said(value)
    short = json.dumps(value, ensure_ascii=False)
    indented = len(short) > _LINE_LENGTH
    return visible(json.dumps(value, ensure_ascii=False, indent=2) if indented else short)


def said(text: str) -> str:
    """Return what an agent says: visible, and nothing of it far below empty lines.

    >>> said("one" + chr(10) * 9 + "two").count(chr(10))
    2
    """
    return visible(_GAP.sub("\n\n", text.strip()))
