"""The bounded event buffer: what it keeps, what it sheds first and what the next batch takes.

Callers append records from any thread without a lock; one consumer takes them and turns them into
events of the protocol (:mod:`guard.core.events`).

Three lanes, by importance, each a deque with a high watermark. A caller that fills a lane up to its
watermark calls :meth:`EventBuffer.on_high_watermark`, which wakes the consumer, sheds what does not
fit and sets new watermarks. The three watermarks together never exceed the remaining room, so the
bound is exact, and an append below the watermark costs one comparison.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final

from msgspec import Struct


class Record(Struct, gc=False):
    """One event as its caller recorded it; :mod:`guard.core.events` completes it.

    A manual ``llm`` event (``payload`` is its model or None) is stored flat, because a second
    object would cost a third more time and memory. Records are never part of a cycle, so the
    garbage collector does not track them: a full buffer would slow down every collection.
    """

    kind: str
    at_ns: int
    serial: int
    event_fields: tuple[str | None, ...]
    payload: Any
    input_tokens: int = -1
    output_tokens: int = 0
    latency_ms: float | None = None
    metadata: Any = None


class Priority(IntEnum):
    """Lanes of the buffer, in the order they are shed in."""

    DROPPABLE = 0
    TOOL = 1
    LLM = 2


_LANES: Final[dict[str, Priority]] = {
    "llm": Priority.LLM,
    "sdk.loss": Priority.LLM,
    "chain": Priority.TOOL,
    "tool": Priority.TOOL,
}


_DROPPABLE: Final = Priority.DROPPABLE  # an attribute of an enumeration costs more than the append


def priority_of(kind: str) -> Priority:
    """Return the lane of an event type; types other than the SDK's own are droppable."""
    return _LANES.get(kind, Priority.DROPPABLE)


class PriorityLane(deque[Record]):
    """Records of one priority, oldest first.

    At ``high_watermark`` records, the appending thread calls :meth:`EventBuffer.on_high_watermark`.
    """

    __slots__ = ("high_watermark",)

    high_watermark: int


class EventBuffer:
    """Holds at most ``capacity`` records; sheds the oldest of the least important lane.

    ``append`` is safe from any thread: it relies on ``deque.append`` and ``popleft`` being atomic.
    Threads that append at the same instant can exceed the bound by one record each.

    Args:
        capacity: maximum number of records kept.
        batch_size: how many records justify waking the consumer.
        wake: wakes the consumer; called from callers' threads, so it must not block. Returns
            whether it succeeded.

    Attributes:
        llm, droppable: the lanes of ``llm`` events and of spans, for callers that cannot afford a
            method call.
        dropped: how many records have been shed so far.
    """

    __slots__ = (
        "_aside", "_awake", "_batch_size", "_lanes", "_lock", "_started", "_wake", "_wanted",
        "capacity", "droppable", "dropped", "llm",
    )  # fmt: skip

    def __init__(
        self, capacity: int, batch_size: int = 100, wake: Callable[[], bool] = lambda: True
    ) -> None:
        self.capacity = capacity
        # Changed under the lock, since any thread sheds; only rises.
        self.dropped = 0
        self._batch_size = batch_size
        self._wake = wake
        # How many records `take_if` is inspecting: in no lane, and yet buffered. Changed by the
        # consumer.
        self._aside = 0
        # Whether the consumer was woken and has not parked since: it needs no second wake-up.
        self._awake = False
        # Whether there is a consumer yet; the first record starts it.
        self._started = False
        # How many records justify waking the consumer. These three change under the lock.
        self._wanted = batch_size
        # Re-entrant: a signal handler may record while its thread holds it. It is held for
        # microseconds, only while counting.
        self._lock = threading.RLock()
        self._lanes = (PriorityLane(), PriorityLane(), PriorityLane())
        self.llm = self._lanes[Priority.LLM]
        self.droppable = self._lanes[Priority.DROPPABLE]
        for lane in self._lanes:
            lane.high_watermark = 1  # the first record starts the consumer

    def __len__(self) -> int:
        droppable, tool, llm = self._lanes
        return len(droppable) + len(tool) + len(llm) + self._aside

    def append(self, record: Record) -> None:
        """Add a record."""
        lane = self._lanes[_LANES.get(record.kind, _DROPPABLE)]
        lane.append(record)
        # `>=`: several threads may append at once, and none of them sees the exact number.
        if len(lane) >= lane.high_watermark:
            self.on_high_watermark()

    def on_high_watermark(self) -> None:
        """Wake the consumer, shed what does not fit, set new watermarks."""
        with self._lock:
            self._shed()
            # Noted before the wake-up: of the threads that come here at once, one wakes it.
            wakes = not self._awake and (not self._started or len(self) >= self._wanted)
            if wakes:
                self._started = True
                self._awake = True
            self._set_watermarks()
        # Without the lock: this may start a thread, and others append meanwhile.
        if wakes and not self._wake():
            with self._lock:
                self._awake = self._started = False
                for lane in self._lanes:  # try again, but not on every record
                    lane.high_watermark = min(lane.high_watermark, len(lane) + self._batch_size)

    def park(self, wanted: int | None = None) -> bool:
        """Ask to be woken for the next batch; called by the consumer before it sleeps.

        Args:
            wanted: how many records to be woken for; a batch when None.

        Returns:
            False when there are that many already: the consumer must not sleep.
        """
        with self._lock:
            self._wanted = self._batch_size if wanted is None else wanted
            # Looked at under the lock: an append after this either reaches the new watermark, and
            # waits for the lock to wake the consumer, or is not urgent.
            if len(self) >= self._wanted:
                return False
            self._awake = False
            self._started = True
            self._set_watermarks()
        return True

    def _set_watermarks(self) -> None:
        """Set how far each lane may grow before its appending thread comes back here.

        The caller holds the lock. While the consumer sleeps, no lane may grow beyond the number of
        records that wakes it.
        """
        # Sizes are read once: room is not promised twice when other threads append meanwhile.
        sizes = [len(lane) for lane in self._lanes]
        size = sum(sizes) + self._aside
        room = max(1, (self.capacity - size) // 4)  # three lanes share what is left
        if not self._awake:
            room = min(room, max(1, self._wanted - size))
        for lane, filled in zip(self._lanes, sizes, strict=True):
            lane.high_watermark = filled + room

    def _shed(self) -> None:
        """Drop what does not fit, the oldest of the least important lane first.

        The caller holds the lock.
        """
        while len(self) > self.capacity:
            lane = next((lane for lane in self._lanes if lane), None)
            if lane is None:  # all of it is being inspected
                return
            try:
                lane.popleft()
            except IndexError:  # the consumer was faster
                continue
            self.dropped += 1

    def take(self, most: int) -> list[Record]:
        """Take up to ``most`` records, the most important lane first, oldest first within one."""
        # Without the lock: `popleft` is atomic, and what is shed meanwhile is counted.
        taken: list[Record] = []
        for lane in reversed(self._lanes):
            try:
                while len(taken) < most:
                    taken.append(lane.popleft())
            except IndexError:
                continue
        return taken

    def take_if(
        self, wanted: Callable[[Record], bool], most: int, look_at: int = 2000
    ) -> list[Record]:
        """Take up to ``most`` records that fit, leaving the others in their order.

        Called by the consumer only.

        Args:
            wanted: returns whether a record fits.
            most: how many to take.
            look_at: how many records of each lane to inspect: a caller is waiting for the answer.
        """
        taken: list[Record] = []
        for lane in reversed(self._lanes):
            if not lane:
                continue
            kept: list[Record] = []
            for _ in range(min(len(lane), look_at)):
                if len(taken) >= most:
                    break
                try:
                    record = lane.popleft()
                except IndexError:
                    break
                if wanted(record):
                    taken.append(record)
                else:
                    kept.append(record)
                    self._aside += 1
            # Under the lock, so that no thread that sheds counts these records twice or not at all.
            with self._lock:
                self._aside = 0
                lane.extendleft(reversed(kept))
        return taken

    def put_back(self, records: Iterable[Record]) -> None:
        """Return records that were taken but not delivered; they become the oldest again."""
        # The newest first, each to the left of those before it: their order is kept.
        for record in reversed(list(records)):
            self._lanes[_LANES.get(record.kind, Priority.DROPPABLE)].appendleft(record)
        with self._lock:  # the room may have been used up since
            self._shed()
            self._set_watermarks()
