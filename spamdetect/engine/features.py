"""Hashed n-grams: from code points to bucket numbers, a whole text at once.

Character n-grams (2 to 5) are rolling hashes over the text with a space at each end; word n-grams
(1 and 2) come from prefix sums of a polynomial, so no loop over words is needed. All arithmetic
is modulo 2^32; the top bits of a multiplicative mix are the bucket.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.characters import Kind, character_tables

Hashes = NDArray[np.uint32]

CHAR_NGRAMS: Final = (2, 3, 4, 5)
SPACE: Final = 32
_L: Final = np.uint32(ord("l"))
_I: Final = np.uint32(ord("i"))
_BASE: Final = np.uint32(0x01000193)
_MIX: Final = np.uint32(0x9E3779B1)
_SALTS: Final = tuple(
    np.uint32(salt) for salt in (0, 0x2545F491, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1)
)
_WORD_SALT: Final = np.uint32(0x7F4A7C15)
_PAIR_SALT: Final = np.uint32(0x3C6EF372)
_PAIR: Final = np.uint32(0xB5297A4D)
_SHIFT_16: Final = np.uint32(16)
_ONE: Final = np.uint32(1)
_WORD_KINDS: Final = np.zeros(32, bool)
_WORD_KINDS[
    [
        Kind.UPPER,
        Kind.LOWER,
        Kind.LETTER,
        Kind.DIGIT,
        Kind.MARK,
        Kind.STYLED,
        Kind.CURRENCY,
        Kind.EMOJI,
        Kind.OTHER,
    ]
] = True


@cache
def in_words() -> NDArray[np.bool_]:
    """For each code point, whether it is part of a word."""
    return _WORD_KINDS[character_tables().kind]


def rolled_hashes(codes: Hashes, longest: int) -> list[Hashes]:
    """Polynomial hashes of all n-grams of 1 to ``longest``; entry ``i`` starts at ``i``."""
    rolled = codes * _BASE
    out = [rolled]
    for size in range(2, longest + 1):
        rolled = rolled[:-1] * _BASE
        rolled += codes[size - 1 :]
        out.append(rolled)
    return out


def folded(codes: Hashes) -> Hashes:
    """The code points with ``l`` as ``i``: ``I`` or ``1`` may stand for either."""
    return np.where(codes == _L, _I, codes)


def ngram_hashes(codes: Hashes) -> list[Hashes]:
    """Unmixed hashes of the character n-grams of each size in `CHAR_NGRAMS`."""
    rolled = rolled_hashes(codes, CHAR_NGRAMS[-1])
    return [rolled[size - 1] + _SALTS[size] for size in CHAR_NGRAMS]


def mix(hashes: Hashes, bits: int) -> Hashes:
    """The bucket of each hash, in place; ``bits`` is the logarithm of the table size."""
    hashes ^= hashes >> _SHIFT_16
    hashes *= _MIX
    hashes >>= np.uint32(32 - bits)
    return hashes


class PowerTable:
    """Powers of the base and of its inverse modulo 2^32, grown when a longer text needs them."""

    __slots__ = ("_forward", "_inverse")

    def __init__(self) -> None:
        self._forward, self._inverse = _powers(4096)

    def get(self, size: int) -> tuple[Hashes, Hashes]:
        """At least ``size`` powers of each."""
        forward, inverse = self._forward, self._inverse
        if forward.size < size:
            forward, inverse = _powers(1 << size.bit_length())
            if size <= 2**21:
                self._forward, self._inverse = forward, inverse
        return forward, inverse


def _powers(size: int) -> tuple[Hashes, Hashes]:
    inverse = np.uint32(pow(int(_BASE), -1, 2**32))
    steps = np.full((2, size), 1, np.uint32)
    steps[0, 1:] = _BASE
    steps[1, 1:] = inverse
    forward, backward = np.multiply.accumulate(steps, axis=1, dtype=np.uint32)
    return forward, backward


_POWERS: Final = PowerTable()


def word_hashes(codes: Hashes) -> tuple[Hashes, NDArray[np.intp]]:
    """Unmixed hashes of the words, and where each starts.

    Args:
        codes: code points that begin and end with a space.
    """
    is_word = in_words()[codes]
    edges = (is_word[1:] != is_word[:-1]).nonzero()[0]
    starts, ends = edges[0::2], edges[1::2]
    return between_hashes(codes, starts, ends), starts


def between_hashes(codes: Hashes, before: NDArray[np.intp], last: NDArray[np.intp]) -> Hashes:
    """Unmixed hashes of the code points after each of ``before`` up to each of ``last``."""
    forward, inverse = _POWERS.get(codes.size)
    sums = np.add.accumulate(codes * forward[: codes.size], dtype=np.uint32)
    hashes = sums[last]
    hashes -= sums[before]
    hashes *= inverse[before]
    return hashes


def pair_hashes(words: Hashes) -> Hashes:
    """Unmixed hashes of neighbouring words."""
    return words[:-1] * _PAIR + words[1:] + _PAIR_SALT


def table_size(bits: int) -> int:
    """How many buckets there are: ``2 ** bits`` for characters, half as many for words."""
    return (1 << bits) + (1 << (bits - 1))


def text_buckets(codes: Hashes, bits: int) -> Hashes:
    """The buckets of all n-grams of one text, with repetitions.

    Args:
        codes: code points that begin and end with a space.
        bits: logarithm of the number of buckets for characters; those for words follow.
    """
    codes = folded(codes)
    words, _ = word_hashes(codes)
    parts = ngram_hashes(codes)
    grams = sum(map(len, parts))
    parts += (words + _WORD_SALT, pair_hashes(words))
    hashes = mix(np.concatenate(parts), bits)
    tokens = hashes[grams:]
    tokens >>= _ONE
    tokens += np.uint32(1 << bits)
    return hashes
