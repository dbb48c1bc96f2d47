"""A small network over traits: judges a text by content and structure, in any language."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

Sums = NDArray[np.int64]


@attrs.frozen
class Network:
    """One hidden layer of rectified linear units plus a direct path, over the active traits.

    Attributes:
        weights: the eight-bit weights of each trait: to each hidden unit, then to the output,
            and last in the linear classifier, which also reads the n-grams.
        scale: the value of one unit of each column of ``weights``.
        bias: the constant added to each column.
        output: the weight of each hidden unit.
    """

    weights: NDArray[np.int8]
    scale: NDArray[np.float64]
    bias: NDArray[np.float64]
    output: NDArray[np.float64]

    def sums(self, on: list[int]) -> Sums:
        """The sum of each column over the active traits."""
        found: Sums = self.weights[on].sum(axis=0, dtype=np.int64)
        return found

    def sums_many(self, traits: Sequence[list[int]]) -> Sums:
        """`sums` for each text, row by row; every text has at least one trait."""
        starts = np.cumsum([0, *map(len, traits[:-1])])
        joined = [trait for on in traits for trait in on]
        found: Sums = np.add.reduceat(self.weights[joined], starts, axis=0, dtype=np.int64)
        return found

    def scores(self, sums: Sums) -> tuple[float, float]:
        """The network's score and the linear classifier's score of the traits, from sums."""
        reached = sums * self.scale + self.bias
        meaning = np.maximum(reached[:-2], 0.0) @ self.output + reached[-2]
        return float(meaning), float(reached[-1])

    def scores_many(self, sums: Sums) -> tuple[list[float], list[float]]:
        """`scores` for each row."""
        reached = sums * self.scale + self.bias
        meaning = np.maximum(reached[:, :-2], 0.0) @ self.output + reached[:, -2]
        return meaning.tolist(), reached[:, -1].tolist()

    def losses(self, on: list[int]) -> list[tuple[float, float]]:
        """What both scores lose without each active trait."""
        sums = self.sums(on)
        meaning, structural = self.scores(sums)
        rest = (self.scores(sums - self.weights[trait]) for trait in on)
        return [(meaning - less, structural - other) for less, other in rest]
