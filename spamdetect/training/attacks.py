"""Disguises that spammers use, as functions of a text and a random generator.

Each keeps the text readable to a person. They serve the training (a share of both classes is
disguised, so that disguise alone convicts nobody) and the robustness report.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from random import Random
from typing import Final

Disguise = Callable[[str, Random], str]

HOMOGLYPHS: Final = {
    "a": "аɑα", "c": "сϲ", "e": "еє", "i": "іι", "j": "ј", "o": "оοо", "p": "рρ", "s": "ѕ",
    "x": "хχ", "y": "уγ", "h": "һ", "k": "к", "n": "п", "b": "Ьь", "m": "м", "t": "т", "v": "ѵν",
    "A": "АΑ", "B": "ВΒ", "C": "С", "E": "ЕΕ", "H": "НΗ", "K": "КΚ", "M": "МΜ", "O": "ОΟ",
    "P": "РΡ", "T": "ТΤ", "X": "ХΧ", "Y": "ΥУ", "I": "ІΙ", "N": "Ν", "S": "Ѕ",
    "а": "a", "с": "c", "е": "e", "о": "o", "р": "p", "х": "x", "у": "y", "к": "k", "м": "m",
    "т": "t", "А": "A", "В": "B", "С": "C", "Е": "E", "Н": "H", "К": "K", "М": "M", "О": "O",
    "Р": "P", "Т": "T", "Х": "X",
}  # fmt: skip
LEET: Final = {"a": "4@", "e": "3", "i": "1!", "o": "0", "s": "5$", "t": "7", "l": "1", "b": "8"}
ZERO_WIDTH: Final = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
ACCENTS: Final = "\u0300\u0301\u0302\u0303\u0307\u0308\u030a\u0323\u0331\u0336"
EMOJI: Final = "🔥💰✅⭐🎁👉💥🚀❤😍"
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_URL: Final = re.compile(r"(?:https?://|www\.)\S+|\b[\w-]+\.(?:com|net|org|ly|me|ru|co|in|uk)\S*")


def _letters(text: str, random: Random, share: float, change: Callable[[str], str]) -> str:
    spans = [match.span() for match in _URL.finditer(text)]
    out, place = [], 0
    for index, letter in enumerate(text):
        while place < len(spans) and index >= spans[place][1]:
            place += 1
        inside = place < len(spans) and index >= spans[place][0]
        if inside or not letter.isalpha() or random.random() >= share:
            out.append(letter)
        else:
            out.append(change(letter))
    return "".join(out)


def homoglyphs(text: str, random: Random) -> str:
    """Look-alikes of other scripts."""
    return _letters(
        text, random, 0.4,
        lambda letter: random.choice(HOMOGLYPHS[letter]) if letter in HOMOGLYPHS else letter,
    )  # fmt: skip


def zero_width(text: str, random: Random) -> str:
    """Invisible characters within words."""
    return _letters(text, random, 0.3, lambda letter: letter + random.choice(ZERO_WIDTH))


def leet(text: str, random: Random) -> str:
    """Digits and signs for letters."""
    return _letters(
        text, random, 0.4,
        lambda letter: random.choice(LEET.get(letter.lower(), letter)),
    )  # fmt: skip


def spaced(text: str, random: Random) -> str:
    """Some words spelled letter by letter."""
    mark = random.choice([" ", " ", ".", "-", "_", "*"])

    def spread(match: re.Match[str]) -> str:
        word = match.group()
        return mark.join(word) if len(word) > 3 and random.random() < 0.5 else word

    return _WORD.sub(spread, text)


def accents(text: str, random: Random) -> str:
    """Combining accents over letters."""
    return _letters(text, random, 0.35, lambda letter: letter + random.choice(ACCENTS))


def repeated(text: str, random: Random) -> str:
    """Stretched letters."""
    return _letters(text, random, 0.12, lambda letter: letter * random.randint(3, 6))


def fullwidth(text: str, random: Random) -> str:
    """Full-width, mathematical or circled letters."""
    kind = random.randrange(4)

    def style(letter: str) -> str:
        if not letter.isascii():
            return letter
        code, upper = ord(letter), letter.isupper()
        if kind == 0:
            return chr(code + 0xFEE0)
        if kind == 1:
            return chr((0x1D400 if upper else 0x1D41A) + code - (65 if upper else 97))
        if kind == 2:
            return chr((0x24B6 if upper else 0x24D0) + code - (65 if upper else 97))
        return chr((0x1D5D4 if upper else 0x1D5EE) + code - (65 if upper else 97))

    return _letters(text, random, 0.9, style)


def emoji_splits(text: str, random: Random) -> str:
    """Emoji between words and within some."""

    def split(match: re.Match[str]) -> str:
        word, draw = match.group(), random.random()
        if draw < 0.15 and len(word) > 3:
            middle = random.randint(1, len(word) - 1)
            return word[:middle] + random.choice(EMOJI) + word[middle:]
        return word + random.choice(EMOJI) if draw < 0.3 else word

    return _WORD.sub(split, text)


def right_to_left(text: str, random: Random) -> str:
    """Direction controls around words."""

    def wrap(match: re.Match[str]) -> str:
        if random.random() < 0.3:
            return "\u202d" + match.group() + "\u202c"
        return match.group()

    return "\u200e" + _WORD.sub(wrap, text)


def entities(text: str, random: Random) -> str:
    """HTML entities for letters."""
    return _letters(
        text, random, 0.3,
        lambda letter: f"&#{ord(letter)};" if random.random() < 0.7 else f"&#x{ord(letter):x};",
    ) if random.random() < 0.8 else html.escape(text)  # fmt: skip


def url_tricks(text: str, random: Random) -> str:
    """Addresses broken up so that filters miss them."""

    def trick(match: re.Match[str]) -> str:
        url, kind = match.group(), random.randrange(4)
        if kind == 0:
            return url.replace(".", "[.]")
        if kind == 1:
            return url.replace("http", "hxxp").replace(".", "(.)")
        if kind == 2:
            return url.replace(".", "(dot)")
        return "".join(c.upper() if random.random() < 0.4 else c for c in url)

    return _URL.sub(trick, text)


def invisible_text(text: str, random: Random) -> str:
    """Invisible tag characters, fillers and blanks."""
    blanks = "".join(chr(0xE0000 + ord(c)) for c in "see you at the meeting tomorrow")
    middle = random.randint(0, len(text))
    return text[:middle] + blanks + "\u3164\u2800" * random.randint(1, 5) + text[middle:]


def capitals(text: str, random: Random) -> str:
    """Changing case."""
    return _letters(text, random, 0.5, lambda letter: letter.swapcase())


ATTACKS: Final[dict[str, Disguise]] = {
    "homoglyphs": homoglyphs,
    "zero width": zero_width,
    "leet": leet,
    "spaced letters": spaced,
    "accents": accents,
    "repeated letters": repeated,
    "styled letters": fullwidth,
    "emoji splits": emoji_splits,
    "direction controls": right_to_left,
    "HTML entities": entities,
    "URL tricks": url_tricks,
    "invisible text": invisible_text,
    "changing case": capitals,
}


def disguise(text: str, random: Random) -> str:
    """One or two disguises at random."""
    names = random.sample(sorted(ATTACKS), 2 if random.random() < 0.25 else 1)
    for name in names:
        text = ATTACKS[name](text, random)
    return text
