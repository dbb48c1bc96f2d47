"""The last step of normalisation: digits and white space take one shape, repetitions are cut."""

from __future__ import annotations

from typing import Final

import numpy as np

from spamdetect.engine.characters import Kind, character_tables, code_points

_BLANK: Final = np.zeros(32, bool)
_BLANK[[Kind.SPACE, Kind.NEWLINE, Kind.CONTROL]] = True
_LETTER: Final = np.zeros(32, bool)
_LETTER[[Kind.UPPER, Kind.LOWER, Kind.LETTER]] = True
_SIGN: Final = ~_LETTER
_SIGN[Kind.DIGIT] = False


def shape(text: str) -> tuple[str, int]:
    """The text with one space for blanks and controls, and without long runs of one character.

    Each digit becomes ``0``; two of a run of letters are kept, one of a run of signs, all digits.

    Returns:
        The text, and how many letters were dropped.
    """
    codes = code_points(f" {text} ").copy()
    kinds = character_tables().kind[codes]
    codes[kinds == Kind.DIGIT] = ord("0")
    codes[_BLANK[kinds]] = ord(" ")
    again = (codes[1:] == codes[:-1]).nonzero()[0] + 1
    dropped = 0
    if again.size:
        stretched = _LETTER[kinds[again]]
        stretched[0] = False
        stretched[1:] &= again[1:] - again[:-1] == 1
        dropped = int(np.count_nonzero(stretched))
        codes = np.delete(codes, again[stretched | _SIGN[kinds[again]]])
    return codes[1:-1].tobytes().decode("utf-32-le"), dropped
