"""What a key's lists and feedback are compared with: the words and shingles of a text.

Words are taken from the text as the engine normalises it, so a disguise that the engine sees
through hides nothing from a list either. Links, names and numbers are in :mod:`spamdetect.links`.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Final

from spamdetect.engine.normalise import normalise

SKETCH_SIZE: Final = 64
_SHINGLE_WORDS: Final = 3
# A run of letters and digits is one word; where a script has no spaces, each character is.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs and other marks that belong to the letter before them.
_MARKS: Final = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0dff"
_WORD: Final = re.compile(
    rf"<(?:url|mail|mention)>|[{_UNSPACED}]|(?:(?![{_UNSPACED}])(?:[^\W_]|[{_MARKS}]))+"
)
_INVISIBLE: Final = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")


def words_of(processed_text: str) -> list[str]:
    """The words of a normalised text, links, mail addresses and mentions as one word each."""
    return _WORD.findall(processed_text)


def phrase_words(phrase: str) -> list[str]:
    """The words of a phrase as they would stand in a normalised text."""
    return words_of(normalise(phrase).text)


def plain(name: str) -> str:
    """A name or an address for comparing: without case, Unicode variants, invisible characters."""
    return unicodedata.normalize("NFKC", _INVISIBLE.sub("", name)).casefold().strip()


def sketch_of(processed_text: str, hosts: tuple[str, ...]) -> tuple[int, ...]:
    """The smallest hashes of a text's shingles (a bottom-k sketch), none of an empty text.

    A shingle is a run of three words, the whole text if it has fewer, or a host that it links to.
    """
    words = words_of(processed_text)
    if not words:
        return ()
    runs = range(max(1, len(words) - _SHINGLE_WORDS + 1))
    shingles = {" ".join(words[at : at + _SHINGLE_WORDS]) for at in runs}
    hashes = {_hash(shingle) for shingle in shingles}
    hashes.update(_hash(f"host {host}") for host in hosts)
    return tuple(sorted(hashes)[:SKETCH_SIZE])


def hashed(identifiers: tuple[str, ...]) -> tuple[int, ...]:
    """What stands in feedback for the links, names and numbers of a text."""
    return tuple(sorted(map(_hash, identifiers)))


def similarity(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Estimate what share of their shingles two texts have in common, from their sketches."""
    first, second = set(one), set(other)
    smallest = sorted(first | second)[:SKETCH_SIZE]
    if not smallest:
        return 0.0
    return sum(each in first and each in second for each in smallest) / len(smallest)


def _hash(shingle: str) -> int:
    return int.from_bytes(hashlib.blake2b(shingle.encode(), digest_size=6).digest())
