"""Glob patterns (``*`` and ``?``) over names, matched in linear time."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Final

_SEPARATORS: Final = "_/.:-"
_STARTS: Final = ("", *_SEPARATORS)
_AS_ONE: Final = str.maketrans(_SEPARATORS, "_" * len(_SEPARATORS))


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


def part_of(pattern: str, name: str) -> str | None:
    """Return the part after a separator by which a name matches a pattern; None if all of it does.

    >>> part_of("delete_*", "mcp__files__Delete_all"), part_of("delete_*", "delete_all")
    ('delete_all', None)
    """
    pattern, folded = fold(pattern), fold(name)
    if matches(pattern, folded):
        return None
    parts = (folded[at + 1 :] for at, sign in enumerate(folded) if sign in _SEPARATORS)
    return next((part for part in parts if matches(pattern, part)), None)


def _last(folded: str) -> str:
    """Return what follows the last separator of a name."""
    return folded.translate(_AS_ONE).rpartition("_")[2]


def _source_in_parts(pattern: str) -> str:
    """Return the expression for a pattern that all of a name matches, or a part of it.

    A part begins after a separator and ends with the name. Where the pattern has a star, its first
    such beginning leaves the most to match, so that no other one has to be tried.
    """
    first, star, _ = pattern.partition("*")
    begins = f"(?<![^{re.escape(_SEPARATORS)}])"
    if not star:
        return f".*{begins}{_source(first)}"
    return f"(?>.*?{begins}{_source(first)}){_source(pattern[len(first) :])}"


class Matcher:
    """A list of patterns, folded and compiled once.

    Exact names are looked up; all globs are one alternation, tried in order.

    >>> Matcher(["rm", "delete_*"]).find("Delete_File"), Matcher([]).find("rm")
    ('delete_*', None)
    """

    __slots__ = ("_by_last", "_exact", "_globs", "_in_parts", "_order", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self._exact: dict[str, str] = {}
        self._order: list[str] = []
        for pattern in self.patterns:
            if is_pattern(pattern):
                self._order.append(pattern)
            else:
                self._exact.setdefault(fold(pattern), pattern)
        self._by_last: dict[str, list[str]] = {}
        for folded in filter(None, self._exact):
            self._by_last.setdefault(_last(folded), []).append(folded)
        self._globs = self._compiled(_source)
        self._in_parts = self._compiled(_source_in_parts)

    @property
    def glob_count(self) -> int:
        """How many patterns each name is compared with."""
        return len(self._order)

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def find(self, name: str) -> str | None:
        """Return a pattern that a name matches after folding both, or ``None``."""
        folded = fold(name)
        return self._exact.get(folded) or self._find(self._globs, folded)

    def find_in_parts(self, name: str) -> str | None:
        """Return a pattern that a name matches, or its rest after one of its separators.

        Programs put names of their own before a tool's, such as that of its server.

        >>> Matcher(["delete_*"]).find_in_parts("mcp__files__delete_all")
        'delete_*'
        """
        folded = fold(name)
        # Only exact names that end in the same word can match: names with very many parts would
        # otherwise take long.
        for exact in self._by_last.get(_last(folded), ()) if self._exact else ():
            if folded.endswith(exact) and folded[-len(exact) - 1 : -len(exact)] in _STARTS:
                return self._exact[exact]
        return self._find(self._in_parts, folded)

    def _compiled(self, source: Callable[[str], str]) -> re.Pattern[str] | None:
        alternatives = "|".join(f"({source(fold(pattern))})" for pattern in self._order)
        return re.compile(alternatives, re.DOTALL) if self._order else None

    def _find(self, globs: re.Pattern[str] | None, folded: str) -> str | None:
        found = None if globs is None else globs.fullmatch(folded)
        return (
            None if found is None or found.lastindex is None else self._order[found.lastindex - 1]
        )
