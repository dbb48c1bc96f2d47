"""The named thresholds of a model, with what was measured at each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import attrs

from spamdetect.thresholds import PROFILE_NAMES, Threshold, checked_threshold


@attrs.frozen
class Profile:
    """A named threshold.

    Attributes:
        threshold: spam from this probability on.
        false_alarms: share of ordinary messages taken for spam, in cross-validation; None when it
            was not measured.
        recall: share of spam found in the same texts; None when it was not measured.
    """

    threshold: float
    false_alarms: float | None = None
    recall: float | None = None


# For a model file of before there were profiles: those of model 1.2.0.
_EARLIER: Final = {
    "strict": Profile(0.18, 0.0497, 0.9509),
    "balanced": Profile(0.5, 0.0168, 0.9062),
    "quiet": Profile(0.96, 0.0019, 0.7223),
}
_EARLIER_VERSION: Final = "1.2.0"


def read_profiles(meta: Any, threshold: float, version: str) -> dict[str, Profile]:
    """The profiles of a model file's header.

    Args:
        meta: its ``profiles``; None when it has none.
        threshold: of the model, which is that of ``balanced``.
        version: of the model.

    Raises:
        TypeError: not profiles.
        ValueError: a threshold is no probability.
    """
    if meta is None:
        if version == _EARLIER_VERSION and threshold == _EARLIER["balanced"].threshold:
            return dict(_EARLIER)
        thresholds = {name: profile.threshold for name, profile in _EARLIER.items()}
        thresholds["balanced"] = threshold
        return {name: Profile(value) for name, value in thresholds.items()}
    profiles: dict[str, Profile] = {name: Profile(**meta[name]) for name in PROFILE_NAMES}
    if not all(0.0 <= profile.threshold <= 1.0 for profile in profiles.values()):
        raise ValueError("a threshold is no probability")
    return profiles


def resolve(value: Threshold, profiles: Mapping[str, Profile]) -> float:
    """The number that a threshold stands for.

    Raises:
        ValueError: it is neither a number in [0, 1] nor the name of a profile.
    """
    found = checked_threshold(value)
    if isinstance(found, str):
        found = profiles[found].threshold
    assert math.isfinite(found)
    return found
