"""The most tokens that a text can have, by the kinds of its bytes.

The factors of ASCII are fitted by ``benchmarks/input_factors.py`` over nine tokenisers (o200k and
cl100k of OpenAI, Claude's published one, Gemini's and Gemma's, those of DeepSeek v3, Llama 3,
Qwen 3, and Mistral's tekken; the dearest counts for each text): prose in 56 languages, source
code, JSON, logs, CSV, tables, HTML, SQL, LaTeX, numbers, hexadecimal, UUIDs, base64, keys, emoji,
symbols, and random letters, digits and punctuation. Those of vowels, backslashes and single
characters were raised for texts beside these (2026-11;
``benchmarks/results/input_factors.json``).
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from importlib import resources
from typing import Final

import msgspec

SHORT_BYTES: Final = 64
"""Up to this size a text is bounded by one token for each byte, which no tokeniser exceeds."""

_LEAST: Final = SHORT_BYTES // 4

FACTORS: Final = {
    "vowels": 0.55,
    "consonants": 0.728,
    "capitals": 0.825,
    "digits": 1.489,
    "blanks": 0.036,
    "quotes": 0.0,
    "punctuation": 0.753,
    "backslashes": 0.25,
    "first bytes": 0.25,
}
"""Tokens for each byte of a kind."""

_VOWEL_CONSONANT: Final = 0.5625
"""Tokens less for each vowel that a consonant follows: words have them, random letters do not."""

_BEYOND: Final = 4
"""Tokens of a character beyond the basic plane: one for each byte."""

_CHARACTERS: Final = "characters.bin"
"""How many tokens each character of the basic plane has alone: a byte each, compressed."""

_SCALE: Final = 16
"""Factors are rounded up to sixteenths, so that a byte's weight is a byte."""


def kind(byte: int) -> str:
    """Return the kind of a byte; "" beyond ASCII, where characters count and not bytes."""
    if byte >= 0x80:
        return "first bytes" if byte >= 0xC0 else ""
    char = chr(byte)
    if char.isalpha():
        return "vowels" if char in "aeiou" else "consonants" if char.islower() else "capitals"
    if char.isdigit():
        return "digits"
    return {" ": "blanks", '"': "quotes", "\\": "backslashes"}.get(char, "punctuation")


_PAIRED: Final = frozenset({"vowels", "consonants", "blanks", "first bytes", "punctuation"})


def _weights() -> bytes:
    weights = bytearray(256)
    for byte in range(256):
        weights[byte] = math.ceil(FACTORS.get(kind(byte), 0) * _SCALE)
    # The kinds whose pairs are counted need weights of their own.
    own = {weights[ord(first)] for first in "et é,"}
    for byte in range(256):
        if kind(byte) not in _PAIRED and weights[byte] in own:
            weights[byte] += 1
    return bytes(weights)


@functools.cache
def _characters() -> str:
    """Return how many tokens each character of the basic plane has alone, as characters."""
    table = resources.files("guard.core.bounds").joinpath(_CHARACTERS).read_bytes()
    return zlib.decompress(table).decode("latin-1")


_WEIGHTS: Final = _weights()
_PAIR, _BEFORE_OTHER, _PUNCTUATION = (
    bytes(_WEIGHTS[ord(char)] for char in pair) for pair in ("et", " é", ",")
)

_PAIRS_FROM_BYTES: Final = 1024
"""In less text, counting the pairs takes more time than what they save is worth."""

_QUOTE_WEIGHT: Final = 6
_BACKSLASH_WEIGHT: Final = 14
_LINE_WEIGHT: Final = 12
_DEEPER_WEIGHT: Final = 24
_ASCII: Final = bytes(range(128))
_PAIR_WEIGHT: Final = int(_VOWEL_CONSONANT * _SCALE)

_NEWER_CLAUDE: Final = re.compile(r"claude-(?:opus-4[-.][7-9]|[a-z]+-[5-9])", re.IGNORECASE)
"""Claude's tokeniser since Opus 4.7 makes up to 1.35 times as many tokens of the same text
(https://platform.claude.com/docs/en/about-claude/models/whats-new-claude-4-7, 2026-11)."""


def text_tokens(model: str | None, body: bytes) -> int:
    """Return the most tokens that a text, or the JSON around it, can have for a model.

    >>> text_tokens("m", b"To be, or not to be." * 100) < 1200 < text_tokens("m", b"3af09c1e" * 250)
    True
    """
    size = len(body)
    is_ascii = body.isascii()
    if size <= SHORT_BYTES and is_ascii:
        return size
    if b"\\" in body and b"\\u" in body:  # a search for one byte is many times as fast
        body = _unescaped(body)
        size, is_ascii = len(body), body.isascii()
    weighed = body.translate(_WEIGHTS)
    total = _sum(weighed)
    if size > _PAIRS_FROM_BYTES:
        total -= weighed.count(_PAIR) * _PAIR_WEIGHT
    if b"\\" in body:
        # A model reads half of the backslashes: JSON in JSON has many.
        total += body.count(b'\\"') * _QUOTE_WEIGHT + body.count(b"\\\\") * _BACKSLASH_WEIGHT
        total += body.count(b"\\n") * _LINE_WEIGHT - body.count(b"\\" * 4) * _DEEPER_WEIGHT
    tokens = -(-total // _SCALE)
    if weighed.count(_PUNCTUATION) * 5 > size * 2:
        tokens = size
    blanks = body.count(b" ")
    if blanks * 3 > size:  # single characters, or indentation, whose blanks are counted together
        words = blanks - body.count(b"  ") - body.count(b"    ")
        tokens += words // 2
    # Without `min` and `max`, which take longer than the rest of this line.
    if not is_ascii:
        others = body.translate(None, _ASCII)
        size -= len(others)
        tokens = (min(tokens, size)) + beyond_ascii(others)
        tokens += weighed.count(_BEFORE_OTHER)
    elif tokens > size:
        tokens = size
    if _makes_more(model):
        tokens = -(-tokens * 135 // 100)
    return max(_LEAST, tokens)


def _sum(weights: bytes) -> int:
    """Return the sum of bytes."""
    if len(weights) <= _CHUNK:
        return zlib.adler32(weights, 0) & 0xFFFF
    view = memoryview(weights)
    chunks = range(0, len(weights), _CHUNK)
    return sum(zlib.adler32(view[at : at + _CHUNK], 0) & 0xFFFF for at in chunks)


_CHUNK: Final = 65_520 // 32
"""So many bytes cannot exceed the modulus of Adler-32, whose lower half is then their sum."""


def beyond_ascii(encoded: bytes) -> int:
    """Return the most tokens of characters beyond ASCII."""
    others = encoded.decode("utf-8", "replace")
    # What the table does not reach stays as it is, and is no Latin-1.
    tokens = others.translate(_characters()).encode("latin-1", "ignore")
    return _sum(tokens) + (len(others) - len(tokens)) * _BEYOND


def _unescaped(body: bytes) -> bytes:
    """Return JSON with characters in place of their escapes: that is what the model reads."""
    try:
        return msgspec.json.encode(msgspec.json.decode(body))
    except (ValueError, RecursionError):
        return body


@functools.lru_cache(4096)
def _makes_more(model: str | None) -> bool:
    return model is not None and _NEWER_CLAUDE.search(model) is not None
