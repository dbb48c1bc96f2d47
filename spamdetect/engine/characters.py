"""The kind, script and word-break class of each code point, from tables fixed at build time.

The tables are package data rather than calls to :mod:`unicodedata`, so that features do not
depend on the Unicode version of the interpreter, and so that a whole text is classified with
one array lookup.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.container import unpack

CODE_POINTS = 0x110000
FILE_NAME = "characters.model"


class Kind(enum.IntEnum):
    """The kind of a code point, as the structural features count it."""

    OTHER = 0
    UPPER = 1
    LOWER = 2
    LETTER = 3
    DIGIT = 4
    SPACE = 5
    NEWLINE = 6
    PUNCTUATION = 7
    EXCLAMATION = 8
    QUESTION = 9
    CURRENCY = 10
    EMOJI = 11
    INVISIBLE = 12
    ACCENT = 13
    MARK = 14
    CONTROL = 15
    SURROGATE = 16
    STYLED = 17
    SYMBOL = 18
    STAR = 19
    BIDI = 20


KINDS = len(Kind)

SCRIPTS = (
    "COMMON", "LATIN", "CYRILLIC", "GREEK", "ARABIC", "HEBREW", "DEVANAGARI", "BENGALI",
    "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA",
    "THAI", "LAO", "TIBETAN", "MYANMAR", "GEORGIAN", "HANGUL", "ETHIOPIC", "KHMER",
    "MONGOLIAN", "HIRAGANA", "KATAKANA", "CJK", "ARMENIAN", "CHEROKEE", "THAANA", "OTHER",
)  # fmt: skip


class CharacterTables:
    """One byte per code point; each table is built on first use.

    Attributes:
        kind: a `Kind`.
        script: an index into `SCRIPTS`; 0 if it is not a letter.
        word_break: an ASCII letter, see `spamdetect.engine.words`.
    """

    def __init__(self, runs: Mapping[str, NDArray[Any]]) -> None:
        self._runs = runs

    @cached_property
    def kind(self) -> NDArray[np.uint8]:
        return self._expanded("kind")

    @cached_property
    def script(self) -> NDArray[np.uint8]:
        return self._expanded("script")

    @cached_property
    def word_break(self) -> NDArray[np.uint8]:
        return self._expanded("word_break")

    def _expanded(self, name: str) -> NDArray[np.uint8]:
        start = self._runs[f"{name}_start"].astype(np.int64)
        lengths = np.diff(np.append(start, CODE_POINTS))
        table: NDArray[np.uint8] = np.repeat(self._runs[f"{name}_value"], lengths)
        return table


@cache
def character_tables() -> CharacterTables:
    """The tables, read once."""
    data = resources.files("spamdetect.engine").joinpath(FILE_NAME).read_bytes()
    return CharacterTables(unpack(data, kind="characters", origin=FILE_NAME).arrays)


def entries(name: str, text: str) -> bytes:
    """The entry of the table of this name for each character of a text, one byte each."""
    if text.isascii():  # an array of 70 code points takes three times as long
        return text.encode().translate(_first_entries(name))
    table: NDArray[np.uint8] = getattr(character_tables(), name)
    return table[code_points(text)].tobytes()


@cache
def _first_entries(name: str) -> bytes:
    table: NDArray[np.uint8] = getattr(character_tables(), name)
    return table[:256].tobytes()


def class_of(ranges: Sequence[str]) -> str:
    """The inside of a character class of a regular expression for ranges of characters.

    Args:
        ranges: each the first and the last character of a range.
    """
    return "".join(f"{re.escape(ends[0])}-{re.escape(ends[1])}" for ends in ranges)


def code_points(text: str) -> NDArray[np.uint32]:
    """The code points of a text as an array; lone surrogates are allowed."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
