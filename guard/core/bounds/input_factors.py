"""The most tokens that a text can have, by the kinds of its bytes.

The factors are fitted by ``benchmarks/input_factors.py`` as an upper 99.9 % over nine tokenisers
(o200k and cl100k of OpenAI, Claude's published one, Gemini's and Gemma's, those of DeepSeek v3,
Llama 3, Qwen 3, and Mistral's tekken; the dearest counts for each text), on 2,800 request bodies of
1 to 12 kB: prose in 56 languages, source code, JSON, logs, CSV, tables, HTML, SQL, LaTeX, numbers,
hexadecimal, UUIDs, base64, keys, emoji, symbols, and random letters, digits and punctuation
(2026-11; ``benchmarks/results/input_factors.json``).
"""

from __future__ import annotations

import functools
import re
import zlib
from typing import Final

import msgspec

SHORT_BYTES: Final = 64
"""Up to this size a text is bounded by one token for each byte, which no tokeniser exceeds."""

_LEAST: Final = SHORT_BYTES // 4

FACTORS: Final = {
    "vowels": 0.468,
    "consonants": 0.728,
    "capitals": 0.825,
    "digits": 1.489,
    "blanks": 0.036,
    "quotes": 0.0,
    "punctuation": 0.753,
    "backslashes": 0.0,
    "accented Latin": 1.106,
    "other Latin": 1.693,
    "Greek and Cyrillic": 1.321,
    "Hebrew, Arabic and others": 2.159,
    "Indic and Thai": 3.269,
    "other scripts": 3.031,
    "symbols": 1.683,
    "kana and Han": 1.218,
    "Hangul": 1.473,
    "beyond the basic plane": 3.995,
}
"""Tokens for each byte of a kind; a character beyond ASCII counts by its first byte."""

_VOWEL_CONSONANT: Final = 0.6
"""Tokens less for each vowel that a consonant follows: words have them, random letters do not."""

_SCALE: Final = 16
"""Factors are rounded up to sixteenths, so that a byte's weight is a byte."""


def kind(byte: int) -> str:
    """Return the kind of a byte, or "" for one that counts with the one before."""
    if byte >= 0x80:
        return next((name for first, name in _LEADS if byte >= first), "")
    char = chr(byte)
    if char.isalpha():
        return "vowels" if char in "aeiou" else "consonants" if char.islower() else "capitals"
    if char.isdigit():
        return "digits"
    return {" ": "blanks", '"': "quotes", "\\": "backslashes"}.get(char, "punctuation")


_LEADS: Final = (
    (0xF0, "beyond the basic plane"),
    (0xEE, "other scripts"),
    (0xEA, "Hangul"),
    (0xE3, "kana and Han"),
    (0xE2, "symbols"),
    (0xE1, "other scripts"),
    (0xE0, "Indic and Thai"),
    (0xD2, "Hebrew, Arabic and others"),
    (0xCE, "Greek and Cyrillic"),
    (0xC4, "other Latin"),
    (0xC0, "accented Latin"),
)
"""The smallest first byte of each kind, in UTF-8."""


def _weights() -> bytes:
    weights = bytearray(256)
    for byte in range(256):
        factor = FACTORS.get(kind(byte), 0.0)
        weights[byte] = min(255, -int(-factor * _SCALE // 1))
    # The two kinds whose pairs are counted need weights of their own.
    own = {weights[ord("e")], weights[ord("t")]}
    for byte in range(256):
        if kind(byte) not in ("vowels", "consonants") and weights[byte] in own:
            weights[byte] += 1
            while weights[byte] in own:
                weights[byte] += 1
    return bytes(weights)


_WEIGHTS: Final = _weights()
_PAIR: Final = bytes((_WEIGHTS[ord("e")], _WEIGHTS[ord("t")]))
_CHUNK: Final = 65_520 // max(_WEIGHTS)
"""So many bytes cannot exceed the modulus of Adler-32, whose lower half is then their sum."""

_PAIRS_FROM_BYTES: Final = 1024
"""In less text, counting the pairs takes more time than what they save is worth."""

_QUOTE_WEIGHT: Final = 10
_BACKSLASH_WEIGHT: Final = 8
_RARE: Final = re.compile(
    "[\u20c0-\u20ff\u21c0-\u21ff\u22c0-\u243f\u2480-\u24ff\u2680-\u26ff\u27c0-\u2fff\u3100-\u4dff"
    "\ua000-\uabff\ud780-\ud7ff]"
)
"""Characters that share their first byte with common ones and have a token for each byte: rare
symbols, enclosed and rare Han characters, Yi, and the scripts around them."""

_RARE_WEIGHT: Final = 29
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
    if size <= SHORT_BYTES:
        return size
    if b"\\" in body and b"\\u" in body:  # a search for one byte is many times as fast
        body = _unescaped(body)
        size = len(body)
    weighed = body.translate(_WEIGHTS)
    if size <= _CHUNK:
        total = zlib.adler32(weighed, 0) & 0xFFFF
    else:
        view = memoryview(weighed)
        total = sum(
            zlib.adler32(view[at : at + _CHUNK], 0) & 0xFFFF for at in range(0, size, _CHUNK)
        )
    if size > _PAIRS_FROM_BYTES:
        total -= weighed.count(_PAIR) * _PAIR_WEIGHT
    if b"\\" in body:
        # A model reads half of the backslashes: JSON in JSON has many.
        total += body.count(b'\\"') * _QUOTE_WEIGHT + body.count(b"\\\\") * _BACKSLASH_WEIGHT
    if not body.isascii():
        others = body.translate(None, _ASCII).decode("utf-8", "ignore")
        total += len(_RARE.findall(others)) * _RARE_WEIGHT
    tokens = -(-total // _SCALE)
    if _makes_more(model):
        tokens = -(-tokens * 135 // 100)
    # Without `min` and `max`, which take longer than the rest of this line.
    return size if tokens > size else max(tokens, _LEAST)


def _unescaped(body: bytes) -> bytes:
    """Return JSON with characters in place of their escapes: that is what the model reads."""
    try:
        return msgspec.json.encode(msgspec.json.decode(body))
    except (ValueError, RecursionError):
        return body


@functools.lru_cache(4096)
def _makes_more(model: str | None) -> bool:
    return model is not None and _NEWER_CLAUDE.search(model) is not None
