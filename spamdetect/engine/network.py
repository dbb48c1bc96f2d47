"""A small network over traits: judges a text by content and structure, in any language."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

Sums = NDArray[np.float32]


@attrs.frozen
class Network:
    """One hidden layer of rectified linear units over the active traits.

    Attributes:
        weights: the eight-bit weights of each trait: to each hidden unit, and last in the linear
            classifier, which also reads the n-grams.
        scale: the value of one unit of each column of ``weights``.
        bias: the constant added to each column.
        output: the weight of each hidden unit.
    """

    weights: NDArray[np.int8]
    scale: NDArray[np.float64]
    bias: NDArray[np.float64]
    output: NDArray[np.float64]
    _floats: Sums = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # Sums of small integers are exact as float32, and faster.
        object.__setattr__(self, "_floats", self.weights.astype(np.float32))

    def judge(self, on: list[int]) -> tuple[float, float]:
        """`scores` of the active traits of a text."""
        return self.scores(self.sums(on))

    def sums(self, on: list[int]) -> Sums:
        """The sum of each column over the active traits."""
        found: Sums = np.ones(len(on), np.float32) @ self._floats.take(on, axis=0)
        return found

    def scores(self, sums: Sums) -> tuple[float, float]:
        """The network's score and the linear classifier's score of the traits, from sums."""
        reached = sums * self.scale + self.bias
        return float(np.maximum(reached[:-1], 0.0) @ self.output), float(reached[-1])

    def losses(self, on: list[int]) -> list[tuple[float, float]]:
        """What both scores lose without each active trait."""
        sums = self.sums(on)
        meaning, structural = self.scores(sums)
        rest = (self.scores(sums - self.weights[trait]) for trait in on)
        return [(meaning - less, structural - other) for less, other in rest]
