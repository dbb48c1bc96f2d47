"""End-user messages per code: override, then catalogue, then fallback (spec parts 2, 4)."""

from __future__ import annotations

import sys

from guard.core.catalogue import CATALOGUE, FALLBACK_MESSAGE

# This process's own. Any thread reads and writes single entries, which is atomic.
_overrides: dict[str, str] = {}


def format_user_message(exc: object, locale: str = "en") -> str:
    """Return a message for an end user. Never raises, never returns an empty string.

    Use it instead of ``str(exc)``, which holds internal identifiers.

    Args:
        exc: a GuardError, or any object with an ``error_code`` attribute.
        locale: only ``en`` exists; every other locale falls back to it.

    Example:
        >>> from guard.breaker.exceptions import GuardBudgetError
        >>> format_user_message(GuardBudgetError())
        'The usage limit has been reached. Please try again later, or ask for a higher limit.'
    """
    try:
        code = getattr(exc, "error_code", None)
        # An enum member may be a str; its own methods, which could raise, are not called.
        return get_user_message(str.__str__(code)) if isinstance(code, str) else FALLBACK_MESSAGE
    except (Exception, KeyboardInterrupt) as raised:  # of a hostile property
        if type(raised) is KeyboardInterrupt:  # Ctrl-C
            raise
        return FALLBACK_MESSAGE


def print_message(text: str) -> None:
    """Print to standard error: the only way in which guard does so in a program of somebody else.

    Args:
        text: one or more lines, without a line end.
    """
    print(text, file=sys.stderr)  # noqa: T201  # what it is for


def set_user_message(code: str, text: str) -> None:
    """Override the message of an error code in this process; an empty text clears it.

    Raises:
        TypeError: code or text is not a string.
        ValueError: the code is empty.
    """
    if not isinstance(code, str) or not isinstance(text, str):
        raise TypeError("set_user_message takes two strings: the error code and the text")
    if not code.strip():
        raise ValueError("the error code is empty")
    if text.strip():
        _overrides[code] = text
    else:
        _overrides.pop(code, None)


def get_user_message(code: str) -> str:
    """Return the override of a code if set, else its catalogue message, else the fallback."""
    text = _overrides.get(code) if isinstance(code, str) else None
    if text is not None:
        return text
    entry = CATALOGUE.get(code) if isinstance(code, str) else None
    return entry.user_message if entry is not None else FALLBACK_MESSAGE
