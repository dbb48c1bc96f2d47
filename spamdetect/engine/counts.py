"""Counts over a text as received: its characters by kind, and its main script."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spamdetect.engine.characters import KINDS, SCRIPTS, character_tables, code_points


class Counts(NamedTuple):
    """What was counted.

    Attributes:
        kinds: how many characters of each `Kind`.
        script: the script of most letters, as an index into `SCRIPTS`; 0 without letters.
    """

    kinds: list[int]
    script: int


def count(text: str) -> Counts:
    """Count the characters of a text."""
    tables = character_tables()
    codes = code_points(text)
    kinds = np.bincount(tables.kind[codes], minlength=KINDS)
    scripts = np.bincount(tables.script[codes], minlength=len(SCRIPTS))
    scripts[0] = 0
    return Counts(kinds.tolist(), int(scripts.argmax()))
