"""Classifying a file: texts in, verdicts out, on all cores, stopping cleanly when asked."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs

from spamdetect.engine import Analysis, Engine, classify_many
from spamdetect.engine.pool import WorkerEndedError
from spamdetect.errors import SpamError
from spamdetect.files.journal import Verdict
from spamdetect.files.records import Record
from spamdetect.thresholds import Threshold

# Below this, starting processes takes longer than the work.
_IN_PROCESS_BYTES: Final = 1 << 20
_BATCH: Final = 64


@attrs.frozen
class Job:
    """What to classify and how.

    Attributes:
        model_path: Model file; None takes the packaged one.
        threshold: Spam from this score on; None takes the model's.
        processes: How many; None takes all cores, or only this process for a small input.
        input_bytes: Size of the input.
        with_text: Whether verdicts carry their text.
    """

    model_path: Path | None = None
    threshold: Threshold | None = None
    processes: int | None = None
    input_bytes: int = 0
    with_text: bool = False


async def classify_records(
    records: Iterable[Record], job: Job, stop: threading.Event
) -> AsyncIterator[tuple[Verdict, int]]:
    """Classify records in order.

    Args:
        records: The records.
        job: How to classify them.
        stop: When set, no further record is started; those in progress still come out.

    Yields:
        A verdict, and the bytes of the input read for it.
    """
    waiting: deque[Record] = deque()

    def texts() -> Iterator[str]:
        for record in records:
            if stop.is_set():
                return
            waiting.append(record)
            yield from record.texts

    found: list[Analysis] = []
    async for analysis in _analyses(texts(), job):
        while not waiting[0].texts:
            record = waiting.popleft()
            yield _without_text(record), record.end_byte
        found.append(analysis)
        if len(found) == len(waiting[0].texts):
            record = waiting.popleft()
            yield _with_verdict(record, found, job.with_text), record.end_byte
            found = []
    for record in waiting:
        yield _without_text(record), record.end_byte


async def _analyses(texts: Iterator[str], job: Job) -> AsyncIterator[Analysis]:
    small = job.processes is None and job.input_bytes < _IN_PROCESS_BYTES
    if small or job.processes == 1:
        engine = Engine.load(job.model_path, threshold=job.threshold)
        while batch := list(itertools.islice(texts, _BATCH)):
            for analysis in engine.predict_many(batch):
                yield analysis
        return
    try:
        found = classify_many(
            texts, model_path=job.model_path, threshold=job.threshold, processes=job.processes
        )
        async for analysis in found:
            yield analysis
    except WorkerEndedError:
        raise SpamError(
            "A worker process was ended from outside, for its memory perhaps. What is done is "
            "kept; the same command goes on, with fewer --processes if memory is short."
        ) from None


def _without_text(record: Record) -> Verdict:
    return Verdict(
        record.index, record.file, record.line, error_code="INVALID_RECORD", note=record.problem
    )


def _with_verdict(record: Record, each: list[Analysis], with_text: bool) -> Verdict:
    """The verdict on a record's only text, or on the worst of a mail's."""
    worst = max(range(len(each)), key=lambda number: each[number].prediction.spam_score)
    found = each[worst]
    return Verdict(
        record.index,
        record.file,
        record.line,
        found.prediction.is_spam,
        found.prediction.spam_score,
        found.prediction.ham_score,
        found.language.language,
        found.language.probability,
        found.language.is_reliable,
        found.text_length,
        found.word_count,
        found.error_code,
        text=record.texts[worst] if with_text else None,
    )
