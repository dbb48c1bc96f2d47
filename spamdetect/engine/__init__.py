"""The spam classifier and language detector, in the process and without any network.

Example:
    >>> from spamdetect.engine import Engine
    >>> Engine.load().predict("See you at five?").prediction.is_spam
    False
"""

from spamdetect.engine.batch import classify_many
from spamdetect.engine.core import Engine
from spamdetect.engine.results import (
    LANGUAGE_UNKNOWN,
    TEXT_EMPTY,
    TEXT_TRUNCATED,
    Analysis,
    Language,
    ModelError,
    Preprocessed,
    Reason,
    Verdict,
)

__all__ = [
    "LANGUAGE_UNKNOWN",
    "TEXT_EMPTY",
    "TEXT_TRUNCATED",
    "Analysis",
    "Engine",
    "Language",
    "ModelError",
    "Preprocessed",
    "Reason",
    "Verdict",
    "classify_many",
]
