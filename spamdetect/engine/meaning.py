"""A small network over traits: judges by what a text says and is made of, in any language."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

Sums = NDArray[np.int64]


@attrs.frozen
class Network:
    """One hidden layer of rectified units and a direct path, over traits that are on.

    Attributes:
        weights: for each trait, eight-bit weights: to each hidden unit, then to the output, and
            last in the linear classifier, which reads the n-grams too.
        scale: what one unit of each column of ``weights`` is worth.
        bias: what is added to each column.
        output: the weight of each hidden unit.
    """

    weights: NDArray[np.int8]
    scale: NDArray[np.float64]
    bias: NDArray[np.float64]
    output: NDArray[np.float64]

    def sums(self, on: list[int]) -> Sums:
        """The sum of each column over the traits that are on."""
        found: Sums = self.weights[on].sum(axis=0, dtype=np.int64)
        return found

    def sums_many(self, traits: Sequence[list[int]]) -> Sums:
        """`sums` for each text, row by row; none is without traits."""
        starts = np.cumsum([0, *map(len, traits[:-1])])
        joined = [trait for on in traits for trait in on]
        found: Sums = np.add.reduceat(self.weights[joined], starts, axis=0, dtype=np.int64)
        return found

    def scores(self, sums: Sums) -> tuple[float, float]:
        """The score of the network, and the linear classifier's of the traits, from sums."""
        reached = sums * self.scale + self.bias
        meaning = np.maximum(reached[:-2], 0.0) @ self.output + reached[-2]
        return float(meaning), float(reached[-1])

    def scores_many(self, sums: Sums) -> tuple[list[float], list[float]]:
        """`scores` for each row."""
        reached = sums * self.scale + self.bias
        meaning = np.maximum(reached[:, :-2], 0.0) @ self.output + reached[:, -2]
        return meaning.tolist(), reached[:, -1].tolist()

    def losses(self, on: list[int]) -> list[tuple[float, float]]:
        """What both scores lose without each of the traits that are on."""
        sums = self.sums(on)
        meaning, structural = self.scores(sums)
        rest = (self.scores(sums - self.weights[trait]) for trait in on)
        return [(meaning - less, structural - other) for less, other in rest]
