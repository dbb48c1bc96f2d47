"""The structure and the concepts of a text, as one list of active features."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from spamdetect.engine.structure import STRUCTURE_NAMES, STRUCTURE_SIZE, bucket_groups

NAMED_EDGES: Final = (1, 2, 3, 4, 6, 9)
_CONCEPTS: Final = STRUCTURE_SIZE + len(NAMED_EDGES) + 1
NAMED: Final = slice(STRUCTURE_SIZE, _CONCEPTS)


def traits(structure: list[int], concepts: Sequence[int]) -> list[int]:
    """The structural features of a text, how many concepts it names, and which ones.

    Args:
        structure: see `spamdetect.engine.structure.structure`.
        concepts: see `spamdetect.engine.concepts.Lexicon.find`.
    """
    on = [*structure, STRUCTURE_SIZE + bisect_right(NAMED_EDGES, len(concepts))]
    on += [_CONCEPTS + concept for concept in concepts]
    return on


def traits_size(concepts: int) -> int:
    """How many traits there are with this many concepts."""
    return _CONCEPTS + concepts


def trait_groups() -> list[slice]:
    """The range of each group's buckets; every text is in one bucket of each group."""
    return [*bucket_groups(), NAMED]


def trait_names(concepts: Sequence[str]) -> list[str]:
    """The name of each trait.

    Args:
        concepts: the names of the concepts.
    """
    named = [f"concepts named:{index}" for index in range(len(NAMED_EDGES) + 1)]
    return [*STRUCTURE_NAMES, *named, *(f"concept:{name}" for name in concepts)]
