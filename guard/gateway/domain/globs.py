"""Glob patterns (``*`` and ``?``) over names, matched in linear time."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable


def is_pattern(text: str) -> bool:
    """Tell whether a target is a pattern rather than one exact name."""
    return "*" in text or "?" in text


def fold(name: str) -> str:
    """Return a name as policies compare it: NFKC, case folded, outer blanks removed.

    A tool that is called ``Delete_File`` must not slip past a rule for ``delete_*``.
    """
    return unicodedata.normalize("NFKC", name).casefold().strip()


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts: list[str] = []
    # Runs of stars are one star. Each star is a lazy run that an atomic group cuts at the first
    # place where the next literal fits, so that no pattern can backtrack exponentially.
    pieces = re.split(r"\*+", pattern)
    literals = [re.escape(piece).replace(r"\?", ".") for piece in pieces]
    parts.append(literals[0])
    if len(literals) > 1:
        parts.extend(f"(?>.*?{literal})" for literal in literals[1:-1])
        parts.append(f".*{literals[-1]}")
    return re.compile("".join(parts), re.DOTALL)


def matches(pattern: str, name: str) -> bool:
    """Tell whether a name matches a glob, exactly as written (case counts).

    >>> matches("billing-*", "billing-eu"), matches("a?c", "abc"), matches("a", "ab")
    (True, True, False)
    """
    if pattern == "*":
        return True
    return _compiled(pattern).fullmatch(name) is not None


def first_match(patterns: Iterable[str], name: str) -> str | None:
    """Return the first pattern that a name matches after folding both, or ``None``."""
    folded = fold(name)
    for pattern in patterns:
        if matches(fold(pattern), folded):
            return pattern
    return None
