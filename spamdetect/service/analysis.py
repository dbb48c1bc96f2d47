"""What the engine is asked about a text, and its answer as the service passes it on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from spamdetect.links import found_in, hosts_of
from spamdetect.service.respond import predict_body, preprocess_body
from spamdetect.service.rules import Found, digits_of
from spamdetect.service.traces import sketch_of, words_of
from spamdetect.thresholds import Threshold

if TYPE_CHECKING:
    from spamdetect.engine import Analysis, Preprocessed, Reason


# Cost of a text besides its length, in characters, so that many tiny texts are not free.
_BASE_COST_CHARS: Final = 100
# As measured: a verdict takes 70 us, its reasons 3 ms.
_REASONS_COST: Final = 40
_TRACES_COST: Final = 2


class EngineFailedError(Exception):
    """The engine failed on a text: where, and with what kind of error, but not on which text.

    Args:
        kind: Name of the error's type.
        place: File, line and function.
    """

    def __init__(self, kind: str, place: str) -> None:
        super().__init__(kind, place)
        self.kind = kind
        self.place = place


class Item(NamedTuple):
    """A text, and what is wanted.

    Attributes:
        text: The text.
        verdict: Whether a verdict is wanted, or the normalised text alone.
        limit: Lowest score that is spam; None is the engine's.
        reasons: Whether it is to be said what moved the verdict.
        traces: Whether it is to be compared with the key's rules.
    """

    text: str
    verdict: bool = True
    limit: float | None = None
    reasons: bool = False
    traces: bool = False

    @property
    def cost_chars(self) -> int:
        """What it costs, in characters of a text of which only a verdict is wanted."""
        times = _REASONS_COST if self.reasons else _TRACES_COST if self.traces else 1
        return (_BASE_COST_CHARS + len(self.text)) * times


# The body of the answer and its verdict; or what was found, where more is to be done for it.
Answer = tuple[bytes, bool | None] | Found
Outcome = Answer | EngineFailedError


class TextEngine(Protocol):
    """What the service needs from :class:`spamdetect.engine.Engine`."""

    @property
    def model_version(self) -> str:
        """Identifies the model."""

    @property
    def threshold(self) -> float:
        """Lowest score that is spam."""

    def threshold_of(self, threshold: Threshold) -> float:
        """The number that a threshold stands for."""

    def explain(self, text: str) -> list[Reason]:
        """What moved the verdict most."""

    def preprocess(self, text: str) -> Preprocessed:
        """Clean one text."""

    def predict_many(self, texts: Sequence[str]) -> list[Analysis]:
        """Classify a batch."""


def analyse(engine: TextEngine, items: Sequence[Item]) -> list[Outcome]:
    """Analyse a batch; a text on which the engine fails fails alone.

    Args:
        engine: The engine.
        items: Texts, each with what is wanted.
    """
    verdicts = _predict(engine, [item for item in items if item.verdict])
    return [next(verdicts) if item.verdict else _preprocess(engine, item.text) for item in items]


def _predict(engine: TextEngine, items: list[Item]) -> Iterator[Outcome]:
    try:
        found = engine.predict_many([item.text for item in items]) if items else []
    except Exception:  # noqa: BLE001 - one bad text must not fail the others of its batch
        for item in items:
            yield _verdict(engine, item, None)
        return
    for analysis, item in zip(found, items, strict=True):
        yield _verdict(engine, item, analysis)


def _verdict(engine: TextEngine, item: Item, analysis: Analysis | None) -> Outcome:
    try:
        if analysis is None:
            analysis = engine.predict_many([item.text])[0]
        if item.limit is not None:
            analysis = analysis.judged(item.limit)
        if not (item.reasons or item.traces):
            return predict_body(analysis), analysis.prediction.is_spam
        reasons = tuple(engine.explain(item.text)) if item.reasons else ()
        if not item.traces:
            return Found(analysis, reasons)
        identifiers, processed = found_in(item.text), analysis.processed_text
        words = tuple(words_of(processed))
        sketch = sketch_of(processed, hosts_of(identifiers))
        digits = digits_of(item.text)
        return Found(analysis, reasons, words, sketch, identifiers, digits)
    except Exception as error:  # noqa: BLE001 - becomes 500 INTERNAL for this request alone
        return EngineFailedError(type(error).__name__, place_of(error))


def _preprocess(engine: TextEngine, text: str) -> Outcome:
    try:
        return preprocess_body(engine.preprocess(text)), None
    except Exception as error:  # noqa: BLE001 - becomes 500 INTERNAL for this request alone
        return EngineFailedError(type(error).__name__, place_of(error))


def place_of(error: BaseException) -> str:
    """File, line and function where an error arose, without any values."""
    step = error.__traceback__
    if step is None:
        return "unknown"
    while step.tb_next is not None:
        step = step.tb_next
    code = step.tb_frame.f_code
    return f"{code.co_filename}:{step.tb_lineno} in {code.co_name}"
