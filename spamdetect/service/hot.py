"""The routes that take texts, as bare ASGI: no framework between the socket and the engine."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import attrs
import msgspec

from spamdetect._exchange import (
    FEEDBACK_PATH,
    PREDICT_PATH,
    PREPROCESS_PATH,
    THRESHOLD_HEADER,
)
from spamdetect.models import ErrorCode
from spamdetect.service.auth import authenticate, count
from spamdetect.service.body import (
    ClientGoneError,
    RequestBody,
    check_media_type,
    decode,
    fields_of,
    too_long,
)
from spamdetect.service.keys import KeyRecord, KeyStore, StoreError
from spamdetect.service.limits import Limits
from spamdetect.service.metrics import Metrics
from spamdetect.service.respond import (
    RefusalError,
    Reply,
    envelope,
    retry_after,
    send_reply,
)
from spamdetect.service.settings import ServiceSettings
from spamdetect.service.steps import Steps, run_steps
from spamdetect.service.work import EngineFailedError, Item, WorkerPool, place_of
from spamdetect.thresholds import PROFILE_NAMES, checked_threshold

_log = logging.getLogger("spamdetect.service")


class TextRequest(msgspec.Struct):
    """Body of ``preprocess``."""

    text: str


class PredictRequest(TextRequest):
    """Body of ``predict``; ``threshold`` is our addition to the API."""

    threshold: float | str | None = None


class FeedbackRequest(msgspec.Struct):
    """Body of ``feedback``."""

    text: str
    is_spam: bool
    feedback_id: str = ""


# How much of a refused body is read before disconnecting, as a multiple of the longest body.
_DRAIN_FACTOR: Final = 4
_TEXT: Final = msgspec.json.Decoder(TextRequest)
_PREDICT: Final = msgspec.json.Decoder(PredictRequest)
_FEEDBACK: Final = msgspec.json.Decoder(FeedbackRequest)
Fields = tuple[tuple[bytes, bytes], ...]
ENDPOINTS: Final = {
    PREDICT_PATH: "predict",
    PREPROCESS_PATH: "preprocess",
    FEEDBACK_PATH: "feedback",
}


@attrs.frozen
class HotState:
    """What the routes work with, made at start-up."""

    settings: ServiceSettings
    store: KeyStore
    limits: Limits
    workers: WorkerPool
    metrics: Metrics


@attrs.frozen
class Request:
    """One request for one of the routes.

    Attributes:
        endpoint: One of :data:`ENDPOINTS`.
        method: The HTTP method.
        fields: The headers, names in lower case.
        body: The body.
    """

    endpoint: str
    method: str
    fields: Mapping[bytes, bytes] = attrs.field(repr=False)
    body: RequestBody


class HotRoutes:
    """Answers ``predict``, ``preprocess`` and ``feedback``."""

    def __init__(self, state: HotState) -> None:
        self._state = state
        self._max_drained_bytes = _DRAIN_FACTOR * state.settings.max_body_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        fields = fields_of(scope["headers"])
        body = RequestBody(b"", fields, receive, self._state.settings.body_timeout_s)
        request = Request(ENDPOINTS[scope["path"]], scope["method"], fields, body)
        with contextlib.suppress(ClientGoneError):
            await send_reply(send, await run_steps(self.answer(request)))

    def answer(self, request: Request) -> Steps[Reply]:
        """Answer one request.

        Raises:
            ClientGoneError: The client has gone before its request was complete.
        """
        started_s = time.perf_counter()
        error_code = ""
        try:
            content, headers = yield from self._answer(request)
            reply = Reply(200, content, headers)
        except ClientGoneError:
            raise
        except RefusalError as refusal:
            drained = yield from request.body.is_drained(max_bytes=self._max_drained_bytes)
            error_code = refusal.error_code.value
            reply = Reply(
                refusal.status_code,
                refusal.body(),
                refusal.headers,
                refusal.close and not drained,
            )
        except Exception as error:  # noqa: BLE001 - the last resort, answered as 500 INTERNAL
            error_code = ErrorCode.INTERNAL.value
            reply = _internal(request.endpoint, error)
        self._state.metrics.answered(
            request.endpoint, reply.status_code, error_code, time.perf_counter() - started_s
        )
        return reply

    def _answer(self, request: Request) -> Steps[tuple[bytes, Fields]]:
        state, endpoint, fields = self._state, request.endpoint, request.fields
        settings = state.settings
        if endpoint == "feedback" and not settings.store_feedback:
            raise RefusalError(
                404, ErrorCode.NOT_FOUND, "This service does not collect feedback.", close=True
            )
        if request.method != "POST":
            raise RefusalError(
                405,
                ErrorCode.METHOD_NOT_ALLOWED,
                "Use POST.",
                headers=((b"allow", b"POST"),),
                close=True,
            )
        key = yield from authenticate(fields.get(b"x-api-key", b""), state.store)
        yield from count(key, state.limits)
        check_media_type(fields.get(b"content-type"), fields.get(b"content-encoding"))
        content = yield from request.body.content(
            max_bytes=settings.max_body_bytes,
            too_long=partial(too_long, settings.max_text_chars),
        )
        if endpoint == "feedback":
            answer = yield self._take_feedback(decode(content, _FEEDBACK), key)
            return answer, ()
        item, headers = self._item(endpoint, content)
        answer, is_spam = yield state.workers.submit(item)
        if is_spam is not None:
            state.metrics.classified(is_spam)
        return answer, headers

    def _item(self, endpoint: str, content: bytes) -> tuple[Item, Fields]:
        """What the engine is to do for a body, and further headers of the answer."""
        if endpoint == "preprocess":
            return (self._checked(decode(content, _TEXT).text), False, None), ()
        request = decode(content, _PREDICT)
        if request.threshold is None:
            return (self._checked(request.text), True, None), ()
        limit = self._limit(request.threshold)
        fields = ((THRESHOLD_HEADER.encode(), f"{limit:g}".encode()),)
        return (self._checked(request.text), True, limit), fields

    def _checked(self, text: str) -> str:
        if len(text) > self._state.settings.max_text_chars:
            raise too_long(self._state.settings.max_text_chars)
        return text

    def _limit(self, threshold: float | str) -> float:
        if isinstance(threshold, float | int) or threshold in PROFILE_NAMES:
            with contextlib.suppress(ValueError):
                return self._state.workers.threshold_of(checked_threshold(threshold))
        raise RefusalError(
            422,
            ErrorCode.INVALID_REQUEST,
            f"threshold must be {', '.join(PROFILE_NAMES)} or a number from 0 to 1.",
            field="threshold",
        )

    async def _take_feedback(self, report: FeedbackRequest, key: KeyRecord) -> bytes:
        if len(report.text) > self._state.settings.max_text_chars:
            raise too_long(self._state.settings.max_text_chars)
        if len(report.feedback_id) > 64:
            raise RefusalError(
                422,
                ErrorCode.INVALID_REQUEST,
                "feedback_id may have at most 64 characters.",
                field="feedback_id",
            )
        # Scoped to the key: one caller's id can neither hide nor reveal another's.
        feedback_id = f"{key.key_id}:{report.feedback_id or time.time_ns()}"
        try:
            await self._state.store.add_feedback(
                feedback_id, key.key_id, report.text, report.is_spam
            )
        except StoreError:
            raise RefusalError(
                503,
                ErrorCode.UNAVAILABLE,
                "The report could not be stored; try again in a moment.",
                headers=retry_after(1),
            ) from None
        return envelope("Thank you, the report was stored.", {"error_code": ""})


def _internal(endpoint: str, error: Exception) -> Reply:
    # Only type and place: a message or a traceback could hold the caller's text.
    if isinstance(error, EngineFailedError):
        kind, place = error.kind, error.place
    else:
        kind, place = type(error).__name__, place_of(error)
    _log.error("%s failed: %s at %s", endpoint, kind, place)
    refusal = RefusalError(
        500,
        ErrorCode.INTERNAL,
        "The service failed on this request; the operator's log says where.",
    )
    return Reply(500, refusal.body())
