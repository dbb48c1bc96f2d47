"""Judges the names of a body's members by their words, in bounded memory; no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_JUDGED_MAX: Final = 10_000
_NAME_MAX: Final = 64


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case, however they are joined.

    >>> words_of("max_searches"), words_of("fileIds"), words_of("HTTPServer")
    (['max', 'searches'], ['file', 'ids'], ['http', 'server'])
    """
    return [word.lower() for word in _WORDS.findall(name)]


class JudgedNames(dict[str, bool]):
    """Judges each name once: nearly all requests have the same ones.

    What a program names may be long and always new, so long names are judged anew, and so is what
    comes when there are many.

    Args:
        judge: tells.
    """

    def __init__(self, judge: Callable[[str], bool]) -> None:
        super().__init__()
        self._judge = judge

    def __missing__(self, name: str) -> bool:
        found = self._judge(name)
        if len(self) < _JUDGED_MAX and len(name) <= _NAME_MAX:
            self[name] = found
        return found
