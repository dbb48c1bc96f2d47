"""Draws, for one run, some cases of each large matrix: the rest run in ``nox -s tests_rest``."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import attrs

_WORDS = re.compile(r"[^\W_]+")


@attrs.frozen
class Case:
    """One case of a matrix.

    Attributes:
        name: its id.
        places: which value it has on each axis of the matrix.
    """

    name: str
    places: Mapping[str, int]


def draw(cases: Sequence[Case], number: int, seed: object) -> set[int]:
    """Draw cases so that every class of them is among those drawn.

    A class is a value of a short axis, or a word that so many ids share that chance alone would
    draw it about once. What is left of the number is drawn evenly from all over the matrix.

    Args:
        cases: all of them, in order.
        number: how many to draw; more are drawn if there are more classes.
        seed: of this run; the same one draws the same cases.

    Returns:
        The indices of the cases drawn.
    """
    if len(cases) <= number:
        return set(range(len(cases)))
    chance = random.Random(f"{seed}")
    classes = _classes(cases, number)
    missing = set().union(*classes)
    order = list(range(len(cases)))
    chance.shuffle(order)
    drawn: set[int] = set()
    while missing:
        best = max(order, key=lambda index: len(classes[index] & missing))
        drawn.add(best)
        missing -= classes[best]
    while len(drawn) < number:
        part = (len(cases) + number - 1) // number
        free = [index for index in order if index not in drawn]
        taken = {index // part for index in drawn}
        drawn.add(next((index for index in free if index // part not in taken), free[0]))
    return drawn


def _classes(cases: Sequence[Case], number: int) -> list[set[Hashable]]:
    """Return the classes that each case belongs to."""
    values = {axis: {case.places[axis] for case in cases} for axis in cases[0].places}
    short = [axis for axis, found in values.items() if 1 < len(found) <= number]
    words = [set(_WORDS.findall(case.name)) for case in cases]
    shared = Counter(word for each in words for word in each)
    least = len(cases) / number
    return [
        {(axis, case.places[axis]) for axis in short}
        | {word for word in own if shared[word] >= least}
        for case, own in zip(cases, words, strict=True)
    ]
