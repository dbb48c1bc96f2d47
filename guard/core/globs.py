"""Glob patterns (``*`` and ``?``) over names, matched in linear time."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable


def is_pattern(text: str) -> bool:
    """Return whether a target is a pattern rather than one exact name."""
    return "*" in text or "?" in text


def fold(name: str) -> str:
    """Return a name as policies compare it: NFKC, case folded, surrounding whitespace removed.

    A tool that is called ``Delete_File`` must not slip past a rule for ``delete_*``.
    """
    return unicodedata.normalize("NFKC", name).casefold().strip()


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(_source(pattern), re.DOTALL)


def _source(pattern: str) -> str:
    parts: list[str] = []
    # Runs of stars are one star. Each star is a lazy match that an atomic group ends at the first
    # match of the next literal, so that no pattern can backtrack exponentially.
    pieces = re.split(r"\*+", pattern)
    literals = [re.escape(piece).replace(r"\?", ".") for piece in pieces]
    parts.append(literals[0])
    if len(literals) > 1:
        parts.extend(f"(?>.*?{literal})" for literal in literals[1:-1])
        parts.append(f".*{literals[-1]}")
    return "".join(parts)


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a glob, exactly as written (case counts).

    Only ``*`` and ``?`` are wildcards: ``job[1]`` is a name and does not match ``job1``.

    >>> matches("billing-*", "billing-eu"), matches("a?c", "abc"), matches("a", "ab")
    (True, True, False)
    """
    if pattern == "*":
        return True
    return _compiled(pattern).fullmatch(name) is not None


class Matcher:
    """A list of patterns, folded and compiled once.

    Exact names are looked up; all globs are one alternation, tried in order.

    >>> Matcher(["rm", "delete_*"]).find("Delete_File"), Matcher([]).find("rm")
    ('delete_*', None)
    """

    __slots__ = ("_exact", "_globs", "_order", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self._exact: dict[str, str] = {}
        self._order: list[str] = []
        for pattern in self.patterns:
            if is_pattern(pattern):
                self._order.append(pattern)
            else:
                self._exact.setdefault(fold(pattern), pattern)
        alternatives = "|".join(f"({_source(fold(pattern))})" for pattern in self._order)
        self._globs = re.compile(alternatives, re.DOTALL) if self._order else None

    @property
    def glob_count(self) -> int:
        """How many patterns each name is compared with."""
        return len(self._order)

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def find(self, name: str) -> str | None:
        """Return a pattern that a name matches after folding both, or ``None``."""
        folded = fold(name)
        exact = self._exact.get(folded)
        if exact is not None or self._globs is None:
            return exact
        found = self._globs.fullmatch(folded)
        return (
            None if found is None or found.lastindex is None else self._order[found.lastindex - 1]
        )
