"""What the clients return: frozen objects that mirror ``data`` of the HTTP answers.

Source: parts 2 and 4 of the spam detection HTTP API. Texts stay out of ``repr`` so that a
logged result never leaks a message.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import attrs

from spamdetect.errors import SpamError


class ErrorCode(StrEnum):
    """Values of ``data.error_code``: indicators inside a 200, and the reasons of refusals."""

    NONE = ""
    TEXT_EMPTY = "TEXT_EMPTY"
    LANGUAGE_UNKNOWN = "LANGUAGE_UNKNOWN"
    TEXT_TRUNCATED = "TEXT_TRUNCATED"

    INVALID_JSON = "INVALID_JSON"
    MISSING_API_KEY = "MISSING_API_KEY"
    INVALID_API_KEY = "INVALID_API_KEY"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
    TEXT_TOO_LONG = "TEXT_TOO_LONG"
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
    INVALID_REQUEST = "INVALID_REQUEST"
    RATE_LIMITED = "RATE_LIMITED"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    INTERNAL = "INTERNAL"
    OVERLOADED = "OVERLOADED"
    UNAVAILABLE = "UNAVAILABLE"


@attrs.frozen
class Language:
    """The detected language.

    Attributes:
        language: ISO 639-1 code, 639-3 where there is none, ``und`` when undetermined.
        probability: Confidence in [0, 1].
        is_reliable: Whether the detection is good enough to act on.
    """

    language: str
    probability: float
    is_reliable: bool


@attrs.frozen
class Prediction:
    """The verdict.

    Attributes:
        is_spam: True when ``spam_score`` reaches the service's threshold.
        ham_score: Probability that the text is not spam, in [0, 1].
        spam_score: Probability that it is; ``ham_score + spam_score`` is 1.
    """

    is_spam: bool
    ham_score: float
    spam_score: float


@attrs.frozen
class Reason:
    """One thing that moved a verdict.

    Attributes:
        feature: Its name, such as ``words:"free"``, ``list:block:link:...``, ``feedback:...``.
        weight: What it added to the log-odds; a positive value speaks for spam. An entry of a list
            has 20 or -20 and decides alone.
        explanation: The same in words.
    """

    feature: str = attrs.field(repr=False)
    weight: float
    explanation: str = attrs.field(repr=False)


@attrs.frozen
class Context:
    """Where a text comes from, for the key's lists. The service neither stores nor logs it.

    Attributes:
        kind: Your word for the kind of text, such as ``comment`` or ``form``.
        author: Who wrote it.
        address: The author's mail address.
    """

    kind: str | None = None
    author: str | None = attrs.field(default=None, repr=False)
    address: str | None = attrs.field(default=None, repr=False)


@attrs.frozen
class ListEntry:
    """An entry of the key's allow or block list.

    Attributes:
        entry_id: For ``remove_from_list``.
        list_name: ``allow`` or ``block``.
        kind: ``sender``, ``link``, ``contact`` or ``phrase``.
        value: What is on the list.
        text_kind: The only kind of text that it is for; None is every kind.
    """

    entry_id: str
    list_name: str
    kind: str
    value: str = attrs.field(repr=False)
    text_kind: str | None = None


@attrs.frozen
class Feedback:
    """A report that counts for the key.

    Attributes:
        feedback_id: For ``withdraw_feedback``.
        is_spam: What the text was reported as.
        received_s: Unix time in seconds.
    """

    feedback_id: str
    is_spam: bool
    received_s: float


def _raw_answer(result: attrs.AttrsInstance, body: bytes) -> dict[str, Any]:
    if body:
        decoded: dict[str, Any] = json.loads(body)
        return decoded
    data = attrs.asdict(result)
    message = data.pop("message")
    data.pop("_body")
    if data.get("reasons", ()) is None:
        del data["reasons"]
    return {"message": message, "data": data}


@attrs.frozen
class PreprocessResult:
    """Answer of ``preprocess``: the cleaned text, its statistics and language.

    Attributes:
        input_text: The text as it was sent.
        processed_text: The text after preprocessing.
        text_length: Code points of ``input_text``.
        word_count: Words by Unicode segmentation that contain a letter or a digit.
        language: The detected language.
        message: Human-readable outcome.
    """

    input_text: str = attrs.field(repr=False)
    processed_text: str = attrs.field(repr=False)
    text_length: int
    word_count: int
    language: Language
    message: str = ""
    _body: bytes = attrs.field(default=b"", repr=False, eq=False)

    @property
    def raw(self) -> dict[str, Any]:
        """The whole answer, ``{"message": ..., "data": {...}}``, unknown fields included."""
        return _raw_answer(self, self._body)


@attrs.frozen
class PredictResult:
    """Answer of ``predict``: everything that ``preprocess`` returns, and the verdict.

    Attributes:
        input_text: The text as it was sent.
        processed_text: The text after preprocessing.
        text_length: Code points of ``input_text``.
        word_count: Words by Unicode segmentation that contain a letter or a digit.
        language: The detected language.
        prediction: The verdict.
        error_code: "" or one of ``TEXT_EMPTY``, ``LANGUAGE_UNKNOWN``, ``TEXT_TRUNCATED``.
        message: Human-readable outcome.
        reasons: What moved the verdict, strongest first; None unless asked for.
    """

    input_text: str = attrs.field(repr=False)
    processed_text: str = attrs.field(repr=False)
    text_length: int
    word_count: int
    language: Language
    prediction: Prediction
    error_code: str = ""
    message: str = ""
    _body: bytes = attrs.field(default=b"", repr=False, eq=False)
    reasons: tuple[Reason, ...] | None = attrs.field(default=None, repr=False)

    @property
    def is_spam(self) -> bool:
        """Short for ``prediction.is_spam``."""
        return self.prediction.is_spam

    @property
    def raw(self) -> dict[str, Any]:
        """The whole answer, ``{"message": ..., "data": {...}}``, unknown fields included."""
        return _raw_answer(self, self._body)


@attrs.frozen
class PredictItem:
    """One outcome of ``predict_many``: a result or an error, never both.

    Attributes:
        index: Position of the text in the input, from 0.
        result: The result, or None when this text failed.
        error: The error, or None when this text succeeded.
    """

    index: int
    result: PredictResult | None = None
    error: SpamError | None = None

    def unwrap(self) -> PredictResult:
        """Return the result, or raise the error of this text.

        Raises:
            SpamError: The error of this text.
        """
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result
