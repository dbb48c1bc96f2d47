"""Characters that normalisation removes or replaces: controls, invisible ones, accents and others.

Each range is its first and its last character.
"""

from __future__ import annotations

import re
from typing import Final

from spamdetect.engine.characters import class_of
from spamdetect.engine.confusables import LOOKALIKES

_UNWANTED: Final = (
    "\x00\x08", "\x0e\x1f", "\x7f\x84", "\x86\x9f", "\ud800\udfff", "\ue000\uf8ff",
)  # fmt: skip
_INVISIBLE: Final = (
    "\xad\xad", "\u034f\u034f", "\u061c\u061c", "\u115f\u115f", "\u1160\u1160", "\u17b4\u17b4",
    "\u17b5\u17b5", "\u180b\u180f", "\u200b\u200f", "\u202a\u202e", "\u2060\u206f",
    "\u2800\u2800", "\u3164\u3164", "\ufe00\ufe0f", "\ufeff\ufeff", "\uffa0\uffa0",
    "\ufff9\ufffb", "\U0001d173\U0001d17a", "\U000e0000\U000e0fff", "\U000f0000\U0010ffff",
)  # fmt: skip
_ACCENTS: Final = ("\u0300\u036f",)
# The marks of Thai, Indic and other scripts, which stay unless there are too many in a row.
MARKS: Final = (
    "\u0483\u0489", "\u0591\u05c7", "\u0610\u061a", "\u064b\u065f", "\u0670\u0670",
    "\u06d6\u06ed", "\u0711\u074a", "\u07a6\u07b0", "\u07eb\u07f3", "\u0816\u082d",
    "\u0859\u085b", "\u0898\u08ff", "\u093a\u094f", "\u0e31\u0e4e", "\u0eb1\u0ece",
    "\u0f18\u0fc6", "\u135d\u135f", "\u1ab0\u1aff", "\u1dc0\u1dff", "\u20d0\u20ff",
    "\u2de0\u2dff", "\u302a\u302f", "\u3099\u3099", "\u309a\u309a", "\ua66f\ua69f",
    "\ua8e0\ua8f1", "\ufe20\ufe2f",
)  # fmt: skip

UNWANTED_CHARACTER: Final = re.compile(f"[{class_of(_UNWANTED)}]")
INVISIBLE_RUN: Final = re.compile(f"[{class_of(_INVISIBLE)}]+")
ACCENT_RUN: Final = re.compile(f"[{class_of(_ACCENTS)}]+")
# One character class is searched several times faster than three alternatives.
TO_CLEAN: Final = re.compile(f"[{class_of((*_UNWANTED, *_INVISIBLE, *_ACCENTS))}]")
# The whole range beyond the BMP: listed in a class, its characters are compared one by one.
TO_FINISH: Final = re.compile(
    TO_CLEAN.pattern[:-1]
    + "".join(chr(code) for code in LOOKALIKES if code < 0x10000)
    + "\U00010000-\U0010ffff]"
)
TOO_MANY_MARKS: Final = re.compile(f"([{class_of(MARKS)}]{{30}})[{class_of(MARKS)}]+")
