"""Builds the character tables of the engine from :mod:`unicodedata`."""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.characters import CODE_POINTS, SCRIPTS, Kind
from spamdetect.engine.container import pack

BIDI = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
# Letters without width or meaning that are not in category Cf.
BLANKS = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0}
VARIATION = {*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), 0x180B, 0x180C, 0x180D, 0x180F}
EMOJI = (
    (0x2600, 0x27C0), (0x2B00, 0x2C00), (0x1F000, 0x1F100), (0x1F1E6, 0x1F200),
    (0x1F300, 0x1FB00),
)  # fmt: skip
STYLED = (
    (0x1D00, 0x1D80),
    (0x2100, 0x2150),
    (0x2460, 0x2500),
    (0x1D400, 0x1D800),
    (0x1F100, 0x1F1E6),
    (0xFF21, 0xFF5B),
)
NAMES = {name: index for index, name in enumerate(SCRIPTS)}
ALIASES = {"FULLWIDTH": "LATIN", "HALFWIDTH": "KATAKANA", "IDEOGRAPHIC": "CJK"}


def kind_of(code: int) -> Kind:
    """The kind of one code point."""
    character = chr(code)
    category = unicodedata.category(character)
    if category == "Cs":
        return Kind.SURROGATE
    if code in BIDI:
        return Kind.BIDI
    if category == "Cf" or code in BLANKS or code in VARIATION:
        return Kind.INVISIBLE
    if character in "\n\r\x0b\x0c\x85\u2028\u2029":
        return Kind.NEWLINE
    if character == "\t" or category == "Zs":
        return Kind.SPACE
    if category == "Cc":
        return Kind.CONTROL
    if 0x300 <= code <= 0x36F:
        return Kind.ACCENT
    if category in {"Mn", "Mc", "Me"}:
        return Kind.MARK
    if any(low <= code < high for low, high in EMOJI):
        return Kind.EMOJI
    if any(low <= code < high for low, high in STYLED) and category[0] in "LNS":
        return Kind.STYLED
    if character in "!\u00a1\uff01\u203c":
        return Kind.EXCLAMATION
    if character in "?\u00bf\uff1f":
        return Kind.QUESTION
    if character == "*":
        return Kind.STAR
    by_category = {
        "Lu": Kind.UPPER, "Lt": Kind.UPPER, "Ll": Kind.LOWER, "Lo": Kind.LETTER,
        "Lm": Kind.LETTER, "Nl": Kind.LETTER, "Nd": Kind.DIGIT, "Sc": Kind.CURRENCY,
    }  # fmt: skip
    if category in by_category:
        return by_category[category]
    if category[0] == "P":
        return Kind.PUNCTUATION
    return Kind.SYMBOL if category[0] == "S" else Kind.OTHER


def script_of(code: int) -> int:
    """The index of the script of a letter, or of a mark that belongs to one script; else 0."""
    character = chr(code)
    category = unicodedata.category(character)
    if category[0] not in "LM" or 0x300 <= code <= 0x36F:
        return 0
    name = unicodedata.name(character, "")
    if not name:
        # Ideographs assigned by newer Unicode versions lie in these planes.
        return NAMES["CJK"] if 0x20000 <= code < 0x3FFFE else 0
    first = name.split()[0].split("-")[0]
    if first in {"COMBINING", "VARIATION", "MODIFIER"}:
        return 0
    first = ALIASES.get(first, first)
    if first == "KATAKANA" and name.startswith("KATAKANA-HIRAGANA"):
        return NAMES["KATAKANA"]
    return NAMES.get(first, NAMES["OTHER"])


MID_LETTER = frozenset("\u00b7\u0387\u055f\u2027\ufe13")
MID_NUM = frozenset(
    ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"
)
MID_NUM_LET = frozenset("'.\u2018\u2019\u2024\ufe52\uff07\uff0e")
SINGLE_SCRIPTS = ("THAI", "LAO", "MYANMAR", "KHMER", "HIRAGANA", "CJK")


def word_break_of(code: int, script: int) -> int:
    """The word-break class of a code point, as the ASCII code of a letter."""
    character = chr(code)
    category = unicodedata.category(character)
    if category in {"Mn", "Mc", "Me", "Cf"} or 0x1F3FB <= code <= 0x1F3FF:
        return ord("O" if code == 0x200B else "E")
    if category == "Nd":
        return ord("N")
    for members, letter in ((MID_LETTER, "M"), (MID_NUM, "D"), (MID_NUM_LET, "B")):
        if character in members:
            return ord(letter)
    if character == '"':
        return ord("Q")
    if category == "Pc" or code == 0x202F:
        return ord("U")
    if category[0] == "L" or category == "Nl" or 0x24B6 <= code <= 0x24E9:
        name = SCRIPTS[script]
        if name in SINGLE_SCRIPTS:
            return ord("S")
        return ord({"KATAKANA": "K", "HEBREW": "H"}.get(name, "A"))
    return ord("O")


def runs(values: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Run-length encoding: where each run starts, and its value."""
    start = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return start.astype(np.uint32), values[start]


def build() -> bytes:
    """The content of the character model file."""
    kinds = np.fromiter((kind_of(code) for code in range(CODE_POINTS)), np.uint8, CODE_POINTS)
    scripts = np.fromiter((script_of(code) for code in range(CODE_POINTS)), np.uint8, CODE_POINTS)
    breaks = np.fromiter(
        (word_break_of(code, script) for code, script in enumerate(scripts.tolist())),
        np.uint8,
        CODE_POINTS,
    )
    kind_start, kind_value = runs(kinds)
    script_start, script_value = runs(scripts)
    break_start, break_value = runs(breaks)
    meta = {"unicode": unicodedata.unidata_version}
    arrays: dict[str, NDArray[Any]] = {
        "kind_start": kind_start, "kind_value": kind_value,
        "script_start": script_start, "script_value": script_value,
        "word_break_start": break_start, "word_break_value": break_value,
    }  # fmt: skip
    return pack("characters", meta, arrays)


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(build())
