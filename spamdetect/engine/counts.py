"""Counts over a text as received: its characters by kind, and its main script."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spamdetect.engine.characters import KINDS, entries


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
    kinds = np.bincount(np.frombuffer(entries("kind", text), np.uint8), minlength=KINDS)
    return Counts(kinds.tolist(), _main_script(entries("script", text).translate(None, b"\0")))


def _main_script(letters: bytes) -> int:
    if not letters or letters.count(letters[0]) == len(letters):  # one script, as in most texts
        return letters[0] if letters else 0
    return int(np.bincount(np.frombuffer(letters, np.uint8)).argmax())
