"""What may be shown of text from outside: pages, messages, tables, terminals and logs. Pure."""

from __future__ import annotations

import unicodedata
from typing import Final

_BLANKS: Final = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and symbols that look like spaces."""


def visible(text: str) -> str:
    """Return text with characters that are invisible, or reverse the text, replaced by their codes.

    Line breaks and tabs stay.

    >>> visible("pay" + chr(0x202E) + "exe.pdf" + chr(0))
    'pay⟨U+202E⟩exe.pdf⟨U+0000⟩'
    """
    return "".join(each if _is_seen(each) else f"⟨U+{ord(each):04X}⟩" for each in text)


def one_line(text: str, length_max: int | None = None) -> str:
    """Return text in one line, visible, and cut where it is too long.

    >>> one_line("Bcc:" + chr(13) + chr(10) + "  you"), one_line("long text", 5)
    ('Bcc:⟨U+000D⟩ you', 'long…')
    """
    shown = " ".join(visible(text).split())
    if length_max is None or len(shown) <= length_max:
        return shown
    return f"{shown[: length_max - 1]}…"


def quoted(text: str) -> str:
    """Return text in quotes and escaped, as a message repeats what somebody typed: 80 characters.

    >>> quoted("nan"), len(quoted("x" * 10_000))
    ("'nan'", 82)
    """
    return repr(text if len(text) <= 80 else f"{text[:79]}…")


def _is_seen(char: str) -> bool:
    if char in "\n\t" or " " <= char <= "~":
        return True
    category = unicodedata.category(char)
    return category[0] != "C" and category not in ("Zl", "Zp") and char not in _BLANKS
