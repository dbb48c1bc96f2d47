"""The engine off the event loop: bounded workers, batches, and shedding before latency grows.

Requests that wait together are analysed together, because a batch costs the engine much less
than the same texts one by one and one hop to a thread serves them all. The wait of a new
request is estimated from what is queued and the measured speed; beyond the limit it is refused
at once, so that an overloaded service answers fast instead of ever later.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from spamdetect.models import ErrorCode
from spamdetect.service.respond import RefusalError, predict_body, preprocess_body, retry_after

if TYPE_CHECKING:
    from spamdetect.engine import Analysis, Preprocessed

_Outcome = tuple[bytes, bool | None] | Exception

_BATCH_TEXTS: Final = 64
_BATCH_CHARS: Final = 50_000
# What a text costs besides its length, in characters; keeps many tiny texts from being free.
_BASE_COST_CHARS: Final = 100
_SPEED_WEIGHT: Final = 0.2
_WARM_UP_TEXT: Final = "Are we still on for lunch? Reply here or call me. " * 4


class TextEngine(Protocol):
    """What the service needs of :class:`spamdetect.engine.Engine`."""

    @property
    def model_version(self) -> str:
        """Identifies the model."""

    def preprocess(self, text: str) -> Preprocessed:
        """Clean one text."""

    def predict_many(self, texts: Sequence[str]) -> list[Analysis]:
        """Classify a batch."""


@attrs.define(eq=False, slots=True)
class _Job:
    text: str = attrs.field(repr=False)
    predict: bool
    future: asyncio.Future[tuple[bytes, bool | None]]

    @property
    def cost_chars(self) -> int:
        return _BASE_COST_CHARS + len(self.text)


class WorkerPool:
    """Runs the engine for the routes.

    Args:
        engine: The engine; shared by the threads, read-only.
        workers: Threads.
        max_pending: Most jobs waiting.
        max_wait_s: Longest estimated wait in seconds.
    """

    def __init__(
        self, engine: TextEngine, workers: int, max_pending: int, max_wait_s: float
    ) -> None:
        self._engine = engine
        self._workers = workers
        self._max_pending = max_pending
        self._max_wait_s = max_wait_s
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="spamdetect-engine")
        self._queue: deque[_Job] = deque()
        self._queued_chars = 0
        self._busy = 0
        self._busy_chars = 0
        self._busy_since_s = 0.0
        # Zero until warm_up or the first batch: shedding needs evidence.
        self._seconds_per_char = 0.0
        self._closed = False

    @property
    def pending(self) -> int:
        """Jobs waiting for a worker."""
        return len(self._queue)

    @property
    def busy(self) -> int:
        """Workers at work."""
        return self._busy

    @property
    def estimated_wait_s(self) -> float:
        """How long a job that came now would wait, in seconds."""
        if self._busy < self._workers:
            return 0.0
        elapsed_s = time.perf_counter() - self._busy_since_s
        running_s = self._busy_chars * self._seconds_per_char - elapsed_s
        queued_s = self._queued_chars * self._seconds_per_char
        return (max(0.0, running_s) + queued_s) / self._workers

    async def warm_up(self) -> None:
        """Run the engine a few times, so that its speed is known before the first request."""
        for _ in range(3):
            await self.run(_WARM_UP_TEXT, predict=True)

    async def run(self, text: str, *, predict: bool) -> tuple[bytes, bool | None]:
        """Analyse one text.

        Args:
            text: The text.
            predict: Whether with a verdict.

        Returns:
            The body of the answer, and the verdict where there is one.

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
        job = _Job(text, predict, asyncio.get_running_loop().create_future())
        self._queue.append(job)
        self._queued_chars += job.cost_chars
        if self._busy < self._workers:
            self._start_batch()
        return await job.future

    async def close(self) -> None:
        """Refuse new work, finish what runs, refuse what waits."""
        self._closed = True
        for job in self._queue:
            if not job.future.done():
                job.future.set_exception(
                    RefusalError(503, ErrorCode.OVERLOADED, "The service is stopping.")
                )
        self._queue.clear()
        await asyncio.to_thread(self._threads.shutdown)

    def _start_batch(self) -> None:
        batch: list[_Job] = []
        chars = 0
        # With several workers, leave something for the others.
        most = max(1, min(_BATCH_TEXTS, -(-len(self._queue) // (self._workers - self._busy))))
        # A batch must be over well within the longest wait, or it is itself the wait.
        most_chars = float(_BATCH_CHARS)
        if self._seconds_per_char:
            most_chars = min(most_chars, self._max_wait_s / 4 / self._seconds_per_char)
        while self._queue and len(batch) < most and (not batch or chars < most_chars):
            job = self._queue.popleft()
            self._queued_chars -= job.cost_chars
            # The client has gone: nobody wants this any more.
            if not job.future.done():
                batch.append(job)
                chars += job.cost_chars
        if not batch:
            return
        self._busy += 1
        self._busy_chars += chars
        loop = asyncio.get_running_loop()
        started_s = self._busy_since_s = time.perf_counter()

        def finished(done: asyncio.Future[list[_Outcome]]) -> None:
            self._busy -= 1
            self._busy_chars -= chars
            self._learn_speed((time.perf_counter() - started_s) / chars)
            for job, outcome in zip(batch, done.result(), strict=True):
                if job.future.done():
                    continue
                if isinstance(outcome, BaseException):
                    job.future.set_exception(outcome)
                else:
                    job.future.set_result(outcome)
            if self._queue and not self._closed:
                self._start_batch()

        work = loop.run_in_executor(self._threads, self._analyse, batch)
        work.add_done_callback(finished)

    def _learn_speed(self, seconds_per_char: float) -> None:
        if self._seconds_per_char:
            self._seconds_per_char += _SPEED_WEIGHT * (seconds_per_char - self._seconds_per_char)
        else:
            self._seconds_per_char = seconds_per_char

    def _analyse(self, batch: list[_Job]) -> list[_Outcome]:
        verdicts = self._predict([job.text for job in batch if job.predict])
        return [next(verdicts) if job.predict else self._preprocess(job.text) for job in batch]

    def _predict(self, texts: list[str]) -> Iterator[_Outcome]:
        try:
            found = self._engine.predict_many(texts) if texts else []
        except Exception:  # noqa: BLE001 - one bad text must not fail the others of its batch
            for text in texts:
                yield self._predict_alone(text)
            return
        for analysis in found:
            yield predict_body(analysis), analysis.prediction.is_spam

    def _predict_alone(self, text: str) -> _Outcome:
        try:
            analysis = self._engine.predict_many([text])[0]
            return predict_body(analysis), analysis.prediction.is_spam
        except Exception as error:  # noqa: BLE001 - becomes 500 INTERNAL for this request alone
            return error

    def _preprocess(self, text: str) -> _Outcome:
        try:
            return preprocess_body(self._engine.preprocess(text)), None
        except Exception as error:  # noqa: BLE001 - becomes 500 INTERNAL for this request alone
            return error
