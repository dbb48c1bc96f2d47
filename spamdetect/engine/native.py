"""The compiled inner loops, `spamdetect.engine.speedups`, where they were built and are wanted.

Each of its functions has a twin in Python with numpy, which says what it computes and does the
work where nothing was compiled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.characters import Kind, character_tables, in_ranges
from spamdetect.engine.features import WORD_KINDS
from spamdetect.engine.naming import BETWEEN_WORDS, DENSE_RANGES
from spamdetect.engine.odd import MARKS, ODD
from spamdetect.engine.shape import BLANK, LETTER

VERSION: Final = 2
"""Of what the compiled functions take and give, as in `module.c`."""


def wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the compiled parts may be used: unless ``SPAMDETECT_SPEEDUPS`` is 0.

    Args:
        environ: Environment to read instead of the process's own.
    """
    env = os.environ if environ is None else environ
    return env.get("SPAMDETECT_SPEEDUPS", "").strip() != "0"


def _load() -> ModuleType | None:
    if not wanted():
        return None
    try:
        from spamdetect.engine import speedups
    except ImportError:
        return None
    # An editable installation may hold a module that was compiled from older sources.
    return speedups if getattr(speedups, "VERSION", None) == VERSION else None


compiled = _load()
"""The module, or None where Python does the work."""


def arrays(*parts: NDArray[Any]) -> Any:
    """What the compiled functions take for these arrays; None where there are none."""
    return None if compiled is None else compiled.Arrays(*map(np.ascontiguousarray, parts))


@cache
def tables() -> Any:
    """The kind, script, word-break class and roles of each code point.

    The roles are bits: part of a word for the classifier, blank, digit, letter, part of a word for
    the lexicon, of a script that is written without spaces, mark, removed or replaced.
    """
    found = character_tables()
    of_kind = np.zeros(256, np.uint8)
    for bit, kinds in enumerate((WORD_KINDS, BLANK, np.arange(32) == Kind.DIGIT, LETTER)):
        of_kind[:32][kinds] |= 1 << bit
    roles = of_kind[found.kind]
    roles[~in_ranges(BETWEEN_WORDS)] |= 16
    roles[in_ranges(DENSE_RANGES)] |= 32
    roles[in_ranges(MARKS)] |= 64
    roles[in_ranges(ODD)] |= 128
    return arrays(found.kind, found.script, found.word_break, roles)
