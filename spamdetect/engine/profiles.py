"""The named thresholds of a model, with what was measured at each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from spamdetect.thresholds import PROFILE_NAMES, Threshold, checked_threshold


@attrs.frozen
class Profile:
    """A named threshold.

    Attributes:
        threshold: spam from this probability on.
        false_alarms: share of a stranger's ordinary messages that is expected to be taken for
            spam, see `spamdetect.training.calibrate.expected`; None if not measured.
        recall: share of spam found, the mean over the same sources; None if not measured.
    """

    threshold: float
    false_alarms: float | None = None
    recall: float | None = None


def read_profiles(meta: Any) -> dict[str, Profile]:
    """The profiles of a model file's header.

    Raises:
        TypeError: the value does not describe profiles.
        ValueError: a threshold is not a probability.
    """
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
