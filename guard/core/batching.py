"""The bounded event buffer: what is kept, what is dropped first, what goes into the next batch.

Callers append records from any thread without a lock; one consumer takes them. A record is a plain
tuple, because making a tuple is the cheapest thing that a caller's thread can do; the consumer
turns it into an :class:`~guard.core.wire.Event`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

Record = tuple[str, int, int, Any, Any]
"""``(type, at_ns, serial, scope, payload)``."""


class Priority(IntEnum):
    """Lanes of the buffer, in the order in which they are shed."""

    DROPPABLE = 0
    TOOL = 1
    LLM = 2


_LANES: Final[dict[str, Priority]] = {
    "llm": Priority.LLM,
    "sdk.loss": Priority.LLM,
    "chain": Priority.TOOL,
    "tool": Priority.TOOL,
}


class EventBuffer:
    """Holds at most ``capacity`` records; sheds the oldest of the least important lane.

    ``append`` is safe from any thread: it relies on ``deque.append`` and ``popleft`` being atomic.
    The bound can be passed by as many records as threads append at the same instant.
    """

    __slots__ = ("_lanes", "capacity", "dropped")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.dropped = 0
        self._lanes: tuple[deque[Record], ...] = (deque(), deque(), deque())

    def __len__(self) -> int:
        droppable, tool, llm = self._lanes
        return len(droppable) + len(tool) + len(llm)

    def append(self, record: Record) -> int:
        """Add a record and return how many the buffer holds now."""
        self._lanes[_LANES.get(record[0], Priority.DROPPABLE)].append(record)
        size = len(self)
        if size > self.capacity:
            self._shed()
        return size

    def _shed(self) -> None:
        for lane in self._lanes:
            try:
                lane.popleft()
            except IndexError:
                continue
            self.dropped += 1
            return

    def take(self, most: int) -> list[Record]:
        """Take up to ``most`` records, the most important lane first, oldest first within one."""
        taken: list[Record] = []
        for lane in reversed(self._lanes):
            while len(taken) < most:
                try:
                    taken.append(lane.popleft())
                except IndexError:
                    break
        return taken

    def take_if(self, wanted: Callable[[Record], bool], most: int) -> list[Record]:
        """Take up to ``most`` records that fit, leaving the others in their order."""
        taken: list[Record] = []
        for lane in reversed(self._lanes):
            kept: list[Record] = []
            for _ in range(len(lane)):
                if len(taken) >= most:
                    break
                try:
                    record = lane.popleft()
                except IndexError:
                    break
                (taken if wanted(record) else kept).append(record)
            lane.extendleft(reversed(kept))
        return taken

    def put_back(self, records: list[Record]) -> None:
        """Return records that were taken but not delivered; they are the oldest again."""
        for record in reversed(records):
            self._lanes[_LANES.get(record[0], Priority.DROPPABLE)].appendleft(record)
        while len(self) > self.capacity:
            self._shed()
