"""How long a refused program may take to end by itself. Pure: no I/O and no clock.

On a busy machine an ordinary end takes long by the clock. So the time in which the program could
run but does not get a CPU or the disk does not count; its CPU time counts instead. Time in which it
sleeps counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

OWN_S: Final = 3.0
"""Time for a guarded program, in seconds: the refusal passes through it as an exception."""

LAST_WORDS_S: Final = 0.7
"""Time for other programs, in seconds: enough to show the refusal that they got as an answer."""

WALL_S: Final = 60.0
"""Limit by the clock, in seconds, however little of that time counts."""

_STEP_S: Final = 0.25
"""The most that counts between two looks: further apart, this process had no CPU either."""


@attrs.frozen
class ProcessLoad:
    """A process at one moment.

    Attributes:
        cpu_s: CPU time of it, and of its children that have ended, in seconds.
        is_held: whether one of its threads waits for a CPU or the disk, or was stopped.
    """

    cpu_s: float
    is_held: bool


class Grace:
    """The time of one program, from its refusal or from a signal on.

    Args:
        now_s: the clock, in seconds.
        own_s: how long it is, in seconds that count.
    """

    def __init__(self, now_s: float, own_s: float = OWN_S) -> None:
        self._allowed_s = own_s
        self._started_s = self._looked_s = now_s
        # How much of the time has been counted so far.
        self._own_s = 0.0
        # CPU time of each process at the last look, by pid.
        self._cpu_s: dict[int, float] = {}

    def is_over(self, now_s: float, loads: Mapping[int, ProcessLoad]) -> bool:
        """Count the time since the last look; return whether the time is used up.

        Args:
            now_s: the clock, in seconds.
            loads: the program's processes; empty where the system does not list them.
        """
        passed_s = min(now_s - self._looked_s, _STEP_S)
        # The busiest process's: several that run at once use no more time than one.
        used_s = max(
            (load.cpu_s - self._cpu_s.get(pid, load.cpu_s) for pid, load in loads.items()),
            default=0.0,
        )
        is_held = any(load.is_held for load in loads.values())
        self._own_s += min(passed_s, used_s) if is_held else passed_s
        self._cpu_s = {pid: load.cpu_s for pid, load in loads.items()}
        self._looked_s = now_s
        return self._own_s >= self._allowed_s or now_s - self._started_s >= WALL_S
