"""Learned cost of a call: exponentially weighted mean and deviation of past costs."""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

_WEIGHT: Final = 0.2
_SPREAD: Final = 2.0


class Estimate(Struct):
    """What calls of one kind have cost so far, in nano-dollars."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def learn(self, cost: int) -> None:
        """Add the cost of one finished call."""
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
