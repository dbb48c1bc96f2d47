"""The named thresholds of a model, from scores of fits that have not seen the texts."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from spamdetect.engine.profiles import Profile

# Share of ordinary messages that may be taken for spam. ``balanced`` is the model's own threshold.
FALSE_ALARMS: Final = {"strict": 0.05, "quiet": 0.002}


def measured_profiles(
    labels: NDArray[np.bool_], chances: NDArray[np.float64], threshold: float
) -> dict[str, Profile]:
    """The profiles with their figures.

    Args:
        labels: which texts are spam.
        chances: their probabilities, from fits that have not seen them; NaN where there is none.
        threshold: the model's own.
    """
    known = ~np.isnan(chances)
    # Like verdicts: from probabilities rounded to six digits.
    rounded = np.round(chances[known], 6)
    spam, ham = rounded[labels[known]], rounded[~labels[known]]
    thresholds = {
        "strict": min(threshold, threshold_of(ham, FALSE_ALARMS["strict"])),
        "balanced": threshold,
        "quiet": max(threshold, threshold_of(ham, FALSE_ALARMS["quiet"])),
    }
    return {
        name: Profile(
            value, round(float((ham >= value).mean()), 4), round(float((spam >= value).mean()), 4)
        )
        for name, value in thresholds.items()
    }


def threshold_of(ham: NDArray[np.float64], share: float) -> float:
    """The lowest threshold of two digits or more that at most this share of ham reaches."""
    steps = np.concatenate((np.arange(0.01, 0.99, 0.01), np.arange(0.99, 0.9999, 0.0001)))
    reached = np.array([(ham >= step).mean() for step in steps.round(4)])
    fits = np.flatnonzero(reached <= share)
    return float(steps.round(4)[fits[0]]) if fits.size else 1.0
