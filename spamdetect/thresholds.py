"""The lowest score that is spam: a number, or a named profile of the model.

A profile sets how many false alarms are acceptable for how much spam found; the model file holds
the threshold for it, and what was measured there.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

ProfileName = Literal["strict", "balanced", "quiet"]
Threshold: TypeAlias = float | ProfileName

PROFILE_NAMES: Final[tuple[ProfileName, ...]] = get_args(ProfileName)


def checked_threshold(value: object) -> Threshold:
    """Return the threshold that a value, possibly typed by a person, stands for.

    Args:
        value: a number in [0, 1], the name of a profile, or a string of either.

    Raises:
        ValueError: it is neither.
    """
    for name in PROFILE_NAMES:
        if value == name:
            return name
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            number = float(value)
            if 0.0 <= number <= 1.0:
                return number
    except ValueError:
        pass
    raise ValueError(f"threshold must be {', '.join(PROFILE_NAMES)} or a number from 0 to 1")
