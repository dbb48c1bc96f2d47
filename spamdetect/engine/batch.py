"""Classifying many texts on all cores, from a coroutine or from plain code."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable

from spamdetect.engine.core import Engine
from spamdetect.engine.results import Analysis
from spamdetect.thresholds import Threshold


def _classify(texts: list[str]) -> list[Analysis]:
    from spamdetect.engine.pool import loaded_engine

    return loaded_engine().predict_many(texts)


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
        TypeError: ``texts`` is a single text.
        ValueError: ``processes`` or ``chunk_size`` is below 1.

    Example:
        >>> async def spam(lines):
        ...     return [a async for a in classify_many(lines) if a.prediction.is_spam]
    """
    if isinstance(texts, str | bytes):
        raise TypeError("classify_many takes an iterable of texts, not one: pass [text]")
    # Imported here: at the top of the module it would double the engine's import time.
    from spamdetect.engine.pool import engine_pool

    count = usable_cores() if processes is None else processes
    if count < 1 or chunk_size < 1:
        raise ValueError("processes and chunk_size must be at least 1")
    path = None if model_path is None else os.fspath(model_path)
    await asyncio.to_thread(Engine.load, path, threshold=threshold)  # errors here, not in a worker
    pool = engine_pool(count, path, threshold)
    loop = asyncio.get_running_loop()
    under_way: deque[asyncio.Future[list[Analysis]]] = deque()
    try:
        async for chunk in _chunks(texts, chunk_size):
            under_way.append(loop.run_in_executor(pool, _classify, chunk))
            if len(under_way) >= 2 * count:
                for analysis in await under_way.popleft():
                    yield analysis
        while under_way:
            for analysis in await under_way.popleft():
                yield analysis
    finally:
        for future in under_way:
            future.cancel()
        await asyncio.shield(asyncio.to_thread(pool.shutdown, cancel_futures=True))


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
