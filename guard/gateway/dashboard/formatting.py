"""Numbers and times formatted for people. Pure."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any, Final

from markupsafe import Markup

from guard.core.visible import visible
from guard.core.wire import NANOUSD_PER_DOLLAR, dollars
from guard.gateway.domain.records import BalanceView
from guard.gateway.domain.windows import UTC, zone_of

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
NOTHING: Final = "–"
DUST_NANOUSD: Final = 1000
"""Less than this, a millionth of a dollar, is not worth its digits."""
_GAP: Final = re.compile(r"\n(?:[^\S\n]*\n)+")
_LINE_LENGTH: Final = 70


def money(nanousd: int | None) -> str:
    """Return nano-dollars as dollars: cents for large sums, three digits for small ones.

    >>> money(1_234_567_890_000), money(2_000_000), money(0), money(1)
    ('$1,234.57', '$0.002', '$0.00', '<$0.000001')
    """
    if nanousd is None:
        return NOTHING
    if 0 < nanousd < DUST_NANOUSD:
        return "<$0.000001"
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


def exact(nanousd: int) -> str:
    """Return nano-dollars as dollars, to the last digit."""
    return dollars(nanousd)


def shows(number: int, unit: str = "usd") -> bool:
    """Return whether an amount is worth showing: the rounding of a call without a cost is not.

    >>> shows(1), shows(1_000_000), shows(1, "calls"), shows(0, "calls")
    (False, True, True, False)
    """
    return number >= (DUST_NANOUSD if unit == "usd" else 1)


def share(balance: BalanceView) -> str:
    """Return how much of a budget is used: 100 percent only where all of it is."""
    if not balance.limit:
        return "100%"
    percent = 100 * max(balance.committed, 0) / balance.limit
    return "<1%" if 0 < percent < 1 else f"{int(percent):,}%"


def in_doubt(number: int, unit: str = "usd") -> str:
    """Return what to say beside a sum of which so much is uncertain; nothing for nothing.

    >>> in_doubt(400_000_000), in_doubt(0), in_doubt(1500, "tokens")
    ('of it up to $0.40 uncertain', '', 'of it up to 1,500 uncertain')
    """
    return f"of it up to {amount(number, unit)} uncertain" if number else ""


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


def dated(at_ms: int | None, now_ms: int, zone: str = UTC) -> str:
    """Return a moment in a zone with its day: today, yesterday, tomorrow or a date.

    >>> dated(0, 1000), dated(0, 86_400_000), dated(-1, 86_400_000 * 3), dated(86_400_000, 0)
    ('today 00:00:00', 'yesterday 00:00:00', '1 Jan 00:00:00', 'tomorrow 00:00:00')
    >>> dated(0, 400 * 86_400_000)
    '1 Jan 1970 00:00:00'
    """
    if at_ms is None:
        return NOTHING
    at, now = (_moment(each).astimezone(zone_of(zone)) for each in (at_ms, now_ms))
    days = (at.date() - now.date()).days
    day = {-1: "yesterday", 0: "today", 1: "tomorrow"}.get(days)
    if day is None:
        day = f"{at.day} {at:%b}" + ("" if at.year == now.year else f" {at.year:04}")
    return f"{day} {at:%H:%M:%S}"


def about(at_ms: int, now_ms: int, zone: str = UTC) -> str:
    """Return a moment in a zone with its day, to the minute.

    >>> about(61_000, 0), about(61_000, 0, "Asia/Kolkata")
    ('today 00:01', 'today 05:31')
    """
    return dated(at_ms, now_ms, zone).rpartition(":")[0]


def _moment(at_ms: int) -> dt.datetime:
    # A client may claim any time, but the calendar ends in the year 9999.
    return dt.datetime.fromtimestamp(min(max(at_ms, 0), 253_402_300_799_000) / 1000, dt.UTC)


def detail(value: Any) -> str:
    """Return one of an approval's details as text: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return said(value)
    short = json.dumps(value, ensure_ascii=False)
    indented = len(short) > _LINE_LENGTH
    return visible(json.dumps(value, ensure_ascii=False, indent=2) if indented else short)


class AsIs(str):
    """Text that a form sends back, which has to be the very same."""

    __slots__ = ()


as_is: Final = AsIs


def shown(value: Any) -> Any:
    """Return what a template writes for a value: of text from wherever, what may be shown."""
    is_text = isinstance(value, str) and not isinstance(value, AsIs | Markup)
    return visible(value) if is_text else value


def said(text: str) -> str:
    """Return what an agent says: visible, and nothing of it far below empty lines.

    >>> said("one" + chr(10) * 9 + "two").count(chr(10))
    2
    """
    return visible(_GAP.sub("\n\n", text.strip()))
