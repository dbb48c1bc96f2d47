"""Runs a bounded number of coroutines at once on a background loop; the others wait in line.

A waiting caller costs the loop nothing: no task, no timer, no connection. So the loop stays
responsive for everything else it serves, however many callers there are.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from guard.loop.background import BackgroundLoop, LoopClosedError

T = TypeVar("T")

# Shares of the deadline: above the first a call is slow, below the second it is quick.
_SLOW_SHARE: Final = 0.25
_QUICK_SHARE: Final = 0.1


class Concurrency:
    """How many may run at once: additive increase, multiplicative decrease, by their duration.

    Args:
        deadline_s: time allowed for one; a quarter of it is slow, a tenth is quick.
        least, most: the bounds.
    """

    def __init__(self, deadline_s: float, least: int = 4, most: int = 32) -> None:
        self.deadline_s = deadline_s
        self.least = least
        self.most = most
        # Fractional, so that many small steps add up. Written on the loop only.
        self._limit = float(min(2 * least, most))

    @property
    def limit(self) -> int:
        """How many may run now."""
        return int(self._limit)

    def took(self, seconds: float) -> None:
        """Record how long one took."""
        # A slow call takes half a place away, a quick one adds 1/limit: a round of quick calls, as
        # many as run at once, adds one place.
        if seconds > _SLOW_SHARE * self.deadline_s:
            self._limit = max(float(self.least), self._limit * (1 - 0.5 / self._limit))
        elif seconds < _QUICK_SHARE * self.deadline_s:
            self._limit = min(float(self.most), self._limit + 1 / self._limit)


class AdmissionError(Exception):
    """Too many callers are waiting already, or one has waited too long for its turn."""


class Ticket(Future[T]):
    """A caller's answer. ``started`` says whether its turn has come; set on the loop."""

    started = False


class _Item(Struct, Generic[T], eq=False):
    """A caller in line; ``has_place`` changes under the lock of its :class:`Admission`.

    ``expires_s`` is when its caller no longer waits, by ``time.monotonic()``.
    """

    start: Callable[[], Coroutine[Any, Any, T]]
    abandoned: Callable[[T], object]
    future: Ticket[T]
    context: contextvars.Context
    expires_s: float
    has_place: bool = False


class Admission:
    """First come, first served; safe from any thread.

    Args:
        background: the loop to run on.
        concurrency: how many coroutines run at once.
        waiting_max: how many callers may wait.
        wait_s: how long, in seconds, one may wait for its turn; then it does not start.
    """

    def __init__(
        self,
        background: BackgroundLoop,
        *,
        concurrency: Concurrency,
        waiting_max: int,
        wait_s: float,
    ) -> None:
        self._background = background
        self._concurrency = concurrency
        self._waiting_max = waiting_max
        self._wait_s = wait_s
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the callers of the parent process."""
        # Guards the two below and the items' `has_place`. Re-entrant: a signal handler may submit.
        # It is held only while counting.
        self._lock = threading.RLock()
        # How many items have a place: from the moment that it is promised until the task has ended.
        self._running = 0
        # First come, first served. Only `_line_up` appends; `_advance` and `dismiss` take from it.
        self._waiting: deque[_Item[Any]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(
        self,
        start: Callable[[], Coroutine[Any, Any, T]],
        abandoned: Callable[[T], object] = lambda result: None,
        ticket: Ticket[T] | None = None,
    ) -> Ticket[T]:
        """Run the coroutine that ``start`` creates, at once or when its turn comes.

        One that has waited too long for its turn ends with :class:`AdmissionError`.

        The caller bounds its own wait, on its own thread, and cancels the ticket to give up. A
        waiting call is then dropped; a running one continues: it may already have had its effect.

        Args:
            start: called on the loop; the coroutine runs in the caller's context.
            abandoned: called on the loop with a result whose caller has given up.
            ticket: takes the result; a caller that makes it beforehand can cancel it even when
                interrupted in here.

        Raises:
            AdmissionError: too many callers are waiting.
            LoopClosedError: the loop was closed.
        """
        item = _Item(
            start, abandoned, ticket or Ticket[T](), contextvars.copy_context(),
            time.monotonic() + self._wait_s,
        )  # fmt: skip
        try:
            self._line_up(item)
        except BaseException:
            # Also Ctrl-C, at any instruction. `_advance` may release the place at the same time;
            # the first of the two does.
            item.future.cancel()
            self._give_place_back(item)
            raise
        return item.future

    def _line_up(self, item: _Item[Any]) -> None:
        with self._lock:
            if self._running < self._concurrency.limit:
                self._take_place(item)
            elif len(self._waiting) >= self._waiting_max:
                raise AdmissionError(f"{len(self._waiting)} callers are waiting already")
            else:
                self._waiting.append(item)
        # Tracked before it starts, so that closing the loop cancels it wherever it is.
        self._background.track(item.future)
        if item.has_place:
            self._background.start()
            if not self._background.call_soon(self._begin, item):
                raise LoopClosedError("the background loop is closed")

    def _take_place(self, item: _Item[Any]) -> None:
        # Called under the lock.
        item.has_place = True
        self._running += 1

    def _give_place_back(self, item: _Item[Any]) -> None:
        # Idempotent: the item remembers whether it has a place.
        with self._lock:
            self._running -= item.has_place
            item.has_place = False

    def dismiss(self) -> None:
        """Cancel the tickets of all items in line; those that run continue."""
        with self._lock:
            dismissed, self._waiting = self._waiting, deque()
        # Outside of the lock: this runs the callers' own code.
        for item in dismissed:
            item.future.cancel()

    # -- on the loop ------------------------------------------------------------------------------

    def _begin(self, item: _Item[Any]) -> None:
        if item.future.cancelled():  # between getting its place and this turn of the loop
            self._advance(item)
            return
        item.future.started = True
        task = asyncio.get_running_loop().create_task(item.start(), context=item.context)
        task.add_done_callback(functools.partial(self._ended, item, time.monotonic()))

    def _ended(self, item: _Item[Any], started_s: float, task: asyncio.Task[Any]) -> None:
        self._concurrency.took(time.monotonic() - started_s)
        # First the place: the callbacks of the future below must not delay the next in line.
        self._advance(item)
        if task.cancelled():
            item.future.cancel()
            return
        exc = task.exception()
        # False if the caller has given up. A result may then have to be undone: a reservation that
        # was granted, for one.
        if not item.future.set_running_or_notify_cancel():
            if exc is None:
                item.abandoned(task.result())
        elif exc is not None:
            item.future.set_exception(exc)
        else:
            item.future.set_result(task.result())

    def _advance(self, ended: _Item[Any]) -> None:
        """Release a place, and give the free ones to the next in line."""
        begins: list[_Item[Any]] = []
        late: list[_Item[Any]] = []
        with self._lock:
            self._give_place_back(ended)
            while self._waiting and self._running < self._concurrency.limit:
                item = self._waiting.popleft()
                if time.monotonic() >= item.expires_s:
                    late.append(item)
                elif not item.future.cancelled():
                    self._take_place(item)
                    begins.append(item)
        # Outside of the lock: this runs the callers' own code.
        for item in begins:
            self._begin(item)
        for item in late:  # its caller is about to give up, so nothing is started for it
            if item.future.set_running_or_notify_cancel():
                item.future.set_exception(AdmissionError(f"no turn within {self._wait_s:.3g} s"))
