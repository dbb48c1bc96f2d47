"""Bodies of requests as types, and how they are read."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Final, TypeVar

import msgspec

from spamdetect._answers import Probability
from spamdetect._exchange import SURROGATE_MESSAGE
from spamdetect.models import ErrorCode
from spamdetect.service.respond import RefusalError
from spamdetect.thresholds import PROFILE_NAMES

T = TypeVar("T", bound=msgspec.Struct)
# What is no profile is refused with the names of those there are, not by its type.
_Profile = Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(PROFILE_NAMES)})]
_Text = Annotated[str, msgspec.Meta(description="The text to analyse.")]

MAX_BATCH_TEXTS: Final = 1000
_FIELD: Final = re.compile(r"`\$\.(\w+)|field `(\w+)`")


class Context(msgspec.Struct, frozen=True, gc=False):
    """Where a text comes from; compared with the key's lists and never stored or logged.

    Attributes:
        kind: The caller's word for the kind of text, such as ``comment`` or ``form``.
        author: Who wrote it.
        address: The author's mail address.
    """

    kind: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    author: Annotated[str, msgspec.Meta(max_length=320)] | None = None
    address: Annotated[str, msgspec.Meta(max_length=320)] | None = None

    def __repr__(self) -> str:
        return "Context(...)"


NO_CONTEXT: Final = Context()


class TextRequest(msgspec.Struct, gc=False):
    """Body of ``preprocess``."""

    text: _Text


class Options(msgspec.Struct, gc=False):
    """What a request for verdicts may ask for beyond the API; our additions."""

    threshold: Annotated[
        Probability | _Profile | None,
        msgspec.Meta(description="Spam from this spam_score on, or a profile of the model."),
    ] = None
    reasons: Annotated[bool, msgspec.Meta(description="Say what moved the verdict.")] = False
    context: Context | None = None


class PredictRequest(Options, kw_only=True, gc=False):
    """Body of ``predict``."""

    text: _Text


class BatchRequest(Options, kw_only=True):
    """Body of ``predict/batch``; what is wrong with one text is that text's outcome."""

    texts: Annotated[
        list[Any],
        msgspec.Meta(
            min_length=1,
            max_length=MAX_BATCH_TEXTS,
            description="Texts, or objects with text and context. What is wrong with one is that "
            "text's outcome.",
        ),
    ]


class BatchText(msgspec.Struct):
    """A text of a batch with a context of its own."""

    text: str
    context: Context | None = None


class FeedbackRequest(msgspec.Struct):
    """Body of ``feedback``."""

    text: _Text
    is_spam: bool
    feedback_id: Annotated[
        str,
        msgspec.Meta(
            max_length=64,
            pattern=r"^[^\x00-\x1f\x7f]*$",
            description="Your name for the report; the service makes one of the text.",
        ),
    ] = ""


class EntryRequest(msgspec.Struct):
    """Body of ``lists``."""

    list: str
    kind: str
    value: Annotated[str, msgspec.Meta(max_length=400)]
    text_kind: Annotated[str, msgspec.Meta(max_length=64)] | None = None


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode a body into its type.

    Raises:
        RefusalError: 400 ``INVALID_JSON``, or 422 ``INVALID_REQUEST`` naming the field.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if _is_encodable(_lenient(body)):
            raise not_json() from None
        raise lone_surrogate() from None


def decode_batch(body: bytes) -> BatchRequest:
    """Decode the body of a batch; texts that hold a lone surrogate spoil nothing but themselves.

    Raises:
        RefusalError: As in :func:`decode`.
    """
    try:
        try:
            return _BATCH.decode(body)
        except (msgspec.ValidationError, RecursionError):
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            value = _lenient(body)
            if value is None or _is_encodable(value):
                raise not_json() from None
            return msgspec.convert(value, BatchRequest)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except RecursionError:
        raise not_json() from None


def batch_text(item: object) -> tuple[str, Context | None]:
    """A text of a batch and its own context.

    Raises:
        RefusalError: 422 ``INVALID_REQUEST``, or 400 ``INVALID_JSON`` for a lone surrogate.
    """
    try:
        found = item if isinstance(item, str) else msgspec.convert(item, BatchText)
    except msgspec.ValidationError as error:
        if not isinstance(item, dict):
            raise RefusalError(
                422,
                ErrorCode.INVALID_REQUEST,
                'A text of a batch is a string, or an object with "text" and perhaps "context".',
                field="text",
            ) from None
        raise _invalid(error) from None
    text, context = (found, None) if isinstance(found, str) else (found.text, found.context)
    if not _is_encodable(item):
        raise lone_surrogate()
    return text, context


def not_json() -> RefusalError:
    """400 for a body that is no JSON."""
    return RefusalError(400, ErrorCode.INVALID_JSON, "The body is not valid JSON in UTF-8.")


def lone_surrogate() -> RefusalError:
    """400 for a text that is not Unicode."""
    return RefusalError(400, ErrorCode.INVALID_JSON, SURROGATE_MESSAGE, field="text")


def _invalid(error: msgspec.ValidationError) -> RefusalError:
    # msgspec names the type and the path, never the value.
    match = _FIELD.search(str(error))
    field = "" if match is None else (match[1] or match[2] or "")
    return RefusalError(
        422, ErrorCode.INVALID_REQUEST, f"The body is not as expected: {error}.", field=field
    )


def _lenient(body: bytes) -> Any:
    """A body as the standard library reads it, which lets lone surrogates through; or None."""
    try:
        return json.loads(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


def _is_encodable(value: object) -> bool:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


TEXT: Final = msgspec.json.Decoder(TextRequest)
PREDICT: Final = msgspec.json.Decoder(PredictRequest)
FEEDBACK: Final = msgspec.json.Decoder(FeedbackRequest)
ENTRY: Final = msgspec.json.Decoder(EntryRequest)
_BATCH: Final = msgspec.json.Decoder(BatchRequest)
