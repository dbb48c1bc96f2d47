"""Reading the lexicon of concepts: ``concept<TAB>language<TAB>pattern|pattern``, line by line."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

from spamdetect.engine.concepts import Lexicon, words_of
from spamdetect.engine.normalise import normalise
from spamdetect.training.dataset import DataError

FILE_NAME = "concepts.tsv"


def shipped() -> Lexicon:
    """The lexicon of this package."""
    text = resources.files("spamdetect.engine").joinpath(FILE_NAME).read_text("utf-8")
    return read(text.splitlines())


def read(lines: Iterable[str]) -> Lexicon:
    """A lexicon from its lines; empty ones and those that begin with ``#`` are comments.

    Raises:
        DataError: a line does not have three columns; the message says which.
    """
    patterns: dict[str, dict[str, None]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        columns = line.rstrip("\n").split("\t")
        if len(columns) != 3:
            raise DataError(f"the lexicon, line {number}: not three columns")
        concept, _, words = columns
        found = patterns.setdefault(concept, {})
        for pattern in words.split("|"):
            if normalised := normalised_pattern(pattern):
                found[normalised] = None
    return Lexicon({concept: list(found) for concept, found in sorted(patterns.items())})


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
