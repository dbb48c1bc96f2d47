"""One writer with group commit, on the loop while that is quick and on a thread when it is not.

Work submitted from the event loop is collected for a few ticks, run in one unit of work, committed
once, and only then answered, so every answer is committed. Each piece of work runs behind a
savepoint: a failing one undoes only its own changes. If the commit fails, the group is halved until
the piece at fault is alone, so that one piece costs the others a few commits and not one each.

Where a commit does not wait for the disk, a small group runs on the loop itself: handing 32 small
decisions to a thread and back costs more than deciding them, because both sides need the
interpreter lock. Durable commits, heavy work and groups behind them go to the writer thread, and so
does everything for a while after a slow commit on the loop. The two never run at the same time: the
loop hands over to the idle thread, and waits until it is idle again before running a group itself.

Nobody waits for long: services divide what is large into pieces of a bounded weight, and a group
has either light pieces or as many heavy ones as make up one large piece. While both wait, groups of
light and of heavy pieces take turns, so a decision waits for one heavy group at most. Pieces of a
group that have not begun after a while are left to later groups. The gateway's own work, such as
expiry, is the first in its queue.

A remote store commits one group while the loop reads the requests of the next. That overlap exists
only if some requests are still to come: callers that are all answered at once all ask again at
once. So groups for a remote store are smaller, and heavy work does not wait for more.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from guard.gateway.domain.commands import PostCommitEvent
from guard.gateway.domain.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreLostError,
    UnstorableError,
)
from guard.gateway.domain.statistics import WriterStatistics
from guard.gateway.storage.sql.failures import store_error, summary
from guard.gateway.unit.state import ALL_ORGANISATIONS, Touches
from guard.gateway.unit.unit_of_work import UnitOfWork

logger = logging.getLogger(__name__)

T = TypeVar("T")
GROUP_WEIGHT_MAX: Final = 2048
"""A group is committed at this weight, so that the next one does not wait for long."""

REMOTE_WEIGHT_MAX: Final = 256
"""The same for a store in a process of its own."""

LIGHT_WEIGHT_MAX: Final = 16
"""A heavier piece is in no group with light ones."""

HEAVY_WEIGHT_MAX: Final = 128
"""A group of heavy pieces is committed at this weight."""

UNIT_S: Final = 0.02
"""If the pieces of a group take more of their thread's time, those that have not begun are left to
later groups."""

GATHER_MAX: Final = 64
"""A group that has so many pieces (by weight for a remote store) does not wait for more."""

INLINE_PIECES_MAX: Final = 256
"""A longer queue runs on the thread, as heavy pieces do: it would hold up the loop for too long."""

SLOW_COMMIT_S: Final = 0.05
"""If a group takes longer on the loop, the following ones go to the thread for a while."""

SLOW_PENALTY_S: Final = 0.2
"""How long they do."""

BUSY_S: Final = 5.0
"""How long groups wait, on the thread, for another program that is writing to the file."""

_BUSY_STEP_S: Final = 0.01


UnitT = TypeVar("UnitT", bound=UnitOfWork)


class _Item(Generic[UnitT]):
    __slots__ = ("begun", "error", "future", "outside", "result", "touches", "weight", "work")

    def __init__(
        self,
        work: Callable[[UnitT], Any],
        future: asyncio.Future[Any],
        touches: Touches,
        weight: int,
        outside: bool,
    ) -> None:
        self.work = work
        self.touches = touches
        self.future = future
        self.weight = weight
        self.outside = outside
        # Whether it is in a group that was run; the others have to wait for another group.
        self.begun = False
        # Set where the work runs; the future is set from them on the loop, after the commit. They
        # cannot be set on the future directly: futures are not thread-safe, and the work may run
        # again when its group is halved.
        self.result: Any = None
        self.error: BaseException | None = None


class GroupWriter(Generic[UnitT]):
    """Runs work on a unit of work, in order, many pieces to a transaction.

    Args:
        unit: the unit of work that the work runs on; used for one transaction after another.
        deliver: called on the loop with a commit's events, before any answer. What it raises is
            logged.
        inline: whether commits are fast enough to run on the loop.
        remote: whether the store works in a process of its own.
        failures: exceptions of a failed store, of which callers get :class:`StoreError`.
    """

    def __init__(
        self,
        unit: UnitT,
        deliver: Callable[[list[PostCommitEvent]], None],
        *,
        inline: bool,
        remote: bool = False,
        failures: tuple[type[Exception], ...] = (),
    ) -> None:
        # Used by the thread while ``_busy``, and by the loop otherwise; never by both, so it needs
        # no lock. The semaphore and ``call_soon_threadsafe`` order the two sides' accesses.
        self._unit = unit
        self._deliver_events = deliver
        self._failures = failures
        self._inline = inline
        self._remote = remote
        self._weight_max = REMOTE_WEIGHT_MAX if remote else GROUP_WEIGHT_MAX
        self._loop = asyncio.get_running_loop()
        # Submitted and not in a group yet, in order: light pieces, and heavy ones or those outside
        # of a transaction. Only the loop reads and writes them.
        self._light: list[_Item[UnitT]] = []
        self._heavy: list[_Item[UnitT]] = []
        # The kind of the last group.
        self._was_heavy = False
        # Whether the thread has a group. Set by the loop when it hands one over, and cleared by the
        # loop when the thread has called back, so it needs no lock.
        self._busy = False
        # Until this time of the loop's clock everything goes to the thread: a commit was slow.
        self._slow_until = 0.0
        # From the loop to the thread: at most one group at a time, and ``None`` to end it. The
        # semaphore counts the entries.
        self._jobs: collections.deque[list[_Item[UnitT]] | None] = collections.deque()
        self._wake = threading.Semaphore(0)
        # Set once by the loop: nothing more is accepted.
        self._closing = False
        # Counters for metrics. Written by the side that runs a group, the thread or the loop; a
        # reader on the loop may see a number that is a moment old.
        self.groups = 0
        self.items = 0
        # Whether the store worked last time, for metrics and alerts. Written like the counters.
        self.healthy = True
        # Whether the disk was full. Set by the side that runs a group. A later commit does not
        # clear it, because small ones may still find room; ``SqlEngine.has_room`` does, on the
        # loop, once it has written a larger piece.
        self.is_full = False
        # Since when another program has been writing to the file, by ``time.monotonic``. Written
        # like the counters.
        self._locked_since_s: float | None = None
        # Durations of commits and lock waits, group sizes. Written like the counters.
        self.statistics = WriterStatistics()
        self._thread = threading.Thread(target=self._run, name="guard-gateway-writer", daemon=True)
        self._thread.start()

    def submit(
        self,
        work: Callable[[UnitT], T],
        touches: Touches = ALL_ORGANISATIONS,
        *,
        weight: int = 1,
        outside_transaction: bool = False,
        is_own: bool = False,
    ) -> asyncio.Future[T]:
        """Queue work and return a future of its result, set after the commit.

        Args:
            work: called with the unit of work inside a transaction.
            touches: what the work touches.
            weight: how many small pieces of work this one is worth.
            outside_transaction: run it on the thread, outside of any transaction.
            is_own: put it ahead of others of its kind.

        Raises:
            StoreError: the writer is closed.
        """
        if self._closing:
            raise StoreError("the store is closed")
        item = _Item(work, self._loop.create_future(), touches, weight, outside_transaction)
        # One chain of ``_gather`` calls is enough. If something is collected already, one is
        # running; if the thread is busy, ``_deliver`` starts one when it is done.
        if not self.queued and not self._busy:
            self._loop.call_soon(self._gather, 0)
        queue = self._heavy if outside_transaction or weight > LIGHT_WEIGHT_MAX else self._light
        queue.insert(0 if is_own else len(queue), item)
        return item.future

    @property
    def queued(self) -> int:
        """How many pieces of work wait for the group before them."""
        return len(self._light) + len(self._heavy)

    async def close(self) -> None:
        """Finish queued work, then end the thread."""
        self._closing = True
        # The sleep lets the thread's callbacks run, which clear ``_busy`` and answer the callers.
        while self.queued or self._busy:
            if not self._busy:
                self._start()
            await asyncio.sleep(0.001)
        self._jobs.append(None)
        self._wake.release()
        # Not on the loop: joining would block it.
        await asyncio.to_thread(self._thread.join, 30.0)

    # -- on the loop ---------------------------------------------------------------------------

    def _gather(self, seen: int) -> None:
        # Requests arrive over a few ticks; while more come, the group waits for them. ``seen`` is
        # how many there were in the tick before.
        count = self.queued
        gathered = count + (HEAVY_WEIGHT_MAX if self._remote and self._heavy else 0)
        if seen < count and gathered < GATHER_MAX and not self._closing:
            self._loop.call_soon(self._gather, count)
        else:
            self._start()

    def _start(self) -> None:
        # 1. The thread has the unit: ``_deliver`` calls ``_gather`` again when it is done.
        if self._busy or not self.queued:
            return
        # Behind a long queue the loop is better left free to read.
        is_quick = self._inline and len(self._light) <= INLINE_PIECES_MAX
        group = self._take()
        # 2. Quick work: here, without a change of threads.
        if is_quick and not self._was_heavy and self._loop.time() >= self._slow_until:
            started = time.perf_counter()
            try:
                events = self._run_group(group)
            except StoreBusyError:  # waiting for it would stop the loop
                self._slow_until = self._loop.time() + SLOW_PENALTY_S
                self._hand_over(group)
                return
            if time.perf_counter() - started > SLOW_COMMIT_S:
                self._slow_until = self._loop.time() + SLOW_PENALTY_S
            self._deliver(group, events)
        # 3. Anything else: on the thread.
        else:
            self._hand_over(group)

    def _hand_over(self, group: list[_Item[UnitT]]) -> None:
        self._busy = True  # first, while the unit is still the loop's
        self._jobs.append(group)
        self._wake.release()

    def _take(self) -> list[_Item[UnitT]]:
        """Remove the next group from one of the queues: in order, as much as one commit may hold.

        The first item is always in it, however heavy. Work outside of a transaction is a group by
        itself.
        """
        self._was_heavy = bool(self._heavy) and not (self._light and self._was_heavy)
        queue = self._heavy if self._was_heavy else self._light
        weight_max = HEAVY_WEIGHT_MAX if self._was_heavy else self._weight_max
        weight, count = queue[0].weight, 1
        if not queue[0].outside:
            for item in itertools.islice(queue, 1, None):
                weight += item.weight
                if item.outside or weight > weight_max:
                    break
                count += 1
        group = queue[:count]
        del queue[:count]
        return group

    def _finished(self, group: list[_Item[UnitT]], events: list[PostCommitEvent]) -> None:
        # On the loop: the thread touches the unit no more, so the loop may from here on.
        self._busy = False
        self._deliver(group, events)

    def _deliver(self, group: list[_Item[UnitT]], events: list[PostCommitEvent]) -> None:
        # Before any answer: when an operator's kill is confirmed, it is already being delivered.
        if events:
            try:
                self._deliver_events(events)
            except Exception:
                # The work is committed: its callers are answered whatever happens to the events.
                logger.exception("the events of a commit were not delivered")
        left = [item for item in group if not item.begun]
        if left:  # of one kind, as the group was
            queue = self._heavy if self._was_heavy else self._light
            queue[:0] = left
        for item in group:
            future = item.future
            if not item.begun:
                continue
            if future.done():  # its caller was cancelled; the work is committed all the same
                continue
            if item.error is not None:
                future.set_exception(item.error)
            else:
                future.set_result(item.result)
        if self.queued:
            self._loop.call_soon(self._gather, 0)

    # -- on the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            group = self._jobs.popleft()
            if group is None:
                return
            events = self._run_patiently(group)
            # If the process dies here, the work is committed and unanswered: callers repeat it
            # under its idempotency key and get the stored answer.
            try:
                self._loop.call_soon_threadsafe(self._finished, group, events)
            except RuntimeError:  # the loop is closed; the commit stands
                return

    # -- on either -----------------------------------------------------------------------------

    def _run_patiently(self, group: list[_Item[UnitT]]) -> list[PostCommitEvent]:
        """Run a group once no other program is writing to the file; if one goes on, fail it."""
        while True:
            try:
                return self._run_group(group)
            except StoreBusyError as exc:
                now_s = time.monotonic()
                self._locked_since_s = self._locked_since_s or now_s
                if now_s - self._locked_since_s > BUSY_S:
                    if self.healthy:  # once, and not for each group
                        logger.error("the store failed: %s", exc)
                    self.healthy = False
                    for item in group:
                        item.error, item.begun = exc, True
                    return []
            time.sleep(_BUSY_STEP_S)

    def _run_group(self, group: list[_Item[UnitT]]) -> list[PostCommitEvent]:
        """Run and commit a group, in halves if it fails; return the events of what was committed.

        Results and errors are on the items. Runs on the thread or on the loop.

        Raises:
            StoreBusyError: another program is writing to the file; nothing of the group was run.
        """
        if group[0].outside:
            return self._run_outside(group[0])
        try:
            # 1. Committed.
            return self._attempt(group)
        except StoreBusyError:
            raise
        except StoreLostError:
            # 2. Perhaps committed. Running it again here could do it twice; callers repeat it under
            # its idempotency key.
            return []
        except Exception:  # noqa: BLE001  # the item carries it to its caller
            # 3. Rolled back, and the one item is at fault.
            if len(group) == 1:
                return []
        # 4. Rolled back, and the item at fault is not known. Halves are committed in order, so a
        # later item never sees a state without an earlier one that succeeds. The errors of this
        # attempt are forgotten: each item gets a new one if it fails again.
        for item in group:
            item.error, item.begun = None, False
        middle = len(group) // 2
        # Patiently, on the loop too: what the first half has committed must not run once more.
        events = self._run_patiently(group[:middle])
        if group[middle - 1].begun:  # nothing of the first half is left to a later group
            events += self._run_patiently(group[middle:])
        return events

    def _attempt(self, group: list[_Item[UnitT]]) -> list[PostCommitEvent]:
        """Run a group in one transaction; an item that fails does not fail the others.

        If the first ones take long, the others are not begun.

        Raises:
            StoreBusyError: another program is writing to the file; nothing was begun.
            StoreLostError: whether it was committed is not known.
            Exception: nothing was committed; every item has an error.
        """
        unit = self._unit
        clock, found = time.perf_counter, self.statistics
        started, done_at_s = clock(), time.thread_time() + UNIT_S
        try:
            unit.begin([item.touches for item in group])
            begun = clock()
            self._locked_since_s = None
            self.groups += 1
            count = 0
            for item in group:
                self._run_item(item)
                count += 1
                if time.thread_time() > done_at_s:
                    break
            self.items += count
            done = clock()
            events = unit.commit()
        except StoreBusyError:
            raise
        except Exception as exc:
            error = self._noted(exc)
            # Also after a failed ``begin``: it may have opened the transaction before it failed.
            try:
                unit.rollback()
            except Exception as second:  # noqa: BLE001  # callers get the first one
                self._noted(second)
            # An item that failed by itself keeps its own error, which says more.
            for item in group:
                item.error, item.begun = item.error or error, True
            raise
        found.commits.add(clock() - done)
        found.lock_waits.add(begun - started)
        found.sizes.add(count)
        # A commit alone does not show that a full disk has room again; ``has_room`` does.
        if not self.healthy and not self.is_full:
            self.healthy = not any(isinstance(item.error, StoreError) for item in group)
        return events

    def _run_item(self, item: _Item[UnitT]) -> None:
        item.begun = True
        unit = self._unit
        started = time.perf_counter()
        unit.savepoint()
        try:
            item.result = item.work(unit)
        except Exception as exc:  # noqa: BLE001  # carried to its caller
            item.error = self._noted(exc)
            # If this raises, the transaction is lost as a whole: ``_attempt`` rolls back.
            unit.undo()
        # Time is accounted to an organisation only if the work is for exactly one.
        whose = item.touches.organisations
        own = whose[0] if whose is not None and len(whose) == 1 else ""
        self.statistics.organisations.add(own, time.perf_counter() - started)

    def _run_outside(self, item: _Item[UnitT]) -> list[PostCommitEvent]:
        self.groups += 1
        self.items += 1
        item.begun = True
        try:
            item.result = item.work(self._unit)
        except Exception as exc:  # noqa: BLE001  # carried to its caller
            item.error = self._noted(exc)
        return []

    def _noted(self, exc: Exception) -> Exception:
        """Record a failure of the store; return the exception that callers get in its place.

        A rule's own exception, such as a conflict, is not the store's and passes unchanged.
        """
        if isinstance(exc, StoreLostError):
            self.healthy = False
            return exc
        if not isinstance(exc, self._failures):
            return exc
        error = store_error(exc)
        if not isinstance(error, UnstorableError):  # the request is at fault, the store works
            self.healthy = False
        if not self.is_full:  # said once: the log may be on the same disk
            logger.error("the store failed: %s", summary(exc))
        self.is_full = self.is_full or isinstance(error, StoreFullError)
        return error
