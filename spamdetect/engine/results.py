"""The engine's results, as frozen values."""

from __future__ import annotations

import attrs

TEXT_EMPTY = "TEXT_EMPTY"
LANGUAGE_UNKNOWN = "LANGUAGE_UNKNOWN"
TEXT_TRUNCATED = "TEXT_TRUNCATED"


@attrs.frozen
class Language:
    """The detected language of a text.

    Attributes:
        language: ISO 639-1 code, ISO 639-3 where there is none, ``und`` when unknown.
        probability: calibrated confidence in [0, 1]; 0 for ``und``.
        is_reliable: whether the answer is safe to act on.
    """

    language: str
    probability: float
    is_reliable: bool


@attrs.frozen
class Verdict:
    """A calibrated spam verdict; the two scores sum to one."""

    is_spam: bool
    ham_score: float
    spam_score: float


@attrs.frozen
class Preprocessed:
    """A text after preprocessing, with its statistics.

    Attributes:
        input_text: the text exactly as given.
        processed_text: the text the classifier reads.
        text_length: code points of ``input_text``.
        word_count: words of ``input_text`` (UAX #29) that hold a letter or a digit.
        language: the detected language.
    """

    input_text: str
    processed_text: str
    text_length: int
    word_count: int
    language: Language


@attrs.frozen
class Analysis:
    """A preprocessed text with its verdict.

    ``error_code`` is empty, ``TEXT_EMPTY``, ``TEXT_TRUNCATED`` or ``LANGUAGE_UNKNOWN``
    (the first of these that applies).
    """

    input_text: str
    processed_text: str
    text_length: int
    word_count: int
    language: Language
    prediction: Verdict
    error_code: str

    def judged(self, threshold: float) -> Analysis:
        """This analysis with the verdict of another threshold; an empty text stays ham."""
        verdict = self.prediction
        is_spam = verdict.spam_score >= threshold and self.error_code != TEXT_EMPTY
        return attrs.evolve(self, prediction=attrs.evolve(verdict, is_spam=is_spam))


@attrs.frozen
class Reason:
    """One feature that moved a verdict.

    Attributes:
        feature: its name, such as ``words:"free"`` or ``links:2``.
        weight: its share of the log-odds; a positive value speaks for spam.
        explanation: the same in words.
    """

    feature: str
    weight: float
    explanation: str


class ModelError(Exception):
    """A model file is missing, damaged or of another format; the message says what to do."""
