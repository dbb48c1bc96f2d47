"""Local mode: the engine in this process, with the same results as the service's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import attrs

from spamdetect import _messages
from spamdetect._exchange import check_text, too_long_message
from spamdetect.errors import SpamConfigError, SpamError, SpamRequestError
from spamdetect.models import (
    ErrorCode,
    Language,
    Prediction,
    PredictItem,
    PredictResult,
    PreprocessResult,
    Reason,
)
from spamdetect.settings import DEFAULT_MAX_TEXT_CHARS
from spamdetect.thresholds import Threshold
from spamdetect.version import installs

if TYPE_CHECKING:
    from spamdetect.engine import Analysis, Engine
    from spamdetect.engine import Reason as EngineReason


class LocalBackend:
    """Answers from a loaded engine; thread-safe, because the engine is read-only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def load(cls, model_path: Path | None = None, threshold: Threshold | None = None) -> Self:
        """Load a model.

        Args:
            model_path: Model file; None takes the bundled one.
            threshold: Lowest score that is spam, or a profile; None takes the model's.

        Raises:
            SpamConfigError: The engine or its model cannot be loaded.
        """
        try:
            from spamdetect.engine import Engine, ModelError
        except ImportError as error:
            raise SpamConfigError(f"Local mode needs the engine: {installs('spam')}.") from error
        try:
            return cls(Engine.load(model_path, threshold=threshold))
        except (ModelError, OSError) as error:
            raise SpamConfigError(f"The model cannot be loaded: {error}") from error

    def explain(self, text: str, top: int) -> list[EngineReason]:
        """The features that moved a verdict most."""
        return self._engine.explain(_checked(text), top=top)

    def predict(self, text: str, *, reasons: bool = False) -> PredictResult:
        """Classify one text, and say what moved the verdict."""
        result = _predict_result(self._engine.predict(_checked(text)))
        return self._with_reasons(result) if reasons else result

    def predict_items(
        self, first_index: int, texts: Sequence[str], *, reasons: bool = False
    ) -> list[PredictItem]:
        """Classify a batch, faster than one by one; an unacceptable text fails alone.

        Args:
            first_index: Index of the first text in the whole input.
            texts: The batch.
            reasons: Whether to say what moved each verdict.
        """
        errors: dict[int, SpamError] = {}
        for position, text in enumerate(texts):
            try:
                _checked(text)
            except SpamError as error:
                errors[position] = error
        good = [text for position, text in enumerate(texts) if position not in errors]
        results = map(_predict_result, self._engine.predict_many(good))
        found = map(self._with_reasons, results) if reasons else results
        return [
            PredictItem(first_index + position, error=errors[position])
            if position in errors
            else PredictItem(first_index + position, result=next(found))
            for position in range(len(texts))
        ]

    def predict_batch(
        self, texts: Sequence[tuple[str, object, SpamError | None]], *, reasons: bool = False
    ) -> list[PredictItem]:
        """Classify a batch of which some texts may be known to be wrong already."""
        items = iter(self.predict_items(0, [text for text, _, _ in texts], reasons=reasons))
        return [
            PredictItem(item.index, error=error) if error is not None else item
            for item, (_, _, error) in zip(items, texts, strict=True)
        ]

    def _with_reasons(self, result: PredictResult) -> PredictResult:
        reasons = self._engine.explain(result.input_text)
        found = tuple(Reason(each.feature, each.weight, each.explanation) for each in reasons)
        return attrs.evolve(result, reasons=found)

    def preprocess(self, text: str) -> PreprocessResult:
        """Clean one text and detect its language."""
        found = self._engine.preprocess(_checked(text))
        return PreprocessResult(
            found.input_text,
            found.processed_text,
            found.text_length,
            found.word_count,
            Language(
                found.language.language, found.language.probability, found.language.is_reliable
            ),
            _messages.PREPROCESSED,
        )


def _checked(text: str) -> str:
    """Return the text, unless a service with default settings would refuse it."""
    check_text(text)
    if len(text) > DEFAULT_MAX_TEXT_CHARS:
        raise SpamRequestError(
            too_long_message(DEFAULT_MAX_TEXT_CHARS), error_code=ErrorCode.TEXT_TOO_LONG
        )
    return text


def _predict_result(found: Analysis) -> PredictResult:
    return PredictResult(
        found.input_text,
        found.processed_text,
        found.text_length,
        found.word_count,
        Language(found.language.language, found.language.probability, found.language.is_reliable),
        Prediction(
            found.prediction.is_spam, found.prediction.ham_score, found.prediction.spam_score
        ),
        found.error_code,
        _messages.predicted(found.prediction.is_spam, found.error_code),
    )
