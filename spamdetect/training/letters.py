"""Long messages made of notices: mails with quotes, several subjects and a signature.

Data sets hold long messages in few languages only. Without these, whatever is long, has many
paragraphs and names many concepts looks like an advertisement in all other languages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Final

from spamdetect.training.dataset import SpamRow

LETTER: Final = "letter"  # the kind of these texts
PER_FOLD: Final = {False: 8, True: 3}  # ham and spam of each language
LEAST_PIECES, MOST_PIECES = 3, 12
WORDS_PER_LINE: Final = 11
_SENTENCE: Final = re.compile(r"(?<=[.!?。！？])\s+")
_CONSONANTS: Final = "bdgklmnprstv"
_VOWELS: Final = "aeiou"
_TLDS: Final = ("com", "edu", "net", "org")


def letters(rows: Sequence[SpamRow], seed: int) -> list[SpamRow]:
    """Letters of made notices; each is composed of notices of one language, label and fold.

    Args:
        rows: the notices.
        seed: seeds the choice of notices and the form of the letters.
    """
    groups: dict[tuple[str, bool, int], list[SpamRow]] = defaultdict(list)
    for row in rows:
        groups[row.language, row.is_spam, row.fold].append(row)
    found = []
    for (language, is_spam, fold), members in sorted(groups.items()):
        random = Random(f"{seed}:letters:{language}:{is_spam}:{fold}")
        for _ in range(PER_FOLD[is_spam]):
            text = _letter([row.text for row in members], random, answers=not is_spam)
            found.append(SpamRow(text, is_spam, members[0].source, fold, language, LETTER))
    return found


def _letter(texts: Sequence[str], random: Random, *, answers: bool) -> str:
    """One letter of pieces of texts; ``answers`` may quote, advertisements do not."""
    pieces = [
        _piece(random.choice(texts), random)
        for _ in range(random.randint(LEAST_PIECES, MOST_PIECES))
    ]
    name, host = _word(random), f"{_word(random)}.{random.choice(_TLDS)}"
    quotes = answers and random.random() < 0.5
    lines = []
    if random.random() < 0.5:
        prefix = "Re: " if answers and random.random() < 0.6 else ""
        lines += [prefix + pieces[0][:60], ""]
    if quotes:
        lines.append(f"{name.title()} <{name}@{host}>:")
    for number, piece in enumerate(pieces):
        mark = "> " if quotes and number % 2 == 0 else ""
        lines += [mark + line for line in _wrapped(piece, random)]
        lines += [""] * (random.random() < 0.4)
    if random.random() < 0.6:
        lines += ["", "-- ", name.title(), f"{name}@{host}"]
    if random.random() < 0.4:
        lines.append(f"http://www.{host}/{name}{random.choice(['', '/list', '/?id=12'])}")
    return "\n".join(lines)


def _piece(text: str, random: Random) -> str:
    """One to three sentences of a text."""
    sentences = _SENTENCE.split(text)
    first = random.randrange(len(sentences))
    return " ".join(sentences[first : first + random.randint(1, 3)])


def _wrapped(piece: str, random: Random) -> list[str]:
    """The lines of a piece, now and then as short as mail programs make them."""
    words = piece.split(" ")
    if len(words) <= WORDS_PER_LINE or random.random() < 0.4:
        return [piece]
    starts = range(0, len(words), WORDS_PER_LINE)
    return [" ".join(words[start : start + WORDS_PER_LINE]) for start in starts]


def _word(random: Random) -> str:
    """A word that can be a name or a host."""
    return "".join(random.choice(_CONSONANTS) + random.choice(_VOWELS) for _ in range(3))
