"""One writer thread with group commit.

Work submitted from the event loop is collected for one tick and handed over together. The thread
runs everything that waits in one transaction, commits once, and only then answers, so an answer
always rests on a commit. A failing item rolls the whole group back; the others are run again on
their own, so one bad request never takes its neighbours down.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from guard.gateway.storage.base import StoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")
GROUP_MAX: Final = 512


class Engine(Protocol):
    """What the writer runs work against."""

    def begin(self) -> None:
        """Open a transaction."""

    def commit(self) -> list[Any]:
        """Make everything since ``begin`` durable; return what has to be announced."""

    def rollback(self) -> None:
        """Forget everything since ``begin``, in the database and in memory."""


EngineT = TypeVar("EngineT", bound=Engine)


class _Item(Generic[EngineT]):
    __slots__ = ("error", "future", "result", "work")

    def __init__(self, work: Callable[[EngineT], Any], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None


class GroupWriter(Generic[EngineT]):
    """Runs work on an engine, in order, many pieces to a transaction."""

    def __init__(self, engine: EngineT, announce: Callable[[list[Any]], None]) -> None:
        self._engine = engine
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._collected: list[_Item[EngineT]] = []
        self._queue: collections.deque[_Item[EngineT]] = collections.deque()
        self._wake = threading.Event()
        self._closing = False
        self.groups = 0
        self.items = 0
        self.healthy = True
        self._thread = threading.Thread(target=self._run, name="guard-gateway-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[EngineT], T]) -> asyncio.Future[T]:
        """Queue work and return a future of its result, set after the commit.

        Raises:
            StoreError: the writer is closed.
        """
        if self._closing:
            raise StoreError("the store is closed")
        item = _Item(work, self._loop.create_future())
        if not self._collected:
            self._loop.call_soon(self._hand_over)
        self._collected.append(item)
        return item.future

    async def close(self) -> None:
        """Finish what waits, then end the thread."""
        self._hand_over()
        self._closing = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join, 30.0)

    def _hand_over(self) -> None:
        if self._collected:
            self._queue.extend(self._collected)
            self._collected.clear()
            self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                group = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_MAX))]
                news = self._run_group(group)
                try:
                    self._loop.call_soon_threadsafe(self._deliver, group, news)
                except RuntimeError:  # the loop is gone; what was committed stays committed
                    return
            if self._closing and not self._queue:
                return

    def _run_group(self, group: list[_Item[EngineT]]) -> list[Any]:
        try:
            news = self._attempt(group)
        except Exception:  # noqa: BLE001  # the item carries it to whoever asked
            if len(group) == 1:
                return []
            news = []
            for item in group:
                item.error = None
                news += self._run_group([item])
        self.groups += 1
        self.items += len(group)
        return news

    def _attempt(self, group: list[_Item[EngineT]]) -> list[Any]:
        engine = self._engine
        item = group[0]
        try:
            engine.begin()
            for item in group:
                item.result = item.work(engine)
            news = engine.commit()
        except Exception as exc:
            item.error = _as_store_error(exc)
            self.healthy = not isinstance(item.error, StoreError)
            try:
                engine.rollback()
            except sqlite3.Error:
                logger.exception("the store could not roll back")
                item.error = StoreError("the store could not roll back")
                self.healthy = False
            raise
        self.healthy = True
        return news

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


def _as_store_error(exc: Exception) -> Exception:
    if isinstance(exc, sqlite3.Error):
        logger.error("the store failed: %s", exc)
        return StoreError(f"the store failed: {type(exc).__name__}")
    return exc
