"""Makes invisible characters in text from outside visible. Pure."""

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


def _is_seen(char: str) -> bool:
    if char in "\n\t" or " " <= char <= "~":
        return True
    category = unicodedata.category(char)
    return category[0] != "C" and category not in ("Zl", "Zp") and char not in _BLANKS
