"""The ``message`` of a verdict, identical from the service and from local mode."""

from __future__ import annotations

from spamdetect.models import ErrorCode

PREPROCESSED = "Text preprocessed."
_SPAM = "Text classified as spam."
_HAM = "Text classified as not spam."
_NOTES = {
    ErrorCode.TEXT_EMPTY.value: "Nothing to classify: no text was left after preprocessing.",
    ErrorCode.LANGUAGE_UNKNOWN.value: " The language could not be determined.",
    ErrorCode.TEXT_TRUNCATED.value: " Only its beginning and its end were analysed.",
}


def predicted(is_spam: bool, error_code: str) -> str:
    """Express a verdict in one or two sentences.

    Args:
        is_spam: The verdict.
        error_code: The indicator inside the answer, "" when all is well.

    Example:
        >>> predicted(True, "")
        'Text classified as spam.'
    """
    if error_code == ErrorCode.TEXT_EMPTY:
        return _NOTES[error_code]
    return (_SPAM if is_spam else _HAM) + _NOTES.get(error_code, "")
