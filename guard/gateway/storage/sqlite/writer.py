"""One writer with group commit, on the loop while that is quick and on a thread when it is not.

Work submitted from the event loop is collected for one tick and run in one transaction, committed
once, and only then answered, so an answer always rests on a commit. A failing item rolls the whole
group back; the others are run again on their own, so one bad request never takes its neighbours
down.

Where a commit does not wait for the disk, a small group runs on the loop itself: handing 32 small
decisions to a thread and back costs more than deciding them, because both sides need the
interpreter lock. Durable commits, heavy work and groups behind them go to the writer thread, and so
does everything for a while after a commit on the loop was slow. Only one of the two ever runs:
the loop hands over to the idle thread, and waits for its word before running a group itself.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from guard.gateway.storage.port import StoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")
GROUP_WEIGHT_MAX: Final = 2048
"""A group is committed at this weight, so that what comes behind it does not wait for long."""

GATHER_MAX: Final = 64
INLINE_WEIGHT_MAX: Final = 256
SLOW_COMMIT_S: Final = 0.05
SLOW_PENALTY_S: Final = 0.2


class Engine(Protocol):
    """What the writer runs work against."""

    def begin(self, hints: list[str]) -> None:
        """Open a transaction; ``hints`` say what its work is going to look up."""

    def commit(self) -> list[Any]:
        """Make everything since ``begin`` durable; return what has to be announced."""

    def rollback(self) -> None:
        """Forget everything since ``begin``, in the database and in memory."""


EngineT = TypeVar("EngineT", bound=Engine)


class _Item(Generic[EngineT]):
    __slots__ = ("alone", "error", "future", "hint", "result", "weight", "work")

    def __init__(
        self,
        work: Callable[[EngineT], Any],
        future: asyncio.Future[Any],
        hint: str | None,
        weight: int,
        alone: bool,
    ) -> None:
        self.work = work
        self.hint = hint
        self.future = future
        self.weight = weight
        self.alone = alone
        self.result: Any = None
        self.error: BaseException | None = None


class GroupWriter(Generic[EngineT]):
    """Runs work on an engine, in order, many pieces to a transaction.

    Args:
        engine: what the work runs against.
        announce: told on the loop, before any answer, what a commit has made public.
        inline: whether commits are quick enough for the loop.
    """

    def __init__(
        self, engine: EngineT, announce: Callable[[list[Any]], None], *, inline: bool
    ) -> None:
        self._engine = engine
        self._announce = announce
        self._inline = inline
        self._loop = asyncio.get_running_loop()
        self._collected: list[_Item[EngineT]] = []
        self._weight = 0
        self._busy = False
        self._slow_until = 0.0
        self._jobs: collections.deque[list[_Item[EngineT]] | None] = collections.deque()
        self._wake = threading.Semaphore(0)
        self._closing = False
        self.groups = 0
        self.items = 0
        self.healthy = True
        self._thread = threading.Thread(target=self._run, name="guard-gateway-writer", daemon=True)
        self._thread.start()

    def submit(
        self,
        work: Callable[[EngineT], T],
        hint: str | None = None,
        *,
        weight: int = 1,
        alone: bool = False,
    ) -> asyncio.Future[T]:
        """Queue work and return a future of its result, set after the commit.

        Args:
            work: called with the engine inside a transaction.
            hint: what the work is going to look up, so that a group can look up together.
            weight: how many small pieces of work this one is worth.
            alone: run it on the thread, outside of any transaction.

        Raises:
            StoreError: the writer is closed.
        """
        if self._closing:
            raise StoreError("the store is closed")
        item = _Item(work, self._loop.create_future(), hint, weight, alone)
        if not self._collected and not self._busy:
            self._loop.call_soon(self._gather, 0)
        self._collected.append(item)
        self._weight += weight
        return item.future

    async def close(self) -> None:
        """Finish what waits, then end the thread."""
        self._closing = True
        while self._collected or self._busy:
            if not self._busy:
                self._start()
            await asyncio.sleep(0.001)
        self._jobs.append(None)
        self._wake.release()
        await asyncio.to_thread(self._thread.join, 30.0)

    # -- on the loop ---------------------------------------------------------------------------

    def _gather(self, seen: int) -> None:
        # Requests arrive over a few ticks; while more come, the group waits for them.
        count = len(self._collected)
        if seen < count < GATHER_MAX and not self._closing:
            self._loop.call_soon(self._gather, count)
        else:
            self._start()

    def _start(self) -> None:
        if self._busy or not self._collected:
            return
        group = self._take()
        light = self._inline and self._weight <= INLINE_WEIGHT_MAX and not group[0].alone
        self._weight = sum(item.weight for item in self._collected)
        if light and self._loop.time() >= self._slow_until:
            started = time.perf_counter()
            news = self._run_group(group)
            if time.perf_counter() - started > SLOW_COMMIT_S:
                self._slow_until = self._loop.time() + SLOW_PENALTY_S
            self._deliver(group, news)
        else:
            self._busy = True
            self._jobs.append(group)
            self._wake.release()

    def _take(self) -> list[_Item[EngineT]]:
        collected = self._collected
        weight = collected[0].weight
        count = 1
        if not collected[0].alone:
            for item in itertools.islice(collected, 1, None):
                weight += item.weight
                if item.alone or weight > GROUP_WEIGHT_MAX:
                    break
                count += 1
        group, self._collected = collected[:count], collected[count:]
        return group

    def _finished(self, group: list[_Item[EngineT]], news: list[Any]) -> None:
        self._busy = False
        self._deliver(group, news)

    def _deliver(self, group: list[_Item[EngineT]], news: list[Any]) -> None:
        if news:
            self._announce(news)
        for item in group:
            future = item.future
            if future.done():
                continue
            if item.error is not None:
                future.set_exception(item.error)
            else:
                future.set_result(item.result)
        if self._collected:
            self._loop.call_soon(self._gather, 0)

    # -- on the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            group = self._jobs.popleft()
            if group is None:
                return
            news = self._run_group(group)
            try:
                self._loop.call_soon_threadsafe(self._finished, group, news)
            except RuntimeError:  # the loop is gone; what was committed stays committed
                return

    # -- on either -----------------------------------------------------------------------------

    def _run_group(self, group: list[_Item[EngineT]]) -> list[Any]:
        self.groups += 1
        self.items += len(group)
        if group[0].alone:
            return self._run_alone(group[0])
        try:
            return self._attempt(group)
        except Exception:  # noqa: BLE001  # the item carries it to whoever asked
            if len(group) == 1:
                return []
        news = []
        for item in group:
            item.error = None
            news += self._run_group([item])
        return news

    def _attempt(self, group: list[_Item[EngineT]]) -> list[Any]:
        engine = self._engine
        item = group[0]
        try:
            engine.begin([item.hint for item in group if item.hint is not None])
            for item in group:
                item.result = item.work(engine)
            news = engine.commit()
        except Exception as exc:
            item.error = self._noted(exc)
            try:
                engine.rollback()
            except sqlite3.Error as second:
                item.error = self._noted(second)
            raise
        self.healthy = True
        return news

    def _run_alone(self, item: _Item[EngineT]) -> list[Any]:
        try:
            item.result = item.work(self._engine)
        except Exception as exc:  # noqa: BLE001  # carried to whoever asked
            item.error = self._noted(exc)
        return []

    def _noted(self, exc: Exception) -> Exception:
        if not isinstance(exc, sqlite3.Error):
            return exc
        self.healthy = False
        logger.error("the store failed: %s", exc)
        return StoreError(f"the store failed: {type(exc).__name__}")
