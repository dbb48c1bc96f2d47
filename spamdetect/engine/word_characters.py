"""Which characters make up the words that the lexicon looks up."""

from __future__ import annotations

import re
from typing import Final

from spamdetect.engine.characters import class_of

# White space, signs, emoji and the markers of the normalised text: the first and the last of each
# range.
BETWEEN_WORDS: Final = (
    "\x00/", ":@", "[`", "{\xa9", "\xab\xb4", "\xb6\xb9", "\xbb\xbf", "\xd7\xd7", "\xf7\xf7",
    "\u02b9\u02df", "\u055a\u055f", "\u0589\u058a", "\u05be\u05be", "\u05c0\u05c0",
    "\u05c3\u05c3", "\u05f3\u05f4", "\u0609\u060d", "\u061b\u061f", "\u066a\u066d",
    "\u06d4\u06d4", "\u0700\u070d", "\u0964\u0965", "\u0970\u0970", "\u0df4\u0df4",
    "\u0e4f\u0e4f", "\u0e5a\u0e5b", "\u0f04\u0f14", "\u104a\u104f", "\u10fb\u10fb",
    "\u1360\u1368", "\u1680\u1680", "\u17d4\u17da", "\u2000\u2bff", "\u3000\u3004",
    "\u3008\u3030", "\ue000\uf8ff", "\ufd3e\ufd3f", "\ufe10\ufe6f", "\uff00\uff0f",
    "\uff1a\uff20", "\uff3b\uff40", "\uff5b\uff65", "\U0001f000\U0001ffff",
)  # fmt: skip
# Thai, Lao, Tibetan, Burmese, Khmer, Kana and Han are written without spaces between words.
DENSE_RANGES: Final = (
    "\u0e01\u0eff", "\u0f00\u0fff", "\u1000\u109f", "\u1780\u17ff", "\u3005\u3007",
    "\u3040\u30ff", "\u3400\u9fff", "\uf900\ufaff", "\U00020000\U0003ffff",
)  # fmt: skip


WORD: Final = re.compile(f"[^{class_of(BETWEEN_WORDS)}]+")
DENSE: Final = re.compile(f"[{class_of(DENSE_RANGES)}]")
DENSE_RUN: Final = re.compile(f"[{class_of(DENSE_RANGES)}]+(?: [{class_of(DENSE_RANGES)}]+)*")
