"""Classifying many texts on all cores, from a coroutine or from plain code."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable

from spamdetect.engine.core import Engine
from spamdetect.engine.results import Analysis
from spamdetect.thresholds import Threshold


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


async def classify_many(
    texts: Iterable[str] | AsyncIterable[str],
    *,
    model_path: str | os.PathLike[str] | None = None,
    threshold: Threshold | None = None,
    processes: int | None = None,
    chunk_size: int = 256,
) -> AsyncIterator[Analysis]:
    """Classify texts in a pool of processes; results come in order while the loop stays free.

    At most two chunks per process are in flight, so an endless source is read no faster than
    it is processed.

    Args:
        texts: any iterable, synchronous or asynchronous.
        model_path: as for `Engine.load`.
        threshold: as for `Engine.load`.
        processes: how many worker processes; all usable cores by default.
        chunk_size: texts sent to a process at once.

    Yields:
        One analysis for each text, in the order of the texts.

    Raises:
        ModelError: the model cannot be loaded.
        spamdetect.engine.pool.WorkerEndedError: a process was ended from outside.
        TypeError: ``texts`` is a single text.
        ValueError: ``processes`` or ``chunk_size`` is below 1.

    Example:
        >>> async def spam(lines):
        ...     return [a async for a in classify_many(lines) if a.prediction.is_spam]
    """
    if isinstance(texts, str | bytes):
        raise TypeError("classify_many takes an iterable of texts, not one: pass [text]")
    # Imported here: at the top of the module it would double the engine's import time.
    from spamdetect.engine.pool import ProcessPool, analyses_of, batch_of, classify

    count = usable_cores() if processes is None else processes
    if count < 1 or chunk_size < 1:
        raise ValueError("processes and chunk_size must be at least 1")
    # Errors of the model come here, not in a worker.
    await asyncio.to_thread(Engine.load, model_path, threshold=threshold)
    pool = ProcessPool(count, model_path, threshold, classify)
    under_way: deque[tuple[list[str], asyncio.Task[bytes]]] = deque()
    try:
        async for chunk in _chunks(texts, chunk_size):
            under_way.append((chunk, asyncio.create_task(pool.ask(batch_of(chunk)))))
            if len(under_way) >= 2 * count:
                chunk, answer = under_way.popleft()
                for analysis in analyses_of(chunk, await answer):
                    yield analysis
        while under_way:
            chunk, answer = under_way.popleft()
            for analysis in analyses_of(chunk, await answer):
                yield analysis
    finally:
        left = [answer for _, answer in under_way]
        for answer in left:
            answer.cancel()
        await asyncio.shield(asyncio.gather(pool.close(), *left, return_exceptions=True))


async def _chunks(texts: Iterable[str] | AsyncIterable[str], size: int) -> AsyncIterator[list[str]]:
    chunk: list[str] = []
    if isinstance(texts, AsyncIterable):
        async for text in texts:
            chunk.append(text)
            if len(chunk) == size:
                yield chunk
                chunk = []
    else:
        for text in texts:
            chunk.append(text)
            if len(chunk) == size:
                yield chunk
                chunk = []
                await asyncio.sleep(0)
    if chunk:
        yield chunk
