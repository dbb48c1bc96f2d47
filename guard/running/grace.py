"""How long a refused program may take to end by itself: what counts is the time it uses, no I/O.

On a busy machine an ordinary end takes long by the clock. So a time in which the program could run,
and was not let, does not count: then its CPU time counts instead. Time in which it sleeps does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

OWN_S: Final = 3.0
"""Time of its own that a guarded program may take to end, in seconds: a refusal passes through it.
"""

LAST_WORDS_S: Final = 0.7
"""The same for other programs, which have been told and need not end: to show what they were told.
"""

WALL_S: Final = 60.0
"""The most that it may take by the clock, however little of that it has used."""

_STEP_S: Final = 0.25
"""Between two looks no more than this counts: if they are further apart, we were not let run."""


@attrs.frozen
class ProcessLoad:
    """A process at one moment.

    Attributes:
        cpu_s: CPU time of it, and of its children that have ended, in seconds.
        is_held: whether a thread of it could go on, but waits for the machine (or was stopped).
    """

    cpu_s: float
    is_held: bool


class Grace:
    """One such time.

    Args:
        now_s: the clock, in seconds.
        own_s: how long it is, in seconds of the program's own.
    """

    def __init__(self, now_s: float, own_s: float = OWN_S) -> None:
        self._allowed_s = own_s
        self._started_s = self._looked_s = now_s
        self._own_s = 0.0
        self._cpu_s: dict[int, float] = {}

    def is_over(self, now_s: float, loads: Mapping[int, ProcessLoad]) -> bool:
        """Look once more; tell whether the time is used up.

        Args:
            now_s: the clock, in seconds.
            loads: the program's processes; empty where they cannot be looked at.
        """
        passed_s = min(now_s - self._looked_s, _STEP_S)
        # Of the busiest: several that run at once use no more of its time.
        used_s = max(
            (load.cpu_s - self._cpu_s.get(pid, load.cpu_s) for pid, load in loads.items()),
            default=0.0,
        )
        is_held = any(load.is_held for load in loads.values())
        self._own_s += min(passed_s, used_s) if is_held else passed_s
        self._cpu_s = {pid: load.cpu_s for pid, load in loads.items()}
        self._looked_s = now_s
        return self._own_s >= self._allowed_s or now_s - self._started_s >= WALL_S
