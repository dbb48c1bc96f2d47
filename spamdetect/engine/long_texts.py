"""Long texts are judged by their parts too: one bad paragraph must not drown in ordinary ones.

A part is a header, or as many paragraphs as make a short message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

LONG: Final = 2500
"""Longer texts are judged by their parts."""
_LEAST: Final = 300  # shorter paragraphs are put together
_MOST: Final = 1200  # longer ones are cut
_BETWEEN: Final = re.compile(r"\n\s*\n")


def parts(text: str) -> list[str]:
    """The parts of a text; none if it is not a long one."""
    if len(text) <= LONG:
        return []
    found: list[str] = []
    part = ""
    for paragraph in _BETWEEN.split(text):
        for piece in _cut(paragraph):
            part = f"{part}\n\n{piece}" if part else piece
            if len(part) >= _LEAST:
                found.append(part)
                part = ""
    return [*found, part] if part.strip() else found


def _cut(paragraph: str) -> Iterator[str]:
    start = 0
    while len(paragraph) - start > _MOST:
        least, end = start + _MOST // 2, start + _MOST
        cut = max(paragraph.rfind("\n", least, end), paragraph.rfind(" ", least, end), -1)
        cut = end if cut < 0 else cut
        yield paragraph[start:cut]
        start = cut
    yield paragraph[start:]


def with_parts(whole: float, each: Sequence[float]) -> float:
    """The log-odds of a text from those of the whole and those of its parts.

    The mean of both readings: that the whole is spam, or that one part is. That it is this very
    part is less likely the more there are.
    """
    return (whole + max(each) - math.log(len(each))) / 2.0 if each else whole
