"""How long a body is left alone with its clean-up once a kill has reached it."""

from __future__ import annotations

import time
from typing import ClassVar, Final

_GROWTH: Final = 1.5


class CleanupTime:
    """Time to clean up, and more of it each time that the kill is raised again.

    Attributes:
        first_s: how long the first time, in seconds.
    """

    __slots__ = ("_ends_s", "_length_s")

    first_s: ClassVar[float] = 5.0

    def __init__(self) -> None:
        self._length_s = self.first_s
        self._ends_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the kill may be raised; true before :meth:`begin`."""
        return time.monotonic() >= self._ends_s

    def begin(self) -> None:
        """The kill has reached the body."""
        self._ends_s = time.monotonic() + self._length_s
        self._length_s *= _GROWTH
