"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from spamdetect.thresholds import PROFILE_NAMES, Threshold, checked_threshold


class ThresholdType(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from 8.2 on
    """A number from 0 to 1, or a profile of the model."""

    name = "threshold"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Threshold:
        """See :class:`click.ParamType`."""
        try:
            return checked_threshold(value)
        except ValueError:
            self.fail(f"{value!r} is neither {', '.join(PROFILE_NAMES)} nor a number from 0 to 1.")


class Whole(click.IntRange):
    """A whole number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See :class:`click.ParamType`."""
        low, high = self.min, self.max
        try:
            found = int(value)
            if (low is not None and found < low) or (high is not None and found > high):
                raise ValueError
        except (TypeError, ValueError):
            bounds = f", {low} or more" if high is None else f" from {low} to {high}"
            self.fail(f"{str(value)[:40]!r} is not a whole number{bounds}.", param, ctx)
        return found


Option = Callable[[Any], Any]

threshold_option: Final[Option] = click.option(
    "--threshold",
    type=ThresholdType(),
    metavar="SCORE",
    help="Spam from this score on: 0 to 1, strict, balanced or quiet.",
)
model_option: Final[Option] = click.option(
    "--model", "model_path", type=click.Path(path_type=Path), help="Model file."
)
