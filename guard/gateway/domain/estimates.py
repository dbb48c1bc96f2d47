"""Learned cost of a call: exponentially weighted mean and deviation of past costs."""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

_WEIGHT: Final = 0.2
"""The weight of the newest cost in the mean."""
_SPREAD: Final = 2.0
"""How many standard deviations above the mean are reserved."""
_DECAY: Final = 256
"""A peak falls by one part in so many with each smaller value."""


class Estimate(Struct):
    """The learned cost of calls of one kind, in nano-dollars, and the model that they used last.

    A peak (:func:`learn_peak`) is stored in the same form, in its own unit.

    Attributes:
        count: how many values were added.
        mean, variance: of the costs, weighted; of a peak only ``mean`` is used.
        model: the model that answered last, if any has.
        model_at_ms: when that was noted.
    """

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0
    model: str | None = None
    model_at_ms: int = 0

    def learn(self, cost: int) -> None:
        """Add the cost of one finished call."""
        # Exponentially weighted: the newest ten or so calls decide, older ones fade.
        if self.count == 0:
            self.mean, self.variance = float(cost), 0.0
        else:
            delta = cost - self.mean
            self.mean += _WEIGHT * delta
            self.variance = (1 - _WEIGHT) * (self.variance + _WEIGHT * delta * delta)
        self.count += 1

    def amount(self) -> int:
        """Return what to reserve for the next call: the mean and two deviations, at least 1."""
        return max(1, round(self.mean + _SPREAD * math.sqrt(self.variance)))


def learn_peak(estimate: Estimate, value: int) -> None:
    """Follow the largest of the newest values: up at once, down by a 256th of the distance.

    The peak is in ``mean``. It is a high quantile: of values that come in no particular order,
    few are above it, and a large one is remembered for some hundred values.
    """
    distance = value - estimate.mean
    estimate.mean += distance if distance > 0 else distance / _DECAY
    estimate.count += 1
