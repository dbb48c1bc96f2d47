"""Texts of more than two hundred kinds, and of every block of characters, the same on each machine.

The bound of a prompt is fitted over other texts. ``benchmarks/input_factors.py --beside`` counts
the tokens of these.
"""

from __future__ import annotations

import base64
import json
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

COUNTED: Final = Path(__file__).with_name("kinds_of_text.json")
"""The most tokens that each has, of nine tokenisers: what ``--beside`` writes."""

BLOCK: Final = 64
_CHARACTERS: Final = 400
_WORDS: Final = [
    "account",
    "the",
    "of",
    "answer",
    "believe",
    "border",
    "to",
    "carry",
    "children",
    "colour",
    "a",
    "decide",
    "department",
    "early",
    "explain",
    "family",
    "in",
    "garden",
    "government",
    "happen",
    "history",
    "important",
    "is",
    "journey",
    "knowledge",
    "language",
    "machine",
    "and",
    "measure",
    "neighbour",
    "often",
    "paragraph",
    "that",
    "question",
    "reason",
    "remember",
    "several",
    "for",
    "strange",
    "telephone",
    "thought",
    "together",
    "it",
    "understand",
    "vegetable",
    "weather",
    "with",
    "yesterday",
    "quixotic",
    "zephyr",
    "jinx",
    "rhythm",
    "syzygy",
]


def _drawn(*ranges: tuple[int, int]) -> Callable[[random.Random], str]:
    """Return what draws characters from ranges of code points."""
    pool = [chr(code) for first, last in ranges for code in range(first, last + 1)]
    return lambda rng: "".join(rng.choices(pool, k=_CHARACTERS))


def _of(characters: str, size: int = 900) -> Callable[[random.Random], str]:
    return lambda rng: "".join(rng.choices(characters, k=size))


def _repeated(make: Callable[[random.Random], str], times: int) -> Callable[[random.Random], str]:
    return lambda rng: "".join(make(rng) for _ in range(times))


def _words(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=150))


def _syllables(rng: random.Random) -> str:
    return " ".join(
        "".join(rng.choice("bcdfghjklmnpqrstvwxyz") + rng.choice("aeiou") for _ in range(3))
        for _ in range(150)
    )


def _records(rng: random.Random) -> str:
    return json.dumps([
        {"id": rng.randrange(10**6), "name": rng.choice(_WORDS), "price": rng.random(),
         "tags": rng.sample(_WORDS, 2), "nested": {"a": [1, None, True], "b": ""}}
        for _ in range(12)
    ])  # fmt: skip


def _marked(characters: str, marks: tuple[int, int], most: int) -> Callable[[random.Random], str]:
    """Return what puts combining marks onto letters."""
    pool = [chr(code) for code in range(marks[0], marks[1] + 1)]
    return _repeated(
        lambda rng: rng.choice(characters) + "".join(rng.choices(pool, k=rng.randrange(most + 1))),
        200,
    )


def _codec(name: str, first: tuple[int, int], second: tuple[int, int]) -> str:
    """Return the characters of some rows of a legacy encoding."""
    rows = bytes(
        byte
        for lead in range(first[0], first[1] + 1)
        for trail in range(second[0], second[1] + 1)
        for byte in (lead, trail)
    )
    return rows.decode(name, "ignore")


_HEX: Final = "0123456789abcdef"
MATERIALS: Final[dict[str, Callable[[random.Random], str]]] = {
    "words": _words,
    "syllables": _syllables,
    "capital words": lambda rng: _words(rng).upper(),
    "camelCase": lambda rng: "".join(word.title() for word in _words(rng).split()),
    "snake_case": lambda rng: _words(rng).replace(" ", "_"),
    "records": _records,
    "hex": _of(_HEX),
    "digits": _of("0123456789"),
    "amounts": _repeated(lambda rng: f"{rng.randrange(10**6)},{rng.randrange(100):02d}; ", 90),
    "base64": lambda rng: base64.b64encode(rng.randbytes(700)).decode(),
    "UUIDs": _repeated(lambda rng: f"{uuid.UUID(int=rng.getrandbits(128))} ", 25),
    "IPv6": _repeated(lambda rng: ":".join("".join(rng.choices(_HEX, k=4)) for _ in range(8)), 20),
    "consonants": _of("bcdfghjklmnpqrstvwxz"),
    "vowels": _of("aeiou"),
    "mixed case": _of("aBcDeFgHiJkLmNoPqRsTuVwXyZ"),
    "punctuation": _of("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
    "quotes and backslashes": _of("\"\\'"),
    "paths of Windows": _repeated(lambda rng: f"C:\\{rng.choice(_WORDS)}\\n{rng.randrange(9)}", 60),
    "brackets": _of("()[]{}<>"),
    "controls": _drawn((1, 31)),
    "blanks": _of(" \t\n\r"),
    "DNA": _of("ACGT"),
    "accented": _drawn((0xC0, 0xFF)),
    "Latin, rare": _drawn((0x180, 0x24F)),
    "IPA": _drawn((0x250, 0x2AF)),
    "Vietnamese vowels": _drawn((0x1EA0, 0x1EF9)),
    "stacked marks": _marked("aeioxz", (0x300, 0x36F), 5),
    "Greek": _drawn((0x391, 0x3A1), (0x3B1, 0x3C9)),
    "polytonic Greek": _drawn((0x1F00, 0x1F15), (0x1F20, 0x1F45)),
    "Cyrillic": _drawn((0x410, 0x44F)),
    "Cyrillic, rare": _drawn((0x460, 0x52F)),
    "Armenian": _drawn((0x531, 0x556), (0x561, 0x587)),
    "pointed Hebrew": _marked("אבגדהוזחטיכלמנ", (0x5B0, 0x5BC), 2),
    "vowelled Arabic": _marked("ابتثجحخدذرزسش", (0x64B, 0x652), 2),
    "Arabic forms": _drawn((0xFB50, 0xFBB1), (0xFE70, 0xFEFC)),
    "Arabic ligatures": _drawn((0xFDF0, 0xFDFB)),
    "Syriac and Thaana": _drawn((0x710, 0x72F), (0x780, 0x7A5)),
    "Devanagari": _drawn((0x904, 0x939), (0x93E, 0x94D)),
    "Devanagari letters with a dot": _drawn((0x958, 0x95F)),
    "Tamil": _drawn((0xB85, 0xB8A), (0xBAE, 0xBB9)),
    "Sinhala": _drawn((0xD9A, 0xDB1)),
    "Thai": _drawn((0xE01, 0xE3A)),
    "Tibetan": _drawn((0xF40, 0xF6C), (0xF71, 0xF81)),
    "Burmese": _drawn((0x1000, 0x1049)),
    "Georgian": _drawn((0x10A0, 0x10C5), (0x10D0, 0x10FA)),
    "Hangul letters": _drawn((0x1100, 0x11FF)),
    "Ethiopic": _drawn((0x1200, 0x1248)),
    "Cherokee": _drawn((0x13A0, 0x13F4)),
    "Khmer": _drawn((0x1780, 0x17B3)),
    "Mongolian": _drawn((0x1820, 0x1877)),
    "quotation and blanks": _drawn((0x2000, 0x206F)),
    "arrows and operators": _drawn((0x2190, 0x22FF)),
    "box drawing": _drawn((0x2500, 0x259F)),
    "dingbats": _drawn((0x2600, 0x27BF)),
    "Braille": _drawn((0x2800, 0x28FF)),
    "radicals": _drawn((0x2E80, 0x2FD5)),
    "kana": _drawn((0x3041, 0x3096), (0x30A1, 0x30FA)),
    "Bopomofo": _drawn((0x3105, 0x312F)),
    "enclosed Han": _drawn((0x3200, 0x33FF)),
    "Han, extension A": _drawn((0x3400, 0x4DBF)),
    "Han": _drawn((0x4E00, 0x9FFF)),
    "Han, common": _of(_codec("gb2312", (0xB0, 0xD7), (0xA1, 0xFE)), _CHARACTERS),
    "Han, traditional": _of(_codec("big5", (0xA4, 0xC6), (0x40, 0x7E)), _CHARACTERS),
    "Han, rare": _of(_codec("gb2312", (0xD8, 0xF7), (0xA1, 0xFE)), _CHARACTERS),
    "Yi": _drawn((0xA000, 0xA48C)),
    "Vai and Bamum": _drawn((0xA500, 0xA62B), (0xA6A0, 0xA6F7)),
    "Hangul": _drawn((0xAC00, 0xD7A3)),
    "Hangul, common": _of(_codec("euc_kr", (0xB0, 0xC8), (0xA1, 0xFE)), _CHARACTERS),
    "private use": _drawn((0xE000, 0xF8FF)),
    "full width": _drawn((0xFF01, 0xFF5E)),
    "half width": _drawn((0xFF61, 0xFF9F)),
    "Gothic and Deseret": _drawn((0x10330, 0x1034A), (0x10400, 0x1044F)),
    "cuneiform": _drawn((0x12000, 0x1236E)),
    "hieroglyphs": _drawn((0x13000, 0x1342E)),
    "mathematical letters": _drawn((0x1D400, 0x1D7FF)),
    "emoji": _drawn((0x1F300, 0x1F64F), (0x1F900, 0x1F9FF)),
    "emoji, joined": _repeated(
        lambda rng: "\u200d".join(chr(rng.randrange(0x1F466, 0x1F478)) for _ in "123") + "\ufe0f",
        60,
    ),
    "flags": _drawn((0x1F1E6, 0x1F1FF)),
    "Han, extension B": _drawn((0x20000, 0x2A6DF)),
}  # fmt: skip
"""What a text is made of, by its kind."""


def _alternating(text: str, other: str) -> str:
    return "".join(f"{char}{other}" for char in text[: len(text) // 2])


def _nested(depth: int, *, is_ascii: bool) -> Callable[[str], str]:
    """Return what puts a text into JSON, that into JSON again, and so on."""

    def wrap(text: str) -> str:
        for level in range(depth):
            text = json.dumps([text] if level % 2 else {"a": text}, ensure_ascii=is_ascii)
        return text

    return wrap


WRAPPINGS: Final[dict[str, Callable[[str], str]]] = {
    "": str,
    "apart": lambda text: _alternating(text, " "),
    "between letters": lambda text: _alternating(text, "x"),
    "in lines": lambda text: "\n".join(text[at : at + 7] for at in range(0, len(text), 7)),
    **{f"JSON {depth} deep": _nested(depth, is_ascii=False) for depth in range(1, 6)},
    **{f"escapes {depth} deep": _nested(depth, is_ascii=True) for depth in range(1, 6)},
}
"""What is done to it, by name."""


def kinds() -> Iterator[tuple[str, str]]:
    """Yield the texts by their kinds: each material, plain and wrapped."""
    for material, make in MATERIALS.items():
        text = make(random.Random(material))
        for wrapping, wrap in WRAPPINGS.items():
            yield f"{material}, {wrapping}".rstrip(", "), wrap(text)


def blocks() -> Iterator[tuple[str, str]]:
    """Yield a text of each block of characters, by the hexadecimal of the first one."""
    for first in (*range(0x80, 0xD800, BLOCK), *range(0xE000, 0x33480, BLOCK)):
        rng = random.Random(first)
        yield f"{first:x}", "".join(chr(first + rng.randrange(BLOCK)) for _ in range(150))


def body(text: str) -> bytes:
    """Return a request with a text, as a client sends it."""
    asked = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode()
