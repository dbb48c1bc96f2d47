"""The engine off the event loop: bounded workers, batches, and shedding before latency grows.

Waiting requests are analysed in batches: a batch costs the engine much less than the same texts
one by one, and one hop to a thread serves them all. A new request's wait is estimated from the
queue and the measured speed; beyond the limit the request is refused at once, so that an
overloaded service answers quickly instead of ever later.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import attrs

from spamdetect.models import ErrorCode
from spamdetect.service.analysis import (
    Answer,
    EngineFailedError,
    Item,
    Outcome,
    TextEngine,
    analyse,
    place_of,
)
from spamdetect.service.processes import EngineProcesses
from spamdetect.service.respond import RefusalError, retry_after
from spamdetect.thresholds import Threshold

_BATCH_TEXTS: Final = 64
_BATCH_CHARS: Final = 50_000
# What takes no longer is analysed on the loop: a thread would keep the interpreter from it for
# 5 ms. Not more, so that the loop comes round often.
_BRIEF_S: Final = 0.002
_SPEED_WEIGHT: Final = 0.2
_WARM_UP_TEXT: Final = "Are we still on for lunch? Reply here or call me. " * 4


@attrs.define(eq=False, slots=True)
class Job:
    """A text that waits for the engine, or is being read; await it for its outcome.

    Attributes:
        item: The text, and what is wanted.
        cost_chars: What it costs, in characters.
        is_wanted: Whether anybody still needs the outcome.
        outcome: The outcome, once it is there.
        done: Takes the outcome, on the loop; not before the turn in which the job was made is over.
    """

    item: Item = attrs.field(repr=False)
    cost_chars: int
    is_wanted: bool = True
    outcome: Outcome | RefusalError | None = attrs.field(default=None, repr=False)
    done: Callable[[Outcome | RefusalError], None] | None = None

    def finish(self, outcome: Outcome | RefusalError) -> None:
        """Hand the outcome over."""
        self.outcome = outcome
        if self.done is not None:
            self.done(outcome)

    def __await__(self) -> Generator[Any, None, Answer]:
        if self.outcome is None:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.done = lambda _: None if ended.done() else ended.set_result(None)
            try:
                yield from ended
            finally:
                self.is_wanted = False
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome


class WorkerPool:
    """Runs the engine for the routes.

    Args:
        engine: The engine; shared by the threads, read-only.
        workers: Threads.
        max_pending: Maximum waiting jobs.
        max_wait_s: Longest estimated wait, in seconds.
        processes: As many processes as ``workers``, to run the engine instead of threads;
            closed with the pool.
    """

    def __init__(
        self,
        engine: TextEngine,
        workers: int,
        max_pending: int,
        max_wait_s: float,
        processes: EngineProcesses | None = None,
    ) -> None:
        self._engine = engine
        self._workers = workers
        self._max_pending = max_pending
        self._max_wait_s = max_wait_s
        self._processes = processes
        self._running: set[asyncio.Future[list[Outcome]]] = set()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="spamdetect-engine")
        self._queue: deque[Job] = deque()
        self._queued_chars = 0
        self._busy = 0
        self._busy_chars = 0
        self._busy_since_s = 0.0
        # Zero until warm_up or the first batch: shedding needs evidence.
        self._seconds_per_char = 0.0
        self._is_starting = False
        self._closed = False

    @property
    def pending(self) -> int:
        """Jobs waiting for a worker."""
        return len(self._queue)

    @property
    def busy(self) -> int:
        """Busy workers."""
        return self._busy

    @property
    def estimated_wait_s(self) -> float:
        """How long a job submitted now would wait, in seconds."""
        if self._busy + len(self._queue) < self._workers:
            return 0.0
        wait_s = self._queued_chars * self._seconds_per_char
        if self._busy == self._workers:
            elapsed_s = time.perf_counter() - self._busy_since_s
            wait_s += max(0.0, self._busy_chars * self._seconds_per_char - elapsed_s)
        return wait_s / self._workers

    async def warm_up(self) -> None:
        """Run the engine a few times, so that its speed is known before the first request."""
        measured = []
        for _ in range(3):
            self._seconds_per_char = 0.0  # measured anew
            # As many at once as there are workers, so that each process starts now.
            jobs = [self.submit(Item(_WARM_UP_TEXT)) for _ in range(self._workers)]
            for job in jobs:
                await job
            measured.append(self._seconds_per_char)
        # In the first, tables are made and processes started; in any, the machine may stand still.
        self._seconds_per_char = min(measured)

    @property
    def threshold(self) -> float:
        """Lowest score that is spam, where a request asks for no other."""
        return self._engine.threshold

    def threshold_of(self, threshold: Threshold) -> float:
        """The number that a threshold stands for.

        Raises:
            ValueError: It is neither a probability nor a profile of the model.
        """
        return self._engine.threshold_of(threshold)

    def submit(self, item: Item) -> Job:
        """Let one text be analysed.

        Args:
            item: The text, and what is wanted.

        Returns:
            The job; set its ``done``, or await it for the answer. Set ``is_wanted`` to false when
            nobody needs it any more.

        Raises:
            RefusalError: 503 ``OVERLOADED`` when the queue is full or the wait too long.
        """
        wait_s = self.estimated_wait_s
        if self._closed or len(self._queue) >= self._max_pending or wait_s > self._max_wait_s:
            raise RefusalError(
                503,
                ErrorCode.OVERLOADED,
                "The service has more to do than it can; try again in a moment.",
                headers=retry_after(wait_s),
            )
        job = Job(item, item.cost_chars)
        self._queue.append(job)
        self._queued_chars += job.cost_chars
        self._start_soon()
        return job

    async def close(self) -> None:
        """Refuse new and waiting work, and finish what is running."""
        self._closed = True
        for job in self._queue:
            if job.is_wanted:
                job.finish(RefusalError(503, ErrorCode.OVERLOADED, "The service is stopping."))
        self._queue.clear()
        await asyncio.to_thread(self._threads.shutdown)
        if self._processes is not None:
            await asyncio.gather(*self._running, return_exceptions=True)
            await self._processes.close()

    def _start_soon(self) -> None:
        # What arrives in the same turn of the loop is analysed together.
        if self._queue and self._busy < self._workers and not self._is_starting:
            self._is_starting = True
            asyncio.get_running_loop().call_soon(self._start_batch)

    def _start_batch(self) -> None:
        self._is_starting = False
        brief_chars = self._brief_chars
        batch, chars = self._next_batch(brief_chars)
        if batch:
            started_s = time.perf_counter()
            self._busy += 1
            self._busy_chars += chars
            self._busy_since_s = started_s
            items = [job.item for job in batch]
            if chars <= brief_chars:
                self._finish(batch, chars, started_s, self._analyse_now(items))
            else:
                running = self._submit(items)
                self._running.add(running)
                running.add_done_callback(partial(self._ended, batch, chars, started_s))
        self._start_soon()

    @property
    def _brief_chars(self) -> float:
        """How much is analysed on the loop at once."""
        if self._processes is not None or not self._seconds_per_char:
            return 0.0
        return _BRIEF_S / self._seconds_per_char

    def _next_batch(self, brief_chars: float) -> tuple[list[Job], int]:
        batch: list[Job] = []
        chars = 0
        # With several workers, leave something for the others.
        most = max(1, min(_BATCH_TEXTS, -(-len(self._queue) // (self._workers - self._busy))))
        # A batch must finish well within the longest wait, or it becomes the wait itself.
        most_chars = float(_BATCH_CHARS)
        if self._seconds_per_char:
            most_chars = min(most_chars, self._max_wait_s / 4 / self._seconds_per_char)
        while self._queue and len(batch) < most and (not batch or chars < most_chars):
            cost_chars = self._queue[0].cost_chars
            if batch and chars <= brief_chars < chars + cost_chars:
                break
            job = self._queue.popleft()
            self._queued_chars -= cost_chars
            # The client has gone: nobody needs the answer any more.
            if job.is_wanted:
                batch.append(job)
                chars += cost_chars
        return batch, chars

    def _analyse_now(self, items: list[Item]) -> list[Outcome]:
        try:
            return analyse(self._engine, items)
        except Exception as error:  # noqa: BLE001 - the batch fails, not the loop
            return [EngineFailedError(type(error).__name__, place_of(error))] * len(items)

    def _submit(self, items: list[Item]) -> asyncio.Future[list[Outcome]]:
        loop = asyncio.get_running_loop()
        if self._processes is not None:
            return loop.create_task(self._processes.analyse(items))
        return loop.run_in_executor(self._threads, analyse, self._engine, items)

    def _ended(
        self, batch: list[Job], chars: int, started_s: float, done: asyncio.Future[list[Outcome]]
    ) -> None:
        self._running.discard(done)
        self._finish(batch, chars, started_s, self._outcomes(done, len(batch)))
        if not self._closed:
            self._start_soon()

    def _finish(
        self, batch: list[Job], chars: int, started_s: float, outcomes: list[Outcome]
    ) -> None:
        self._busy -= 1
        self._busy_chars -= chars
        self._learn_speed((time.perf_counter() - started_s) / chars)
        for job, outcome in zip(batch, outcomes, strict=True):
            if job.is_wanted:
                job.finish(outcome)

    def _learn_speed(self, seconds_per_char: float) -> None:
        if self._seconds_per_char:
            # One batch during which the machine did something else says little.
            learnt = min(seconds_per_char, 2 * self._seconds_per_char)
            self._seconds_per_char += _SPEED_WEIGHT * (learnt - self._seconds_per_char)
        else:
            self._seconds_per_char = seconds_per_char

    def _outcomes(self, done: asyncio.Future[list[Outcome]], texts: int) -> list[Outcome]:
        error = done.exception()
        if error is None:
            return done.result()
        if isinstance(error, EngineFailedError):
            # A worker process was killed, perhaps for its memory use.
            return [error] * texts
        return [EngineFailedError(type(error).__name__, "a worker")] * texts
