"""Which text the protocol takes, the same on both sides and for every engine that stores it.

A name, an id or any other text of a message has no NUL, which PostgreSQL does not store, no U+FDD0,
which stands for NUL there, and no half of a surrogate pair, which is no UTF-8. Names and ids are
counted in bytes as well, so that the widest row of an index, with three of them, has room. Free
data (``data``, ``metadata``, ``details``) is any JSON, and not looked at.
"""

from __future__ import annotations

import re
from typing import Final

from guard.core.wire.fields import NAME_BYTES_MAX, NAME_LENGTH_MAX

_NEVER: Final = re.compile("[\0\ufdd0\ud800-\udfff]")
_REPLACED: Final = "\ufffd"


def flaw_in_text(text: str, bytes_max: int | None = None) -> str | None:
    """Return what is wrong with a text, never the text; None: it is taken.

    >>> flaw_in_text("a\\0b")
    'has the character U+0000, which no text of the protocol may have'
    >>> flaw_in_text("\\U0001f600" * 200, 768)
    'has 800 bytes in UTF-8, and 768 is the most'
    """
    if text.isascii():  # as nearly all are, and then a character is a byte
        found = "\0" if "\0" in text else None
    else:
        match = _NEVER.search(text)
        found = None if match is None else match[0]
        if found is None and bytes_max is not None and len(text.encode()) > bytes_max:
            return f"has {len(text.encode())} bytes in UTF-8, and {bytes_max} is the most"
    if found is None:
        return None
    return f"has the character U+{ord(found):04X}, which no text of the protocol may have"


def require_name(what: str, name: str) -> str:
    """Return a name that a program gives.

    Raises:
        ValueError: the gateway would not take it; the text says what a name must be.
    """
    if not 1 <= len(name) <= NAME_LENGTH_MAX:
        raise ValueError(f"{what} has 1 to {NAME_LENGTH_MAX} characters")
    if (flaw := flaw_in_text(name, NAME_BYTES_MAX)) is not None:
        raise ValueError(f"{what} {flaw}")
    return name


def truncated(text: str, length_max: int = NAME_LENGTH_MAX, bytes_max: int = NAME_BYTES_MAX) -> str:
    """Return a text that was found and not given, such as a tool's name, as the protocol takes it.

    >>> truncated("a\\0b"), len(truncated("\\U0001f600" * 256))
    ('a\ufffdb', 192)
    """
    text = text[:length_max]
    if text.isascii() and "\0" not in text:
        return text
    text = _NEVER.sub(_REPLACED, text)
    return text.encode()[:bytes_max].decode("utf-8", "ignore")
