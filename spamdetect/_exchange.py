"""One API call as a generator: it yields requests and pauses, takes answers, returns a result.

No I/O and no clock here. A driver sends what is yielded and passes back the outcome, the way
``httpx.Auth.auth_flow`` works; ``client.py`` drives it over the network, tests with a list.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Final, TypeVar

import attrs
import msgspec

from spamdetect._answers import Predicted, Preprocessed
from spamdetect._retry import RETRYABLE_STATUS, Quiet, RetryPolicy, RetryQuota, parse_retry_after
from spamdetect.errors import (
    SpamAuthError,
    SpamError,
    SpamRateLimitError,
    SpamRequestError,
    SpamResponseError,
    SpamServerError,
    SpamTransportError,
)
from spamdetect.models import Language, Prediction, PredictResult, PreprocessResult

PREDICT_PATH: Final = "/v1/spam-detection/predict"
PREPROCESS_PATH: Final = "/v1/spam-detection/preprocess"
THRESHOLD_HEADER: Final = "x-spam-threshold"
BATCH_PATH: Final = "/v1/spam-detection/predict/batch"
FEEDBACK_PATH: Final = "/v1/spam-detection/feedback"
LISTS_PATH: Final = "/v1/spam-detection/lists"
SURROGATE_MESSAGE: Final = (
    "The text holds an unpaired surrogate (U+D800 to U+DFFF) and is not valid Unicode; decode the "
    "input with errors='replace'."
)

R = TypeVar("R")
W = TypeVar("W", bound=msgspec.Struct)


@attrs.frozen
class ApiRequest:
    """A request to send.

    Attributes:
        path: Path below the base URL.
        body: JSON body; empty for a request without one.
        method: HTTP method.
        max_answer_bytes: Longest answer that the contract allows.
    """

    path: str = attrs.field(repr=False)
    body: bytes = attrs.field(default=b"", repr=False)
    method: str = "POST"
    max_answer_bytes: int = 1 << 20


@attrs.frozen
class ApiResponse:
    """A complete answer: status, lower-case headers, body."""

    status_code: int
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)


@attrs.frozen
class Pause:
    """Wait this many seconds, then continue."""

    delay_s: float


Step = ApiRequest | Pause
Outcome = ApiResponse | SpamTransportError | None
Exchange = Generator[Step, Outcome, R]


@attrs.frozen
class Clock:
    """The source of time and randomness."""

    monotonic_s: Callable[[], float]
    wall_s: Callable[[], float]
    chance: Callable[[], float]


def check_text(text: str) -> None:
    """Refuse a text that no request can carry.

    Raises:
        SpamRequestError: It is not a string, or holds a lone surrogate.
    """
    if not isinstance(text, str):
        raise SpamRequestError(
            f"text must be a str, not {type(text).__name__}.", error_code="INVALID_REQUEST"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SpamRequestError(SURROGATE_MESSAGE, error_code="INVALID_REQUEST") from None


def check_many(texts: object, concurrency: int) -> None:
    """Check the arguments of ``predict_many``.

    Raises:
        SpamRequestError: ``texts`` is a single text, or ``concurrency`` is below 1.
    """
    if isinstance(texts, str | bytes):
        raise SpamRequestError(
            f"predict_many takes an iterable of texts, not one {type(texts).__name__}; "
            "for one text call predict, or pass [text].",
            error_code="INVALID_REQUEST",
        )
    if concurrency < 1:
        raise SpamRequestError("concurrency must be at least 1.")


def too_long_message(max_chars: int) -> str:
    """The message about a text that is too long, from the service and from local mode."""
    return f"The text may have at most {max_chars} characters."


def exchange(
    request: ApiRequest,
    parse: Callable[[ApiResponse], R],
    *,
    policy: RetryPolicy,
    quota: RetryQuota,
    quiet: Quiet,
    clock: Clock,
    deadline_s: float,
) -> Exchange[R]:
    """Run one call, with retries.

    Args:
        request: What to send.
        parse: Turns a 2xx answer into the result.
        policy: Number of retries and their pauses.
        quota: Token bucket that limits retries across all calls of the process.
        quiet: Pause that earlier answers of this service asked for.
        clock: Source of time and randomness.
        deadline_s: Monotonic time in seconds after which no pause may end.

    Raises:
        SpamError: As the answer says; after retries, the last answer.
    """
    attempt = 0
    quota.note_attempt()
    while True:
        silence_s = quiet.remaining_s(clock.monotonic_s())
        if silence_s > 0:
            if clock.monotonic_s() + silence_s >= deadline_s:
                raise _silenced(quiet.status_code, silence_s)
            # Jitter upwards: calls paused together must not return together.
            yield Pause(silence_s * (1 + 0.1 * clock.chance()))
            continue
        outcome = yield request
        if isinstance(outcome, ApiResponse):
            if 200 <= outcome.status_code < 300:
                return parse(outcome)
            error = error_from(outcome, clock.wall_s())
            retryable = outcome.status_code in RETRYABLE_STATUS
            asked_s = parse_retry_after(outcome.headers.get("retry-after"), clock.wall_s())
            if asked_s is not None and outcome.status_code in {429, 503}:
                quiet.ask(clock.monotonic_s() + asked_s, outcome.status_code)
        else:
            assert outcome is not None
            error, retryable, asked_s = outcome, True, None
        attempt += 1
        if not retryable or attempt > policy.retries:
            raise error
        pause_s = policy.pause_s(attempt, clock.chance())
        if asked_s is None and isinstance(error, SpamRateLimitError):
            pause_s = max(pause_s, 1.0)
        if clock.monotonic_s() + max(pause_s, asked_s or 0.0) >= deadline_s or not quota.take():
            raise error
        yield Pause(pause_s)


def parse_predict(answer: ApiResponse) -> PredictResult:
    """Read the answer of ``predict``.

    Raises:
        SpamResponseError: The body does not match the contract.
    """
    wire = decode(answer, _PREDICT)
    data = wire.data
    return PredictResult(
        data.input_text,
        data.processed_text,
        data.text_length,
        data.word_count,
        Language(data.language.language, data.language.probability, data.language.is_reliable),
        Prediction(data.prediction.is_spam, data.prediction.ham_score, data.prediction.spam_score),
        data.error_code,
        wire.message,
        answer.body,
        None if data.reasons is None else tuple(data.reasons),
    )


def parse_predict_at(answer: ApiResponse) -> PredictResult:
    """Read the answer of ``predict`` with a threshold.

    Raises:
        SpamResponseError: The body does not match the contract, or the threshold was not applied.
    """
    if THRESHOLD_HEADER not in answer.headers:
        raise SpamResponseError(
            "The service did not apply the threshold that the client asks for; it is another one "
            "or an older one. Leave threshold out, and compare spam_score yourself.",
            status_code=answer.status_code,
        )
    return parse_predict(answer)


def parse_preprocess(answer: ApiResponse) -> PreprocessResult:
    """Read the answer of ``preprocess``.

    Raises:
        SpamResponseError: The body does not match the contract.
    """
    wire = decode(answer, _PREPROCESS)
    data = wire.data
    return PreprocessResult(
        data.input_text,
        data.processed_text,
        data.text_length,
        data.word_count,
        Language(data.language.language, data.language.probability, data.language.is_reliable),
        wire.message,
        answer.body,
    )


def error_from(answer: ApiResponse, wall_s: float) -> SpamError:
    """Turn an answer other than 2xx into its exception.

    Args:
        answer: The answer.
        wall_s: Unix time now, for a ``Retry-After`` that is a date.
    """
    status = answer.status_code
    try:
        wire = _ENVELOPE.decode(answer.body)
        message, code = wire.message[:500], wire.data.error_code[:64]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        message, code = "", ""
    message = message or f"The service answered {status} without saying why."
    if status in {401, 403}:
        return SpamAuthError(message, status_code=status, error_code=code)
    if status == 429:
        retry_after = parse_retry_after(answer.headers.get("retry-after"), wall_s)
        return SpamRateLimitError(
            message, retry_after=retry_after, status_code=status, error_code=code
        )
    if status == 408:
        return SpamTransportError(message, status_code=status, error_code=code)
    if 400 <= status < 500:
        return SpamRequestError(message, status_code=status, error_code=code)
    if status >= 500:
        return SpamServerError(message, status_code=status, error_code=code)
    return SpamResponseError(
        f"The service answered {status}, which is not part of the contract; is the base URL right?",
        status_code=status,
    )


def _silenced(status_code: int, silence_s: float) -> SpamError:
    message = f"The service asked for silence for another {silence_s:.1f} s; nothing was sent."
    if status_code == 429:
        return SpamRateLimitError(message, retry_after=silence_s)
    return SpamServerError(message, status_code=status_code, error_code="OVERLOADED")


class _WirePreprocess(msgspec.Struct):
    message: str
    data: Preprocessed


class _WirePredict(msgspec.Struct):
    message: str
    data: Predicted


class _WireError(msgspec.Struct):
    error_code: str = ""


class _WireEnvelope(msgspec.Struct):
    message: str
    data: _WireError


_PREDICT: Final = msgspec.json.Decoder(_WirePredict)
_PREPROCESS: Final = msgspec.json.Decoder(_WirePreprocess)

_ENVELOPE: Final = msgspec.json.Decoder(_WireEnvelope)


def decode(answer: ApiResponse, decoder: msgspec.json.Decoder[W]) -> W:
    try:
        return decoder.decode(answer.body)
    except msgspec.ValidationError as error:
        # msgspec's message names the type and the path, never the value.
        reason = str(error)
    except (msgspec.DecodeError, UnicodeDecodeError):
        reason = "it is not valid JSON"
    except RecursionError:
        reason = "it is nested too deep"
    raise SpamResponseError(
        f"The answer is not the contract: {reason}. Is the base URL that of a spam-detection API?",
        status_code=answer.status_code,
    )
