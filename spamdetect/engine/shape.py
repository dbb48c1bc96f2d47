"""The last step of normalisation: digits and white space take one shape, repetitions are cut."""

from __future__ import annotations

import functools
import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.characters import Kind, character_tables

Codes = NDArray[np.uint32]
Positions = NDArray[np.intp]

BLANK: Final = np.zeros(32, bool)
BLANK[[Kind.SPACE, Kind.NEWLINE, Kind.CONTROL]] = True
LETTER: Final = np.zeros(32, bool)
LETTER[[Kind.UPPER, Kind.LOWER, Kind.LETTER]] = True
_SIGN: Final = ~LETTER
_SIGN[Kind.DIGIT] = False
_ASCII_SHAPE: Final = bytes(
    48 if 48 <= code <= 57 else 32 if code <= 32 or code == 127 else code for code in range(256)
)
_MAY_REPEAT: Final = frozenset("0abcdefghijklmnopqrstuvwxyzабвгдежзийклмнопрстуфхцчшщъыьэюя")
_TO_SHAPE: Final = re.compile(
    r"[\d\x00-\x1f\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
)


def shape(text: str) -> str:
    """A text with ``0`` for each digit and a space for each blank or control."""
    if text.isascii():
        return text.encode().translate(_ASCII_SHAPE).decode()
    return text.translate(_shapes()) if _TO_SHAPE.search(text) else text


@functools.cache
def _shapes() -> dict[int, str]:
    """What digits and blanks become, by code point."""
    kind = character_tables().kind
    digits, blanks = np.flatnonzero(kind == Kind.DIGIT), np.flatnonzero(BLANK[kind])
    return dict.fromkeys(digits.tolist(), "0") | dict.fromkeys(blanks.tolist(), " ")


def may_be_excess(repeated: list[int], shaped: str) -> bool:
    """Whether there may be more than pairs of letters and numbers.

    Args:
        repeated: the places in the padded text whose character is repeated.
        shaped: the text.
    """
    before = -1
    for place in repeated:
        sign = shaped[place - 1] if place else " "
        if sign not in _MAY_REPEAT or (place == before + 1 and sign != "0"):
            return True
        before = place
    return False


def excess(codes: Codes, same: NDArray[np.bool_]) -> tuple[Positions, Positions]:
    """Where to cut runs of equal characters, and which of these are letters.

    Args:
        codes: code points.
        same: for each code point but the last, whether the next one is equal.
    """
    again = np.flatnonzero(same) + 1
    if not again.size:
        return again, again
    repeated = character_tables().kind[codes[again]]
    stretched = LETTER[repeated]
    stretched[0] = False
    stretched[1:] &= again[1:] - again[:-1] == 1
    return again[stretched | _SIGN[repeated]], again[stretched]


def without(codes: Codes, drop: Positions) -> Codes:
    keep = np.ones(codes.size, bool)
    keep[drop] = False
    return codes[keep]
