"""Analyses in worker processes: what is asked of them, and answered, as bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from spamdetect.engine.pool import ProcessPool, WorkerEndedError
from spamdetect.service.analysis import EngineFailedError, Item, Outcome, analyse, place_of
from spamdetect.service.rules import Found
from spamdetect.thresholds import Threshold

if TYPE_CHECKING:
    from spamdetect.engine.core import Engine


class _Answer(msgspec.Struct, array_like=True):
    """An `Outcome`; with a ``kind`` it is a failure."""

    body: bytes = b""
    is_spam: bool | None = None
    found: Found | None = None
    kind: str = ""
    place: str = ""


_ENCODER: Final = msgspec.msgpack.Encoder()
_ITEMS: Final = msgspec.msgpack.Decoder(list[Item])
_ANSWERS: Final = msgspec.msgpack.Decoder(list[_Answer])


class EngineProcesses(ProcessPool):
    """The service's worker processes.

    Args:
        count: How many.
        model_path: Model file; None takes the packaged one.
        threshold: Lowest score that is spam; None takes the model's.
    """

    def __init__(
        self,
        count: int,
        model_path: Path | None = None,
        threshold: Threshold | None = None,
    ) -> None:
        super().__init__(count, model_path, threshold, answer_items)

    async def analyse(self, items: list[Item]) -> list[Outcome]:
        """Analyse a batch.

        Raises:
            EngineFailedError: The worker ended before it answered.
        """
        try:
            answers = _ANSWERS.decode(await self.ask(_ENCODER.encode(items)))
        except WorkerEndedError:
            raise EngineFailedError("WorkerEnded", "a worker") from None
        return [
            EngineFailedError(each.kind, each.place)
            if each.kind
            else each.found or (each.body, each.is_spam)
            for each in answers
        ]


def answer_items(engine: Engine, content: bytes) -> bytes:
    """Analyse a batch, in a worker; the batch may fail, but not the worker."""
    items = _ITEMS.decode(content)
    try:
        return _ENCODER.encode([_answer(outcome) for outcome in analyse(engine, items)])
    except Exception as error:  # noqa: BLE001 - as above
        failure = _Answer(kind=type(error).__name__, place=place_of(error))
        return _ENCODER.encode([failure] * len(items))


def _answer(outcome: Outcome) -> _Answer:
    if isinstance(outcome, EngineFailedError):
        return _Answer(kind=outcome.kind, place=outcome.place)
    if isinstance(outcome, Found):
        return _Answer(found=outcome)
    return _Answer(*outcome)
