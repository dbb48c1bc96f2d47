"""The routes that take texts, as bare ASGI: no framework between the socket and the engine."""

from __future__ import annotations

import contextlib
import logging
import time
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
from spamdetect.service.auth import authenticate
from spamdetect.service.body import (
    ClientGoneError,
    RequestBody,
    check_media_type,
    decode,
    too_long,
)
from spamdetect.service.keys import KeyRecord, KeyStore, StoreError
from spamdetect.service.limits import Limits
from spamdetect.service.metrics import Metrics
from spamdetect.service.respond import RefusalError, envelope, retry_after, send_json
from spamdetect.service.settings import ServiceSettings
from spamdetect.service.work import EngineFailedError, WorkerPool, place_of
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
Headers = tuple[tuple[bytes, bytes], ...]
_ENDPOINTS: Final = {
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


class HotRoutes:
    """Answers ``predict``, ``preprocess`` and ``feedback``."""

    def __init__(self, state: HotState) -> None:
        self._state = state
        self._max_drained_bytes = _DRAIN_FACTOR * state.settings.max_body_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        started_s = time.perf_counter()
        endpoint = _ENDPOINTS[scope["path"]]
        metrics = self._state.metrics
        body = RequestBody(scope, receive, self._state.settings.body_timeout_s)
        try:
            answer, headers = await self._answer(endpoint, scope, body)
        except RefusalError as refusal:
            try:
                close = refusal.close and not await body.drain(max_bytes=self._max_drained_bytes)
            except ClientGoneError:
                return
            metrics.answered(
                endpoint,
                refusal.status_code,
                refusal.error_code.value,
                time.perf_counter() - started_s,
            )
            await send_json(
                send,
                refusal.status_code,
                refusal.body(),
                headers=refusal.headers,
                close=close,
            )
        except ClientGoneError:
            return
        except Exception as error:  # noqa: BLE001 - the last resort, answered as 500 INTERNAL
            # Only type and place: a message or a traceback could hold the caller's text.
            if isinstance(error, EngineFailedError):
                kind, place = error.kind, error.place
            else:
                kind, place = type(error).__name__, place_of(error)
            _log.error("%s failed: %s at %s", endpoint, kind, place)
            seconds = time.perf_counter() - started_s
            metrics.answered(endpoint, 500, ErrorCode.INTERNAL.value, seconds)
            internal = RefusalError(
                500,
                ErrorCode.INTERNAL,
                "The service failed on this request; the operator's log says where.",
            )
            await send_json(send, 500, internal.body())
        else:
            metrics.answered(endpoint, 200, "", time.perf_counter() - started_s)
            await send_json(send, 200, answer, headers=headers)

    async def _answer(self, endpoint: str, scope: Any, body: RequestBody) -> tuple[bytes, Headers]:
        state = self._state
        settings = state.settings
        if endpoint == "feedback" and not settings.store_feedback:
            raise RefusalError(
                404, ErrorCode.NOT_FOUND, "This service does not collect feedback.", close=True
            )
        if scope["method"] != "POST":
            raise RefusalError(
                405,
                ErrorCode.METHOD_NOT_ALLOWED,
                "Use POST.",
                headers=((b"allow", b"POST"),),
                close=True,
            )
        key = await authenticate(scope, state.store)
        await state.limits.admit(key)
        check_media_type(scope)
        content = await body.read(
            max_bytes=settings.max_body_bytes, max_chars=settings.max_text_chars
        )
        if endpoint == "feedback":
            return await self._take_feedback(decode(content, _FEEDBACK), key), ()
        if endpoint == "preprocess":
            text = self._checked(decode(content, _TEXT).text)
            return (await state.workers.run(text, predict=False))[0], ()
        request = decode(content, _PREDICT)
        limit: float | None = None
        headers: Headers = ()
        if request.threshold is not None:
            limit = self._limit(request.threshold)
            headers = ((THRESHOLD_HEADER.encode(), f"{limit:g}".encode()),)
        text = self._checked(request.text)
        answer, is_spam = await state.workers.run(text, predict=True, threshold=limit)
        state.metrics.classified(bool(is_spam))
        return answer, headers

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
