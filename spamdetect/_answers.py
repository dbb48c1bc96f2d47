"""Answers of the API as types: the clients decode them, and the OpenAPI document is made of them.

The bounds are for the document alone: a client takes what it can read.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from spamdetect.models import ErrorCode, Reason

Count = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
Probability = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 1})]
_INDICATORS = [
    ErrorCode.NONE.value,
    ErrorCode.TEXT_EMPTY.value,
    ErrorCode.LANGUAGE_UNKNOWN.value,
    ErrorCode.TEXT_TRUNCATED.value,
]


class Language(msgspec.Struct):
    """The detected language."""

    language: Annotated[str, Meta(description="ISO 639-1, else 639-3; und when undetermined.")]
    probability: Probability
    is_reliable: bool


class Prediction(msgspec.Struct):
    """The verdict."""

    is_spam: bool
    ham_score: Probability
    spam_score: Probability


class Preprocessed(msgspec.Struct):
    """``data`` of the answer to ``preprocess``."""

    input_text: Annotated[str, Meta(description="The text as received.")]
    processed_text: Annotated[str, Meta(description="The text after preprocessing.")]
    text_length: Annotated[Count, Meta(description="Code points of input_text.")]
    word_count: Annotated[
        Count, Meta(description="Words by Unicode segmentation that hold a letter or a digit.")
    ]
    language: Language


class Predicted(Preprocessed):
    """``data`` of the answer to ``predict``."""

    prediction: Prediction
    error_code: Annotated[str, Meta(extra_json_schema={"enum": _INDICATORS})]
    reasons: Annotated[
        list[Reason] | None,
        Meta(description="What moved the verdict, strongest first; only where it was asked for."),
    ] = None
