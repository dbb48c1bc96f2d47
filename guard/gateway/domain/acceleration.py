"""Whether a run spends faster and faster. Pure.

A run is compared with itself: what it has spent in the newest minutes, with each equally long time
before. A steady run is none that accelerates, however dear; nor is one that works in bursts, since
a burst is no more than the one before; nor a short one, which has nothing to be compared with.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Final

STEP_MS: Final = 300_000
STEPS: Final = 13
"""The newest five minutes, and the hour before."""

BEFORE_MIN: Final = 6
"""A run that is younger than half an hour is short."""

LEAST_NANOUSD: Final = 1_000_000_000
"""What must have been spent in the newest step: less is not worth a message."""

_TIMES_MEDIAN: Final = 4
_TIMES_LARGEST: Final = 2


def accelerates(spent: Mapping[int, int]) -> bool:
    """Tell whether the newest step is more than its run has ever spent so fast.

    It does when it is more than four times the median of the steps before, and more than twice the
    largest of them.

    Args:
        spent: by step, 0 the newest; what is missing is 0. The run began in the oldest.

    >>> accelerates({0: 9 * 10**9} | dict.fromkeys(range(1, 13), 10**9))
    True
    >>> accelerates(dict.fromkeys(range(13), 10**9))
    False
    """
    recent, before = spent.get(0, 0), usual_steps(spent)
    if recent < LEAST_NANOUSD or len(before) < BEFORE_MIN:
        return False
    return recent > _TIMES_MEDIAN * usual(spent) and recent > _TIMES_LARGEST * max(before)


def usual_steps(spent: Mapping[int, int]) -> list[int]:
    """Return what was spent in each step before the newest, from the one in which it began."""
    return [spent.get(step, 0) for step in range(1, max(spent, default=0) + 1)]


def usual(spent: Mapping[int, int]) -> int:
    """Return what was usually spent in a step: the median."""
    before = usual_steps(spent)
    return round(statistics.median(before)) if before else 0
