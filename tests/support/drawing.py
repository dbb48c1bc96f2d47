"""Draws, for one run, some of the cases: the rest run in ``nox -s tests_rest``, or in other runs.

``nox -s tests`` draws some cases of each large matrix, one storage engine for each case, and leaves
out areas of which nothing has changed. With ``CI`` set, engines and areas run whole.
"""

from __future__ import annotations

import functools
import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

_ROOT = Path(__file__).parents[2]
_WORDS = re.compile(r"[^\W_]+")

AREAS: Final = {
    "tests/spamdetect/": ("spamdetect/", "benchmarks/spam"),
    "tests/dashboard/": (
        "guard/gateway/", "guard/core/", "guard/version.py", "guard/local_gateway.py",
        "guard/local_runs.py", "guard/tls.py", "guard/transport/own_httpx.py",
    ),
}  # fmt: skip
"""Tests that depend on part of the code alone, and that part; tests/guard/test_imports.py has the
rules of imports that make it so."""

_SHARED: Final = (
    "tests/conftest.py", "tests/support/", "pyproject.toml", "requirements.lock", "hatch_build.py",
    "noxfile.py",
)  # fmt: skip


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


def in_part(seed: object, part: int) -> bool:
    """Tell whether this seed is among the one in so many that are drawn."""
    return random.Random(f"{seed}").randrange(part) == 0


@functools.cache
def left_out_areas() -> tuple[str, ...]:
    """Return the folders of tests whose code is as upstream has it: their last run still counts.

    Where nothing at all has changed, or what has is unknown, nothing is left out.
    """
    if os.environ.get("CI"):
        return ()
    changed = _changed()
    return untouched(changed) if changed else ()


def untouched(changed: Sequence[str]) -> tuple[str, ...]:
    """Return the areas that none of the changed files belongs to."""
    return tuple(
        tests
        for tests, code in AREAS.items()
        if not any(path.startswith((tests, *code, *_SHARED)) for path in changed)
    )


def _changed() -> list[str]:
    def git(*arguments: str) -> list[str]:
        done = subprocess.run(
            ["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    try:
        (base,) = git("merge-base", "HEAD", "@{upstream}")
        return git("diff", "--name-only", base) + git("ls-files", "-o", "--exclude-standard")
    except (OSError, subprocess.CalledProcessError):  # no git, no clone, or no upstream
        return []
