"""Finding many phrases in a text at once, in time linear in its words (Aho and Corasick, 1975)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class PhraseIndex(Generic[V]):
    """Phrases, each with what it stands for.

    Args:
        phrases: The words of each phrase, at least one, and its value.
    """

    def __init__(self, phrases: Iterable[tuple[list[str], V]]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._values: list[list[V]] = [[]]
        self._fail = [0]
        # The nearest shorter match that ends at the same word; 0 is none.
        self._shorter = [0]
        for words, value in phrases:
            self._add(words, value)
        self._link()

    def find(self, words: list[str]) -> Iterator[V]:
        """The value of each phrase that a text has, once."""
        state = 0
        found: set[int] = set()
        for word in words:
            while state and word not in self._next[state]:
                state = self._fail[state]
            state = self._next[state].get(word, 0)
            match = state if self._values[state] else self._shorter[state]
            # What is shorter than a phrase found before was found with it.
            while match and match not in found:
                found.add(match)
                yield from self._values[match]
                match = self._shorter[match]

    def _add(self, words: list[str], value: V) -> None:
        state = 0
        for word in words:
            known = self._next[state].get(word)
            if known is None:
                known = self._next[state][word] = len(self._next)
                self._next.append({})
                self._values.append([])
                self._fail.append(0)
                self._shorter.append(0)
            state = known
        self._values[state].append(value)

    def _link(self) -> None:
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for word, after in self._next[state].items():
                fail = self._fail[state]
                while fail and word not in self._next[fail]:
                    fail = self._fail[fail]
                self._fail[after] = fail = self._next[fail].get(word, 0)
                self._shorter[after] = fail if self._values[fail] else self._shorter[fail]
                waiting.append(after)
