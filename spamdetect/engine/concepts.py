"""Finds the concepts that a text names, with a lexicon of words and phrases in many languages.

A form counts in texts of its own language, English ones count everywhere: in another language the
same letters often mean something else. Where the language of a text is not known, all count.

A pattern is one or more words separated by spaces. ``*`` at the start or end of a word matches
any prefix or suffix. Patterns in scripts that are written without spaces match anywhere.
Matching takes time linear in the length of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add
from typing import Final

import attrs

from spamdetect.engine.word_characters import DENSE, DENSE_RUN, WORD

_REMEMBERED: Final = 1 << 14
_LONGEST: Final = 40  # characters of a word that are examined


@attrs.define
class _Node:
    """A node in the tree of phrases."""

    concepts: tuple[int, ...] = ()
    following: dict[int, _Node] = attrs.field(factory=dict)


# The concepts that a word names, and the parts of phrases that it may be.
_Entry = tuple[tuple[int, ...], tuple[int, ...]]
_NOTHING: Final[_Entry] = ((), ())
# The same of a word in a text, and the nodes that its parts lead to from the root.
_Found = tuple[tuple[int, ...], tuple[int, ...], tuple[_Node, ...]]
_NO_WORD: Final[_Found] = ((), (), ())


class _Memory(dict[str, _Found]):
    """What was found for words seen lately; forgets the older half when there are too many."""

    __slots__ = ("_look_up", "_older")

    def __init__(self, look_up: Callable[[str], _Found]) -> None:
        self._look_up = look_up
        self._older: dict[str, _Found] = {}

    def __missing__(self, word: str) -> _Found:
        entry = self._older.get(word) or self._look_up(word)
        if len(self) >= _REMEMBERED:
            self._older = dict(self)
            self.clear()
        self[word] = entry
        return entry


class Lexicon:
    """Finds concepts in normalised texts.

    Args:
        cells: the patterns of each concept in each language, normalised like texts; those
            of the language ``""`` count in every text.

    Example:
        >>> words = Lexicon({("free", "de"): ["gratis*"], ("parcel", ""): ["your package"]})
        >>> words.find("gratisproben"), words.find("gratisproben", "de"), words.find("gratis", "es")
        ([0], [0], [])
    """

    __slots__ = ("_languages", "_matcher", "_numbers", "cells", "names")

    def __init__(self, cells: Mapping[tuple[str, str], Sequence[str]]) -> None:
        self.cells = {cell: tuple(found) for cell, found in cells.items()}
        self.names = tuple(dict.fromkeys(name for name, _ in cells))
        self._numbers = [self.names.index(name) for name, _ in cells]
        self._languages = [language for _, language in cells]
        self._matcher = Matcher(list(self.cells.values()))

    def find(self, text: str, language: str = "") -> list[int]:
        """The numbers of the concepts that a text names, ascending.

        Args:
            text: normalised, see `spamdetect.engine.normalise.Normalised.marked`.
            language: of the text, empty where it is not known.
        """
        cells = self._matcher.find(text)
        if language:
            counting, languages = (language, ""), self._languages
            cells = [cell for cell in cells if languages[cell] in counting]
        numbers = self._numbers
        return sorted({numbers[cell] for cell in cells})


class Matcher:
    """Finds which lists of patterns match a normalised text.

    Args:
        patterns: the lists.
    """

    __slots__ = (
        "_dense", "_ends", "_exact", "_known", "_last", "_parts", "_prefixes", "_root", "_starts",
        "_suffixes",
    )  # fmt: skip

    def __init__(self, patterns: Sequence[Sequence[str]]) -> None:
        self._exact: dict[str, _Entry] = {}
        self._prefixes: dict[str, _Entry] = {}
        self._suffixes: dict[str, _Entry] = {}
        self._dense: dict[str, list[tuple[str, int]]] = {}
        self._parts: dict[str, int] = {}
        self._root = _Node()
        self._known = _Memory(self._look_up)
        for concept, found in enumerate(patterns):
            alone: _Entry = ((concept,), ())
            for pattern in found:
                if not pattern.isascii() and DENSE.search(pattern):
                    self._add_dense(pattern, concept)
                else:
                    self._add(pattern, concept, alone)
        self._starts = _lengths(self._prefixes)
        self._ends = {
            head[::-1]: lengths
            for head, lengths in _lengths([key[::-1] for key in self._suffixes]).items()
        }
        self._last = frozenset(key[-1] for key in self._suffixes)

    def find(self, text: str) -> list[int]:
        """The numbers of the lists that match, ascending."""
        found: set[int] = set()
        reached: Sequence[_Node] = ()
        for entry in map(self._known.__getitem__, WORD.findall(text)):
            if entry is _NO_WORD:
                reached = ()
                continue
            concepts, parts, first = entry
            if concepts:
                found.update(concepts)
            if not reached:
                reached = first
                continue
            reached = [
                node for place in reached for part in parts
                if (node := place.following.get(part)) is not None
            ]  # fmt: skip
            for node in reached:
                found.update(node.concepts)
            reached += first
        if self._dense and not text.isascii() and DENSE.search(text):
            return self._with_dense(text, found)
        return sorted(found)

    def _with_dense(self, text: str, found: set[int]) -> list[int]:
        heads = self._dense
        for run in DENSE_RUN.findall(text):
            for head in heads.keys() & set(map(add, run, run[1:])):
                found.update(concept for pattern, concept in heads[head] if pattern in run)
        return sorted(found)

    def _look_up(self, word: str) -> _Found:
        # Most words name nothing: their first three characters begin no pattern.
        starts = self._starts
        lengths = starts.get(word[:3]) or starts.get(word[:2]) or starts.get(word[:1]) or ()
        size = min(len(word), _LONGEST)
        prefixes = self._prefixes
        entries = [
            entry for length in lengths
            if length <= size and (entry := prefixes.get(word[:length]))
        ]  # fmt: skip
        if word[-1] in self._last:
            entries += self._ending(word, size)
        if exact := self._exact.get(word):
            entries.append(exact)
        if not entries:
            return _NO_WORD
        parts = tuple(sorted({number for entry in entries for number in entry[1]}))
        first = tuple(self._root.following[part] for part in parts if part in self._root.following)
        alone = [node.concepts for node in first] + [entry[0] for entry in entries]
        concepts = tuple(sorted({number for numbers in alone for number in numbers}))
        return (concepts, parts, first) if concepts or parts else _NO_WORD

    def _ending(self, word: str, size: int) -> list[_Entry]:
        ends = self._ends
        lengths = ends.get(word[-3:]) or ends.get(word[-2:]) or ends.get(word[-1:]) or ()
        return [
            entry for length in lengths
            if length <= size and (entry := self._suffixes.get(word[-length:]))
        ]  # fmt: skip

    def _add_dense(self, pattern: str, concept: int) -> None:
        dense = pattern.replace("*", "")
        if len(dense) > 1:
            self._dense.setdefault(dense[:2], []).append((dense, concept))

    def _add(self, pattern: str, concept: int, alone: _Entry) -> None:
        if " " not in pattern:
            table, key = self._place(pattern)
            concepts, parts = table.setdefault(key, alone)
            if concept not in concepts:
                table[key] = ((*concepts, concept), parts)
            return
        node = self._root
        for word in pattern.split():
            part = self._parts.setdefault(word, len(self._parts))
            table, key = self._place(word)
            concepts, parts = table.get(key, _NOTHING)
            if part not in parts:
                table[key] = (concepts, (*parts, part))
            node = node.following.setdefault(part, _Node())
        node.concepts = (*node.concepts, concept)

    def _place(self, word: str) -> tuple[dict[str, _Entry], str]:
        if word[-1] == "*":
            return self._prefixes, word.strip("*")
        if word[0] == "*":
            return self._suffixes, word[1:]
        return self._exact, word


def _lengths(keys: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """How long the keys are that begin a word, by its first three characters.

    Where no key has these, the entry of the first two or of the first one holds.
    """
    found: dict[str, set[int]] = {}
    for key in keys:
        found.setdefault(key[:3], set()).add(len(key))
    for head, lengths in found.items():
        for size in range(1, len(head)):
            lengths |= {size} & found.get(head[:size], set())
    return {head: tuple(sorted(lengths)) for head, lengths in found.items()}


def words_of(text: str) -> list[str]:
    """The words of a normalised text as the lexicon sees them."""
    return WORD.findall(text)


def dump(lexicon: Lexicon) -> bytes:
    """A lexicon as bytes, for a model file."""
    return "\n".join("\t".join([*cell, *found]) for cell, found in lexicon.cells.items()).encode()


def load(data: bytes) -> Lexicon:
    """Read what `dump` wrote.

    Raises:
        ValueError: not UTF-8, or a line without a concept and a language.
    """
    lines = (line.split("\t") for line in data.decode().splitlines())
    return Lexicon({(name, language): patterns for name, language, *patterns in lines})
