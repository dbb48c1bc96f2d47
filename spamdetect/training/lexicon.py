"""Reading the lexicon of concepts: ``concept<TAB>language<TAB>pattern|pattern``, line by line."""

from __future__ import annotations

from collections.abc import Container, Iterable
from importlib import resources
from typing import Final

from spamdetect.engine import classifier, language
from spamdetect.engine.concepts import Lexicon, words_of
from spamdetect.engine.normalise import normalise
from spamdetect.training.dataset import DataError

FILE_NAME: Final = "concepts.tsv"
# What the detector calls a language of the lexicon. English forms count in every text, but for
# those that other languages use for something else (`benchmarks.spam.forms`).
_WRITTEN_AS: Final = {
    "en": ("",),
    "en-only": ("en",),
    "no": ("nb", "nn"),
    "zh-Hant": ("zh",),
}


def shipped() -> Lexicon:
    """The lexicon of this package; a wheel holds it in the shipped model alone."""
    file = resources.files("spamdetect.engine").joinpath(FILE_NAME)
    if not file.is_file():
        return classifier.load().lexicon
    return read(file.read_text("utf-8").splitlines(), language.load().languages)


def read(lines: Iterable[str], detected: Container[str]) -> Lexicon:
    """A lexicon from its lines; empty ones and those that begin with ``#`` are comments.

    Args:
        lines: the lines.
        detected: the languages that the detector knows; forms of others count in every text.

    Raises:
        DataError: a line does not have three columns; the message says which.
    """
    cells: dict[tuple[str, str], dict[str, None]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        columns = line.rstrip("\n").split("\t")
        if len(columns) != 3:
            raise DataError(f"the lexicon, line {number}: not three columns")
        concept, code, words = columns
        found = dict.fromkeys(filter(None, map(normalised_pattern, words.split("|"))))
        for known in _WRITTEN_AS.get(code, (code,)):
            cells.setdefault((concept, known if known in detected else ""), {}).update(found)
    return Lexicon({cell: list(found) for cell, found in sorted(cells.items())})


def normalised_pattern(pattern: str) -> str:
    """A pattern as it appears in normalised texts; empty if no letter of it is left."""
    out: list[str] = []
    for word in pattern.split():
        core = word.strip("*")
        parts = words_of(normalise(core).marked)
        if not parts:
            continue
        if word.startswith("*"):
            parts[0] = f"*{parts[0]}"
        if word.endswith("*"):
            parts[-1] = f"{parts[-1]}*"
        out += parts
    return " ".join(out) if any(letter.isalpha() for letter in "".join(out)) else ""
