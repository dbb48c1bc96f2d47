"""The spam classifier and language detector, in the process and without any network.

Example:
    >>> from spamdetect.engine import Engine
    >>> Engine.load().predict("See you at five?").prediction.is_spam
    False
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {"Engine": "core", "classify_many": "batch"}


def __getattr__(name: str) -> Any:
    # Lazy (PEP 562): the detector alone needs neither asyncio nor the classifier.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'results')}"), name)
    globals()[name] = value
    return value
