"""How long a body may clean up after a kill has reached it, before it is interrupted again."""

from __future__ import annotations

import time
from typing import ClassVar, Final

_GROWTH: Final = 1.5


class CleanupTime:
    """The time to clean up; longer each time that the kill is raised again.

    Attributes:
        first_s: length of the first time, in seconds.
    """

    __slots__ = ("_ends_s", "_length_s")

    first_s: ClassVar[float] = 5.0

    def __init__(self) -> None:
        # Length of the next time, and the end of the current one by `time.monotonic()`.
        self._length_s = self.first_s
        self._ends_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the kill may be raised; true before :meth:`begin`."""
        return time.monotonic() >= self._ends_s

    def begin(self) -> None:
        """Begin the time: the kill has reached the body."""
        self._ends_s = time.monotonic() + self._length_s
        self._length_s *= _GROWTH
