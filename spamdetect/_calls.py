"""What each method of the clients asks for: its request, and how the answer is read. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import attrs
import msgspec

from spamdetect._exchange import (
    BATCH_PATH,
    FEEDBACK_PATH,
    LISTS_PATH,
    PREDICT_PATH,
    PREPROCESS_PATH,
    THRESHOLD_HEADER,
    ApiRequest,
    ApiResponse,
    check_text,
    decode,
    error_from,
    parse_predict,
    parse_predict_at,
    parse_preprocess,
)
from spamdetect.errors import SpamError, SpamRequestError, SpamResponseError
from spamdetect.models import (
    Context,
    Feedback,
    ListEntry,
    PredictItem,
    PredictResult,
    PreprocessResult,
)
from spamdetect.thresholds import Threshold

R = TypeVar("R")

MAX_BATCH_TEXTS: Final = 1000
Text = str | tuple[str, Context]


@attrs.frozen
class Call(Generic[R]):
    """One call: what is sent, and what turns a 2xx answer into the result."""

    request: ApiRequest
    parse: Callable[[ApiResponse], R]


def predict(
    text: str, threshold: Threshold | None, reasons: bool, context: Context | None
) -> Call[PredictResult]:
    """Classify one text.

    Raises:
        SpamRequestError: ``text`` is not a string, or contains a lone surrogate, which no JSON
            document in UTF-8 can carry.
    """
    check_text(text)
    body = {"text": text, **_options(threshold, reasons, context)}
    parse = parse_predict if threshold is None else parse_predict_at
    return Call(_post(PREDICT_PATH, body), parse)


def preprocess(text: str) -> Call[PreprocessResult]:
    """Clean one text.

    Raises:
        SpamRequestError: As in :func:`predict`.
    """
    check_text(text)
    return Call(_post(PREPROCESS_PATH, {"text": text}), parse_preprocess)


def checked_batch(texts: Iterable[Text]) -> list[tuple[str, Context | None, SpamError | None]]:
    """The texts of a batch, each with its context, or with what is wrong with it.

    Raises:
        SpamRequestError: ``texts`` is a single text, or there are too many.
    """
    if isinstance(texts, str | bytes):
        raise SpamRequestError(
            "predict_batch takes an iterable of texts, not one; call predict, or pass [text].",
            error_code="INVALID_REQUEST",
        )
    checked: list[tuple[str, Context | None, SpamError | None]] = []
    for each in texts:
        text, context = each if isinstance(each, tuple) else (each, None)
        try:
            check_text(text)
            checked.append((text, context, None))
        except SpamRequestError as error:
            checked.append(("", None, error))
    if len(checked) > MAX_BATCH_TEXTS:
        raise SpamRequestError(
            f"A batch takes at most {MAX_BATCH_TEXTS} texts, not {len(checked)}; "
            "predict_many takes any number.",
            error_code="INVALID_REQUEST",
        )
    return checked


def predict_batch(
    texts: list[tuple[str, Context | None, SpamError | None]],
    threshold: Threshold | None,
    reasons: bool,
    context: Context | None,
) -> Call[list[PredictItem]]:
    """Classify what `checked_batch` returned, but for the texts that are wrong already."""
    sent = [
        text if own is None else {"text": text, "context": _fields_of(own)}
        for text, own, error in texts
        if error is None
    ]
    body = {"texts": sent, **_options(threshold, reasons, context)}
    errors = {index: error for index, (_, _, error) in enumerate(texts) if error is not None}
    parse = partial(_parse_batch, len(texts), errors, threshold is not None)
    return Call(_post(BATCH_PATH, body, texts=len(sent)), parse)


def send_feedback(text: str, is_spam: bool, feedback_id: str | None) -> Call[str]:
    """Report what a text is. A repeat is harmless: without an id the service makes one of the text.

    Raises:
        SpamRequestError: As in :func:`predict`.
    """
    check_text(text)
    body = {"text": text, "is_spam": is_spam, "feedback_id": feedback_id or ""}
    return Call(_post(FEEDBACK_PATH, body), lambda answer: _data(answer, _Reported).feedback_id)


def feedback() -> Call[list[Feedback]]:
    """The feedback that counts for the key."""
    request = ApiRequest(FEEDBACK_PATH, method="GET")
    return Call(request, lambda answer: _data(answer, _Feedbacks).feedback)


def withdraw_feedback(feedback_id: str) -> Call[None]:
    """Take feedback back."""
    request = ApiRequest(f"{FEEDBACK_PATH}/{quote(feedback_id, safe='')}", method="DELETE")
    return Call(request, parse_acknowledgement)


def lists() -> Call[list[ListEntry]]:
    """The key's lists."""
    request = ApiRequest(LISTS_PATH, method="GET", max_answer_bytes=4 << 20)
    return Call(request, lambda answer: [_entry(each) for each in _data(answer, _Lists).entries])


def add_to_list(list_name: str, kind: str, value: str, text_kind: str | None) -> Call[ListEntry]:
    """Put an entry on a list.

    Raises:
        SpamRequestError: As in :func:`predict`.
    """
    check_text(value)
    body = {"list": list_name, "kind": kind, "value": value, "text_kind": text_kind}
    return Call(_post(LISTS_PATH, body), lambda answer: _entry(_data(answer, _Added).entry))


def remove_from_list(entry_id: str) -> Call[None]:
    """Take an entry off its list."""
    request = ApiRequest(f"{LISTS_PATH}/{quote(entry_id, safe='')}", method="DELETE")
    return Call(request, parse_acknowledgement)


def parse_acknowledgement(answer: ApiResponse) -> None:
    """Read an answer whose data says nothing.

    Raises:
        SpamResponseError: The body is not an envelope.
    """
    decode(answer, _ANYTHING)


def _post(path: str, body: Mapping[str, object], texts: int = 1) -> ApiRequest:
    content = msgspec.json.encode(body)
    # An answer holds the text twice, each code point escaped to 12 bytes, and perhaps reasons.
    most = (1 << 20) + 32 * len(content) + (texts << 13)
    return ApiRequest(path, content, max_answer_bytes=most)


def _options(
    threshold: Threshold | None, reasons: bool, context: Context | None
) -> dict[str, object]:
    """The fields beyond the API; none where nothing beyond it is asked for."""
    asked: dict[str, object] = {}
    if threshold is not None:
        asked["threshold"] = threshold
    if reasons:
        asked["reasons"] = True
    if context is not None:
        asked["context"] = _fields_of(context)
    return asked


def _fields_of(context: Context) -> dict[str, str]:
    for value in attrs.astuple(context):
        if value is not None:
            check_text(value)
    return attrs.asdict(context, filter=lambda _, value: value is not None)


def _parse_batch(
    count: int, errors: Mapping[int, SpamError], has_threshold: bool, answer: ApiResponse
) -> list[PredictItem]:
    parts = iter(_data(answer, _Batch).results)
    if has_threshold and THRESHOLD_HEADER not in answer.headers:
        return [PredictItem(0, result=parse_predict_at(answer))]  # raises, and says why
    items: list[PredictItem] = []
    for index in range(count):
        if index in errors:
            items.append(PredictItem(index, error=errors[index]))
            continue
        raw = next(parts, None)
        if raw is None:
            raise _mismatch(answer)
        part = _part(answer, raw)
        if part.status_code == 200:
            items.append(PredictItem(index, result=parse_predict(part)))
        else:
            items.append(PredictItem(index, error=error_from(part, 0.0)))
    if next(parts, None) is not None:
        raise _mismatch(answer)
    return items


def _part(answer: ApiResponse, raw: msgspec.Raw) -> ApiResponse:
    try:
        status = _STATUS.decode(raw).status
    except msgspec.MsgspecError:
        raise _mismatch(answer) from None
    return ApiResponse(status, answer.headers, bytes(raw))


def _mismatch(answer: ApiResponse) -> SpamResponseError:
    return SpamResponseError(
        "The answer does not have one outcome for each text.", status_code=answer.status_code
    )


class _Status(msgspec.Struct):
    status: int


class _Batch(msgspec.Struct):
    results: list[msgspec.Raw]


class _Reported(msgspec.Struct):
    feedback_id: str = ""


class _Feedbacks(msgspec.Struct):
    feedback: list[Feedback]


class _WireEntry(msgspec.Struct, rename={"list_name": "list"}):
    entry_id: str
    list_name: str
    kind: str
    value: str
    text_kind: str | None = None


class _Lists(msgspec.Struct):
    entries: list[_WireEntry]


class _Added(msgspec.Struct):
    entry: _WireEntry


class _Envelope(msgspec.Struct, Generic[R]):
    message: str
    data: R


D = TypeVar("D", bound=msgspec.Struct)
_STATUS: Final = msgspec.json.Decoder(_Status)
_ANYTHING: Final = msgspec.json.Decoder(_Envelope[dict[str, Any]])


def _data(answer: ApiResponse, kind: type[D]) -> D:
    found: D = decode(answer, msgspec.json.Decoder(_Envelope[kind])).data  # type: ignore[valid-type]  # a type at run time
    return found


def _entry(wire: _WireEntry) -> ListEntry:
    return ListEntry(wire.entry_id, wire.list_name, wire.kind, wire.value, wire.text_kind)
